"""Log lines of child processes, shown with the child's name: readable on a terminal, unchanged elsewhere."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

_COLORS = {"up": 36, "gateway": 32, "worker": 35, "relay": 33, "arena": 34}
_LEVELS = {"debug": 2, "warning": 33, "error": 31}
_WIDTH = 8


def show(name: str, text: str) -> None:
    """Print a child's line on stderr."""
    entry = _decoded(text)
    if sys.stderr.isatty():
        line = f"{_painted(f'{name:<{_WIDTH}}', _COLORS.get(name, 37))} {_readable(entry) if entry else text}"
    else:
        # A process that fails prints one sentence by `output.complain`, which is not JSON.
        line = text if entry else log_line(name, "error" if text.startswith("headgate: ") else "info", text)
    with suppress(OSError, ValueError):  # children go on when nobody reads our stderr
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def log_line(process: str, level: str, event: str) -> str:
    """Write a JSON line in the format of our logs."""
    time = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return msgspec.json.encode({"time": time, "level": level, "event": event, "process": process}).decode()


def _decoded(text: str) -> dict[str, object] | None:
    if text.startswith("{"):
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(text, type=dict[str, object])
    return None


def _readable(entry: dict[str, object]) -> str:
    level = str(entry.pop("level", "info"))
    time = str(entry.pop("time", ""))[11:19]
    event = entry.pop("event", "")
    entry.pop("process", None)
    trace = entry.pop("exception", None)
    keys = " ".join(f"{key}={value}" for key, value in entry.items())
    line = f"{time} {_painted(str(event), _LEVELS.get(level, 0))}{' ' if keys else ''}{_painted(keys, 2)}"
    return f"{line}\n{trace}" if trace else line


def _painted(text: str, color: int) -> str:
    return f"\x1b[{color}m{text}\x1b[0m" if text and color else text
