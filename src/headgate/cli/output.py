"""What commands print: data on stdout, as a table only where a person looks at it; everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table


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
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(*(escape(cell) for cell in row))
    Console().print(drawn)


def stderr() -> Console:
    """Give the console of what is not data: progress bars."""
    return Console(stderr=True)


def say(text: str) -> None:
    """Tell the person something that is not data."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def complain(sentence: str, next_step: str = "") -> None:
    """Tell the person what went wrong and what to do about it."""
    ended = sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
    say(f"headgate: {ended} {next_step}".rstrip())
