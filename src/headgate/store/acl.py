"""The least rights our processes need in the store: their keys, their channels, and each command by name.

A script runs with its caller's rights, so what scripts call is read out of the Lua files themselves; what Python sends is
listed here, and a test compares the list with the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from headgate.store.script import SHARED

SENT: Final = frozenset(
    {
        "asking",
        "auth",
        "cluster|slots",
        "evalsha",
        "hget",
        "hmget",
        "info",
        "ping",
        "script|load",
        "select",
        "subscribe",
        "time",
        "unsubscribe",
        "xrevrange",
        "zcard",
        "zrange",
    }
)
PACKAGES: Final = {
    "gateway": ("gateway", "waiting_room", "registry", "config", "relay", "locks"),
    "worker": ("gateway", "waiting_room", "registry", "config", "relay", "locks"),
    "relay": ("relay", "registry", "locks"),
    "arena": ("registry", "waiting_room"),
}
_CALL = re.compile(r"redis\.p?call\(\s*['\"](\w+)['\"]")


def rules(process: str, prefix: str) -> str:
    """Give the ACL rules of one process, as they stand after a user's name and password."""
    commands = sorted(SENT | called(_scripts(PACKAGES[process])))
    return " ".join((f"resetkeys ~{prefix}:* resetchannels &{prefix}:* -@all", *(f"+{name}" for name in commands)))


def called(files: Iterable[Path]) -> set[str]:
    """Find the commands that Lua files call."""
    return {name.lower() for file in files for name in _CALL.findall(file.read_text("utf-8"))}


def _scripts(packages: Iterable[str]) -> Iterable[Path]:
    root = SHARED.parent.parent
    for package in ("store", *packages):
        yield from (root / package).glob("lua/**/*.lua")
