"""The progress of a run, drawn on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headgate.cli.trial.crowd.record import CrowdRecord, Sample, percentile

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_WIDTH: Final = 60


def view(record: CrowdRecord, seconds: float, title: str) -> RenderableType:
    """Draw the current state."""
    samples = record.samples
    bars = Table.grid(padding=(0, 2))
    bars.add_column()
    bars.add_column(justify="right")
    bars.add_column()
    for name, number, color in (
        ("arrived", record.arrived, "blue"),
        ("waiting", record.waiting, "yellow"),
        ("inside", record.inside, "green"),
        ("done", record.done, "magenta"),
    ):
        bar = ProgressBar(total=max(record.players, 1), completed=number, width=40, complete_style=color)
        bars.add_row(Text(name, style=color), f"{number:,}", bar)
    lines = Table.grid(padding=(0, 2))
    lines.add_row("waiting", Text(sparkline([sample.waiting for sample in samples]), style="yellow"))
    lines.add_row("entered/s", Text(sparkline([rate for _, rate in rates(samples)]), style="green"))
    waits = sorted(wait.seconds for wait in record.waits)
    facts = Text.assemble(
        ("wait ", "dim"), f"p50 {percentile(waits, 50):.1f} s  p99 {percentile(waits, 99):.1f} s   ",
        ("seats ", "dim"), _seats(record), "   ",
        ("requests ", "dim"), f"{record.requests:,}   ",
        ("refusals ", "dim"), f"{sum(record.refusals.values()):,}   ",
        ("promises broken ", "dim"), _broken(record),
    )  # fmt: skip
    head = Text.assemble((title, "bold"), (f"   {seconds:.0f} s", "dim"))
    return Group(head, Text(), bars, Text(), lines, Text(), facts)


def plain(record: CrowdRecord, seconds: float) -> str:
    """Write the current state as one line, for a log."""
    return (
        f"{seconds:4.0f} s  arrived {record.arrived:,}  waiting {record.waiting:,}  inside {record.inside:,}  "
        f"done {record.done:,}  entered {record.admitted:,}  broken promises {sum(record.broken.values())}"
    )


def sparkline(numbers: Sequence[float], width: int = _WIDTH) -> str:
    """Draw numbers as a row of blocks; each block of a long row shows the highest of its numbers."""
    if not numbers:
        return ""
    if len(numbers) > width:
        step = len(numbers) / width
        numbers = [max(numbers[int(at * step) : max(int((at + 1) * step), int(at * step) + 1)]) for at in range(width)]
    top = max(numbers) or 1
    return "".join(_BLOCKS[min(8, round(number / top * 8))] for number in numbers)


def rates(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """Give the entries per second between consecutive samples."""
    return [
        (after.at, (after.admitted - before.admitted) / max(after.at - before.at, 0.01))
        for before, after in pairwise(samples)
    ]


def _seats(record: CrowdRecord) -> str:
    if record.seats_taken is None:
        return "unknown"
    return f"{record.seats_taken:,} of {record.capacity:,}"


def _broken(record: CrowdRecord) -> tuple[str, str]:
    broken = sum(record.broken.values())
    return (f"{broken:,}", "bold red") if broken else ("none", "green")
