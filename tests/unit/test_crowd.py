"""The simulated crowd: when it arrives, what is recorded of it, and what the report shows."""

from __future__ import annotations

import random
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from headgate.cli.trial.crowd.curves import Curve, arrivals
from headgate.cli.trial.crowd.record import CrowdRecord, Promise, Wait
from headgate.cli.trial.crowd.report import report
from headgate.cli.trial.crowd.view import sparkline


@pytest.mark.parametrize("curve", list(Curve))
def test_everybody_arrives_in_time_and_in_order(curve: Curve) -> None:
    times = arrivals(curve, 2000, 60, random.Random(1))
    assert len(times) == 2000
    assert all(before <= after for before, after in pairwise(times))
    assert times[0] >= 0
    assert times[-1] <= 60


def test_curves_have_their_shapes() -> None:
    def before(curve: Curve, share: float) -> float:
        times = arrivals(curve, 4000, 1, random.Random(2))
        return sum(at < share for at in times) / len(times)

    assert before(Curve.BURST, 0.05) == 1
    assert before(Curve.STEADY, 0.5) == pytest.approx(0.5, abs=0.05)
    assert before(Curve.RAMP, 0.5) == pytest.approx(0.25, abs=0.05)
    assert before(Curve.OPENING, 0.2) > 0.7


def test_the_same_seed_gives_the_same_crowd() -> None:
    assert arrivals(Curve.WAVE, 100, 10, random.Random(3)) == arrivals(Curve.WAVE, 100, 10, random.Random(3))


def _record() -> CrowdRecord:
    record = CrowdRecord(100)
    for second in range(30):
        record.arrived = record.admitted = second * 3
        record.seats_taken, record.capacity = min(second, 10), 10
        record.take_sample(float(second))
    record.waits = [
        Wait(float(number % 7), float(number), number + 1.0, number / 2, number * 2.0) for number in range(90)
    ]
    record.check(Promise.RANK_NEVER_RISES, kept=True)
    record.check(Promise.RANK_NEVER_RISES, kept=False)
    return record


def test_figures_are_right() -> None:
    figures = _record().figures(30)
    assert (figures.wait_p50, figures.wait_p99) == (45, 89)
    assert figures.eta_error_p50 == 1
    assert figures.eta_within_range == 1
    assert figures.eta_range_p50 == 1.5
    assert figures.promises[Promise.RANK_NEVER_RISES] == 2
    assert figures.broken == {Promise.RANK_NEVER_RISES: 1}


class _Strict(HTMLParser):
    """Notes every tag and everything that would be fetched from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href")]


def test_the_report_is_complete_and_needs_nothing_else() -> None:
    record = _record()
    record.refusals["<script>"] = 1
    page = report(record, record.figures(30), [("queue", "a & <b>")], "2026-01-01T00:00:00Z")
    parser = _Strict()
    parser.feed(page)
    assert parser.fetched == []
    assert "script" not in parser.tags
    assert parser.tags.count("svg") == 5
    assert "a &amp; &lt;b&gt;" in page
    assert "NaN" not in page
    points = re.findall(r'points="([^"]+)"', page)
    assert points
    for x, y in (point.split(",") for line in points for point in line.split()):
        assert 0 <= float(x) <= 1040
        assert 0 <= float(y) <= 280


def test_a_run_in_which_nothing_happened_has_a_report_too() -> None:
    record = CrowdRecord(1)
    assert "Nothing was measured" in report(record, record.figures(0), [], "now")


def test_a_sparkline_keeps_its_peaks() -> None:
    assert sparkline([0, 1, 2, 4]) == " ▂▄█"
    assert len(sparkline([*[0] * 500, 9, *[0] * 500], 50)) == 50
    assert "█" in sparkline([*[0] * 500, 9, *[0] * 500], 50)
    assert sparkline([]) == ""
