"""Ports that a server can have now and can have again after a restart."""

from __future__ import annotations

import random
import socket

# Below the range that Linux and macOS give to outgoing connections: while a killed server is down, no client of
# another test can be handed its port.
_FIRST, _LAST = 12_000, 31_999

_given: set[int] = set()


def free_port() -> int:
    """Find a port nobody listens on, and never give the same one twice in this process."""
    for _ in range(1000):
        port = random.randint(_FIRST, _LAST)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise RuntimeError("no free port found")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
