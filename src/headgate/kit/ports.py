"""Finds ports to listen on that are likely to be free again after a restart."""

from __future__ import annotations

import random
import socket

# Below the range of outgoing connections, which could take the port while our listener restarts.
_FIRST, _LAST = 20_000, 31_999


def bind_error(host: str, port: int) -> str | None:
    """Give the reason why this port cannot be bound; None if it can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def free_port(wanted: int = 0, *, host: str = "127.0.0.1") -> int:
    """Find a free port: the wanted one if possible."""
    if wanted and bind_error(host, wanted) is None:
        return wanted
    for _ in range(1000):
        port = random.randint(_FIRST, _LAST)
        if bind_error(host, port) is None:
            return port
    raise OSError(f"no port between {_FIRST} and {_LAST} is free on {host}")
