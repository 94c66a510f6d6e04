"""Ports: which one can be listened on, now and again after a restart."""

from __future__ import annotations

import random
import socket

# Below what systems hand out to outgoing connections: while our listener is away, nobody is given its port by chance.
_FIRST, _LAST = 20_000, 31_999


def trouble(host: str, port: int) -> str | None:
    """Say why this port cannot be listened on; None if it can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def free_port(wanted: int = 0, *, host: str = "127.0.0.1") -> int:
    """Find a port that nobody uses now: the wanted one, if it is free."""
    if wanted and trouble(host, wanted) is None:
        return wanted
    for _ in range(1000):
        port = random.randint(_FIRST, _LAST)
        if trouble(host, port) is None:
            return port
    raise OSError(f"no port between {_FIRST} and {_LAST} is free on {host}")
