"""Real stores for tests: started on free ports, broken on command, always cleaned up."""

from __future__ import annotations

from collections.abc import Callable

from tests.topology.certificates import Authority
from tests.topology.cluster import Cluster
from tests.topology.faketime import FakeClock
from tests.topology.kind import Topology
from tests.topology.node import HOST, Node
from tests.topology.ports import free_port
from tests.topology.proxy import FaultyProxy
from tests.topology.reaper import reaper
from tests.topology.replicated import Replicated
from tests.topology.sentinel import Sentinel
from tests.topology.standalone import Redis, Standalone, TlsNode
from tests.topology.stopwatch import Stopwatch, watched_machine
from tests.topology.waiting import NotInTime, eventually, wait_until

KINDS: dict[str, Callable[[], Topology]] = {
    "standalone": Standalone,
    "cluster": Cluster,
    "sentinel": Sentinel,
    "redis": Redis,
}

__all__ = [
    "HOST",
    "KINDS",
    "Authority",
    "Cluster",
    "FakeClock",
    "FaultyProxy",
    "Node",
    "NotInTime",
    "Redis",
    "Replicated",
    "Sentinel",
    "Standalone",
    "Stopwatch",
    "TlsNode",
    "Topology",
    "eventually",
    "free_port",
    "reaper",
    "wait_until",
    "watched_machine",
]
