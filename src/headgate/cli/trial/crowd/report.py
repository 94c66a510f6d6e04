"""The report of a run as one self-contained HTML file: figures, promises and charts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from headgate.cli.trial.crowd.charts import ChartSeries, chart, histogram
from headgate.cli.trial.crowd.record import CrowdFigures, CrowdRecord, Sample, duration, percentile
from headgate.cli.trial.crowd.view import rates

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #5d6b7c; --line: #d9dfe6; --paper: #fff; --tile: #f4f6f8;
  --one: #2f6fde; --two: #d97706; --three: #16915a; --bad: #c2292e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --dim: #96a3b3; --line: #333d4a; --paper: #12161c;
  --tile: #1b2129; --one: #6ea2ff; --two: #f2a63b; --three: #45c58a; --bad: #ff6b70; } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 1080px; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.6rem; margin: 0 0 .25rem } h2 { font-size: 1.1rem; margin: 2.5rem 0 .5rem }
p { color: var(--dim); margin: .25rem 0 1rem; max-width: 70ch }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .75rem; margin: 1.5rem 0 }
.tile { background: var(--tile); border-radius: .5rem; padding: .75rem 1rem }
.tile b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums }
.tile span { color: var(--dim); font-size: .85rem }
table { border-collapse: collapse; width: 100% } th { color: var(--dim); font-weight: 500 }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line) }
th.n, td.n { text-align: right; font-variant-numeric: tabular-nums } .bad { color: var(--bad); font-weight: 600 }
svg { width: 100%; height: auto; display: block } svg text { fill: var(--dim); font: 12px system-ui, sans-serif }
.plot { overflow-x: auto } @media (max-width: 50rem) { .plot svg { width: 56rem } }
.legend { display: flex; gap: 1.25rem; flex-wrap: wrap; color: var(--dim); font-size: .85rem }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .4rem; vertical-align: -1px }
"""


def report(record: CrowdRecord, figures: CrowdFigures, choices: Sequence[tuple[str, str]], at: str) -> str:
    """Write the report."""
    samples = record.samples
    parts = [
        f"<h1>{figures.players:,} players in {figures.seconds:,.0f} seconds</h1>",
        f"<p>{escape(at)} · headgate load</p>",
        _tiles(figures),
        "<h2>Promises</h2>",
        "<p>Each was put to the test by the players themselves, as often as the table says.</p>",
        _promises(figures),
        "<h2>The line</h2>",
        "<p>How many had arrived, were waiting, and were inside, second by second.</p>",
        chart(
            [
                ChartSeries("arrived", _points(samples, "arrived"), "var(--one)"),
                ChartSeries("waiting", _points(samples, "waiting"), "var(--two)", filled=True),
                ChartSeries("inside", _points(samples, "inside"), "var(--three)"),
            ],
            "players",
        ),
        "<h2>Admission</h2>",
        "<p>How many entered in each second.</p>",
        chart([ChartSeries("entered each second", rates(samples), "var(--three)", filled=True)], "players a second"),
        *_seats(samples),
        "<h2>Waiting times</h2>",
        "<p>By the moment of arrival: half of those who arrived then waited no longer than the lower line, 99 in 100 no longer than the upper.</p>",
        chart(_waits(record), "seconds"),
        *_eta(record, figures),
        "<h2>How it was run</h2>",
        _choices(choices, record),
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>headgate load: {figures.players:,} players</title><style>{_STYLE}</style><body><main>{''.join(parts)}</main></body></html>\n"
    )


def _tiles(figures: CrowdFigures) -> str:
    tiles = [
        ("entered", f"{figures.entered:,}"),
        ("wandered off", f"{figures.abandoned:,}"),
        ("lost", f"{figures.lost:,}"),
        *([("not done when it ended", f"{figures.unfinished:,}")] if figures.unfinished else []),
        ("wait, half of them", f"{figures.wait_p50:,.1f} s"),
        ("wait, 99 in 100", f"{figures.wait_p99:,.1f} s"),
        ("first estimate off by, half of them", "none" if figures.eta_error_p50 is None else f"{figures.eta_error_p50:,.1f} s"),
        ("requests", f"{figures.requests:,}"),
        ("answer, 99 in 100", duration(figures.answer_p99_ms)),
    ]  # fmt: skip
    cells = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def _promises(figures: CrowdFigures) -> str:
    rows = []
    for promise, tested in figures.promises.items():
        broken = figures.broken.get(promise, 0)
        kind = " bad" if broken else ""
        rows.append(
            f'<tr><td>{escape(promise)}</td><td class="n">{tested:,}</td><td class="n{kind}">{broken:,}</td></tr>'
        )
    head = '<tr><th>promise</th><th class="n">tested</th><th class="n">broken</th></tr>'
    return f"<table>{head}{''.join(rows)}</table>"


def _points(samples: Sequence[Sample], field: str) -> list[tuple[float, float]]:
    return [(sample.at, float(getattr(sample, field))) for sample in samples]


def _seats(samples: Sequence[Sample]) -> list[str]:
    known = [sample for sample in samples if sample.capacity is not None]
    if not known:
        return []
    return [
        "<h2>Seats</h2>",
        "<p>Sessions and held seats against what the servers offered, as the gateway reported them.</p>",
        chart(
            [
                ChartSeries("offered", [(sample.at, float(sample.capacity or 0)) for sample in known], "var(--two)"),
                ChartSeries("taken", [(sample.at, float(sample.seats_taken or 0)) for sample in known], "var(--one)", filled=True),
            ],
            "seats",
        ),
    ]  # fmt: skip


def _waits(record: CrowdRecord) -> list[ChartSeries]:
    """Give p50 and p99 of the waits, by interval of arrival."""
    if not record.waits:
        return []
    first = min(wait.arrived_at for wait in record.waits)
    last = max(wait.arrived_at for wait in record.waits)
    width = max((last - first) / 60, 0.5)
    stretches: dict[int, list[float]] = {}
    for wait in record.waits:
        stretches.setdefault(int((wait.arrived_at - first) / width), []).append(wait.seconds)
    at = {stretch: (stretch + 0.5) * width for stretch in sorted(stretches)}
    middle = [(at[stretch], percentile(sorted(stretches[stretch]), 50)) for stretch in at]
    worst = [(at[stretch], percentile(sorted(stretches[stretch]), 99)) for stretch in at]
    return [ChartSeries("99 in 100", worst, "var(--two)"), ChartSeries("half", middle, "var(--one)", filled=True)]


def _eta(record: CrowdRecord, figures: CrowdFigures) -> list[str]:
    errors = [wait.first_eta - wait.seconds for wait in record.waits if wait.first_eta is not None]
    if not errors or figures.eta_within_range is None:
        return []
    words = (
        "The first estimate each player was given, less the wait it turned out to be. The wait was inside the given range "
        f"for {figures.eta_within_range:.0%} of {len(errors):,} players; half of the ranges were at most "
        f"{figures.eta_range_p50:.1f} times as wide as the wait was long."
    )
    return [
        "<h2>Estimates</h2>",
        f"<p>{words}</p>",
        histogram(errors, "var(--one)", "seconds too long (right) or too short (left)"),
    ]


def _choices(choices: Sequence[tuple[str, str]], record: CrowdRecord) -> str:
    rows = [*choices, *((f"{name} players", f"{count:,}") for name, count in sorted(record.behaviours.items()))]
    rows += [(f"told: {code}", f"{count:,} times") for code, count in sorted(record.refusals.items())]
    return (
        f"<table>{''.join(f'<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>' for name, value in rows)}</table>"
    )
