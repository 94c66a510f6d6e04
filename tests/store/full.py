"""A store whose memory is full, for as long as a block lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.topology import Topology


@contextmanager
def full(server: Topology) -> Iterator[None]:
    """Set the most memory of every server below what it uses, and evict nothing."""
    nodes = [node for node in server.nodes if not node.sentinel]
    for node in nodes:
        node.command("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", 1)
    try:
        yield
    finally:
        for node in nodes:
            node.command("CONFIG", "SET", "maxmemory", 0)
