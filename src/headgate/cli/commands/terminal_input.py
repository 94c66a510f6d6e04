"""Reads lines at the bottom of a terminal while other lines are printed above."""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import shutil
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final

from rich.cells import cell_len

_KEYS: Final = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O.|.)?|.", re.DOTALL)
_CLEAR: Final = "\r\x1b[2K"
_END: Final = "\x04"
_CHUNK: Final = 4096


@contextmanager
def echo_off() -> Iterator[None]:
    """Turn off the terminal's echo, which would disturb a progress bar; Ctrl-C stays a signal."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, before)


class LineEditor:
    """Reads lines from a terminal, or from a pipe, while `show` prints above the line being typed."""

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        self._typed = ""
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
        self._rest = ""
        self._before: list[int | list[bytes | int]] | None = None

    async def __aenter__(self) -> LineEditor:
        if self.terminal:
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)  # Ctrl-C stays a signal
        if sys.stdin is None:
            self._lines.put_nowait(None)
            return self
        try:
            asyncio.get_running_loop().add_reader(sys.stdin, self._read)
        except PermissionError:  # a file, which epoll does not support
            while self._read():
                pass
        self._draw()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if sys.stdin is not None:
            asyncio.get_running_loop().remove_reader(sys.stdin)
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)
            self._put(_CLEAR)

    async def lines(self) -> AsyncIterator[str]:
        """Yield each line when it is complete, until the end of the input (Ctrl-D)."""
        while (line := await self._lines.get()) is not None:
            yield line

    def show(self, text: str) -> None:
        """Print a line above the one being typed."""
        self._put(f"{_CLEAR}{text}\n" if self.terminal else f"{text}\n")
        self._draw()

    def _read(self) -> bool:
        """Read the available input; False at its end."""
        data = b""
        with suppress(OSError):  # a terminal that is gone
            data = os.read(sys.stdin.fileno(), _CHUNK)
        text = self._decoder.decode(data, final=not data)
        if self.terminal:
            self._type(text)
        else:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self._lines.put_nowait(line)
        if not data:
            asyncio.get_running_loop().remove_reader(sys.stdin)
            if self._rest:
                self._lines.put_nowait(self._rest)
            self._lines.put_nowait(None)
        return bool(data)

    def _type(self, text: str) -> None:
        for key in _KEYS.findall(text):
            match key:
                case "\n" | "\r":
                    line, self._typed = self._typed, ""
                    self._lines.put_nowait(line)
                case "\x7f" | "\x08":
                    self._typed = self._typed[:-1]
                case "\x15":
                    self._typed = ""
                case "\x17":
                    self._typed = self._typed.rstrip().rpartition(" ")[0]
                    self._typed += " " if self._typed else ""
                case _ if key == _END:
                    if not self._typed:
                        self._lines.put_nowait(None)
                case _ if key.isprintable():
                    self._typed += key
        self._draw()

    def _draw(self) -> None:
        if not self.terminal:
            return
        room = shutil.get_terminal_size().columns - cell_len(self._prompt) - 1
        shown = self._typed
        while cell_len(shown) > room:
            shown = shown[1:]
        self._put(f"{_CLEAR}{self._prompt}{shown}")

    def _put(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
