"""Ports that a server can have now and can have again after a restart, also while other test runs look for theirs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import cache

# Below the range that Linux and macOS give to outgoing connections: while a killed server is down, no client of
# another test can be handed its port.
_FIRST, _LAST = 12_000, 31_999

# Test processes side by side must not give the same port: each takes whole ranges, and holds a range by its first port.
_RANGE = 250


def free_port() -> int:
    """Find a port nobody listens on, and never give the same one twice in this process."""
    return next(_ports())


@cache
def _ports() -> Iterator[int]:
    return _search()


def _search() -> Iterator[int]:
    claims = []
    for first in range(_FIRST, _LAST, _RANGE):
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", first))
        except OSError:
            claim.close()
            continue
        claims.append(claim)
        for port in range(first + 1, first + _RANGE):
            if _is_free(port):
                yield port
    raise RuntimeError("no free port found")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
