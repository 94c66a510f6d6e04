"""The table that people read and the JSON that programs read, of one run."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from bench.cores import CORES
from bench.harness import ROOT, Result
from bench.load import generator

RESULTS: Final = ROOT / "bench" / "results"


class Report(msgspec.Struct, frozen=True):
    """One run: where it ran, every result, and figures that are not races."""

    name: str
    at: str
    machine: str
    cores: str
    load: str
    results: Sequence[Result]
    figures: Mapping[str, float | str]


def publish(name: str, ours: str, results: Sequence[Result], figures: Mapping[str, float | str] | None = None) -> Path:
    """Print the tables, with ratios of `ours` to each peer, and keep the run as JSON."""
    report = Report(
        name=name,
        at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        cores=CORES.words(),
        load=generator(),
        results=results,
        figures=figures or {},
    )
    console = Console(width=None if Console().is_terminal else 140)
    console.print(f"[bold]{name}[/] · {report.machine} · load by {report.load} · {report.cores}")
    for case in dict.fromkeys(result.case for result in results):
        console.print(_table(case, ours, [result for result in results if result.case == case]))
    for words, figure in report.figures.items():
        console.print(f"{words}: [bold]{figure if isinstance(figure, str) else f'{figure:,.2f}'}[/]")
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))
    console.print(f"written to {file.relative_to(ROOT)}", style="dim")
    return file


def _table(case: str, ours: str, results: Sequence[Result]) -> Table:
    table = Table(title=case, title_justify="left")
    table.add_column("contestant")
    for heading in ("requests/s", "CPU µs/request", "store CPU µs", "core busy", "p50 ms", "p99 ms", "errors"):
        table.add_column(heading, justify="right")
    table.add_column("ours to theirs", justify="right")
    own = next(result for result in results if result.contestant == ours)
    for result in results:
        table.add_row(
            result.contestant,
            f"{result.per_second:,.0f}",
            f"{result.cpu_us:.1f}",
            f"{result.store_cpu_us:.1f}",
            f"{result.busy:.0%}",
            f"{result.p50_ms:.2f}",
            f"{result.p99_ms:.2f}",
            str(result.errors),
            ""
            if result is own
            else f"{own.per_second / result.per_second:.2f}× speed, {own.cpu_us / result.cpu_us:.2f}× CPU",
        )
    return table
