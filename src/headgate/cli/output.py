"""What commands print: data on stdout, as a table only where a person looks at it; everything else on stderr."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_NARROW = 60
_FEW_COLUMNS = 3


def as_json(value: object) -> None:
    """Print data as one line of JSON."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def line(text: str) -> None:
    """Print one line of data."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str = "") -> None:
    """Print rows: with headings on a terminal, else separated by tabs, for other programs."""
    if not sys.stdout.isatty():
        for row in rows:
            line("\t".join(row))
        return
    if not rows:
        line(empty)
        return
    console = Console()
    widths = [
        max(len(line) for cell in cells for line in cell.split("\n")) for cells in zip(columns, *rows, strict=True)
    ]
    if len(columns) > _FEW_COLUMNS and console.width < _NARROW and sum(widths) + 2 * len(widths) - 2 > console.width:
        _print_blocks(console, columns, rows)
        return
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        drawn.add_column(column, overflow="fold", no_wrap=number == 0 and widths[0] <= console.width // 2)
    for row in rows:
        drawn.add_row(*(escape(cell) for cell in row))
    console.print(drawn)


def _print_blocks(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print each row as a block of lines, for a terminal in which a table would be cut to shreds."""
    for number, (name, *cells) in enumerate(rows):
        console.print(f"{chr(10) if number else ''}[bold]{escape(name)}[/]", soft_wrap=True)
        drawn = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 1))
        drawn.add_column(style="dim", no_wrap=True)
        drawn.add_column(overflow="fold")
        for column, cell in zip(columns[1:], cells, strict=True):
            if cell:
                drawn.add_row(column, escape(cell))
        console.print(drawn)


def stderr() -> Console:
    """Give the console of what is not data: progress bars."""
    return Console(stderr=True)


def say(text: str) -> None:
    """Tell the person something that is not data."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def ask(question: str) -> str:
    """Ask the person something and give the line they type; Ctrl-C there ends the command."""
    # It would only be noted while we wait here, and whoever pressed it would wait for a prompt that does not come.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.stderr.write(question)
        sys.stderr.flush()
        return sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, before)


def complain(sentence: str, next_step: str = "") -> None:
    """Tell the person what went wrong and what to do about it."""
    ended = sentence if sentence.endswith((".", "!", "?", "…")) else f"{sentence}."
    say(f"headgate: {ended} {next_step}".rstrip())
