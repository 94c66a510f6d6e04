"""The file in which a running `up` leaves its addresses, so that commands run in the same directory find it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

_FILE = "up.json"
_THIS_MACHINE: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def without_password(url: str) -> str:
    """Return a URL without the user and password that a store's URL may contain."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


class RunningUp(msgspec.Struct, frozen=True):
    """The addresses of the processes of `up`, and the admin token; None if a process does not run."""

    gateway: str
    arena: str | None
    relay: str | None
    console: str
    token: str
    store: str


class _Remembered(msgspec.Struct, frozen=True):
    pid: int
    up: RunningUp


def remember(directory: Path, up: RunningUp) -> None:
    """Write the file, readable by this user only."""
    unfinished = directory / f"{_FILE}.new"
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.encode(_Remembered(os.getpid(), up)))
    unfinished.replace(directory / _FILE)


def forget(directory: Path) -> None:
    """Delete the file."""
    (directory / _FILE).unlink(missing_ok=True)


def find(directory: Path) -> RunningUp | None:
    """Return the `up` that runs on this directory; the file of an `up` that was killed is ignored."""
    try:
        note = msgspec.json.decode((directory / _FILE).read_bytes(), type=_Remembered)
    except (OSError, msgspec.DecodeError):
        return None
    with suppress(ProcessLookupError):
        os.kill(note.pid, 0)
        return note.up
    return None


def find_by_url(directory: Path, url: str) -> RunningUp | None:
    """Return the `up` that runs on this directory if its gateway is at this URL, under any name of this machine.

    Use the address it returns: under another name of this machine another program might listen.
    """
    up = find(directory)
    return up if up is not None and _place(up.gateway) == _place(url) else None


def _place(url: str) -> tuple[str, str, int | None]:
    split = urlsplit(url)
    host = split.hostname or ""
    try:
        port = split.port
    except ValueError:
        port = None
    return split.scheme, "localhost" if host in _THIS_MACHINE else host, port
