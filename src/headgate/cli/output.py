"""Prints the output of commands: data on stdout, as a table if that is a terminal, and everything else on stderr."""

from __future__ import annotations

import shutil
import signal
import sys
import textwrap
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

_NARROW = 60
_FEW_COLUMNS = 3
_LONG_WORD = 30  # a longer word, such as a URL, may be cut
_SENTENCE, _SENTENCE_WIDTH = 40, 24


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
    padding = 2 * len(widths) - 2
    whole_name = widths[0] <= console.width // 2
    needed = [_least_width(cells) for cells in zip(columns, *rows, strict=True)]
    needed[0] = widths[0] if whole_name else needed[0]
    if (
        len(columns) > _FEW_COLUMNS
        and sum(widths) + padding > console.width
        and (console.width < _NARROW or not whole_name or sum(needed) + padding > console.width)
    ):
        _print_blocks(console, columns, rows)
        return
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    fits = sum(needed) + padding <= console.width
    for number, (column, least) in enumerate(zip(columns, needed, strict=True)):
        no_wrap = number == 0 and whole_name
        drawn.add_column(column, overflow="fold", no_wrap=no_wrap, min_width=least if fits else None)
    for row in rows:
        drawn.add_row(*(escape(cell) for cell in row))
    console.print(drawn)


def _least_width(cells: Sequence[str]) -> int:
    """Return the width that a column needs so that no word is cut and sentences have more than one word per line."""
    word = max((len(word) for cell in cells for word in cell.split()), default=0)
    return max(min(word, _LONG_WORD), _SENTENCE_WIDTH if max(map(len, cells)) > _SENTENCE else 0)


def _print_blocks(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print each row as a block of lines, for a terminal that is too narrow for a table."""
    for number, (name, *cells) in enumerate(rows):
        first, *more = name.split("\n")
        console.print(f"{chr(10) if number else ''}[bold]{escape(first)}[/]", soft_wrap=True)
        for each in more:
            console.print(escape(each), soft_wrap=True, highlight=False)
        drawn = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 1))
        drawn.add_column(style="dim", no_wrap=True)
        drawn.add_column(overflow="fold")
        for column, cell in zip(columns[1:], cells, strict=True):
            if cell:
                drawn.add_row(column, escape(cell))
        console.print(drawn)


def stderr() -> Console:
    """Return the console for progress bars."""
    return Console(stderr=True)


def say(text: str) -> None:
    """Print a message that is not data; on a terminal, long lines are wrapped between words."""
    sys.stderr.write((wrapped(text) if sys.stderr.isatty() else text) + "\n")
    sys.stderr.flush()


def wrapped(text: str) -> str:
    """Wrap lines that are longer than the terminal is wide, between words."""
    width = max(shutil.get_terminal_size().columns, 20)
    lines = (
        line if len(line) <= width else textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n")
    )
    return "\n".join(lines)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Write a number with its noun: `1 problem`, `2 problems`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def ask(question: str) -> str:
    """Ask a question and return the line that is typed; Ctrl-C there ends the command."""
    # The event loop's own handler would not run while this call blocks.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.stderr.write(question)
        sys.stderr.flush()
        return sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, before)


def complain(sentence: str, next_step: str = "") -> None:
    """Print an error and what to do about it."""
    ended = sentence if sentence.endswith((".", "!", "?", "…")) else f"{sentence}."
    say(f"headgate: {ended} {next_step}".rstrip())
