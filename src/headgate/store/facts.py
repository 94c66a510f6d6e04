"""Reads version, memory policy and persistence of a server, and refuses one that would lose our data."""

from __future__ import annotations

from typing import Final

import msgspec

from headgate.kit.problems import StoreRefused
from headgate.store.client.address import StoreKind
from headgate.store.client.link import Link, Reply, ServerError, read_info

MOST_OFFSET_SECONDS: Final = 5.0
OLDEST: Final = {"valkey": (7, 2), "redis": (7, 0)}


class NodeFacts(msgspec.Struct, frozen=True):
    """The facts of one primary."""

    endpoint: str
    server: str
    version: tuple[int, ...]
    memory_policy: str
    used_memory: int
    most_memory: int
    append_only: bool
    append_only_ok: bool
    snapshots: bool | None
    replicas: int
    min_replicas: int | None
    replication_id: str
    clock_ms: int

    @property
    def durable(self) -> bool:
        """Tell whether a restart keeps the data, as far as can be known."""
        return self.append_only or self.snapshots is not False


def clock_words(offset: float) -> str | None:
    """Give a warning if this process's clock is too many seconds off the store's; None if it is not."""
    if abs(offset) <= MOST_OFFSET_SECONDS:
        return None
    side = "ahead of" if offset > 0 else "behind"
    return f"the clock here is {abs(offset):.1f} s {side} the store's; synchronise both with NTP"


async def read_facts(link: Link, limit: float) -> NodeFacts:
    """Read the facts of a node; those from CONFIG are None where CONFIG is denied."""
    info: dict[str, str] = {}
    for section in ("server", "memory", "persistence", "replication"):
        info |= read_info(await link.send(("INFO", section), limit))
    save = await _config(link, "save", limit)
    min_replicas = await _config(link, "min-replicas-to-write", limit)
    server = "valkey" if "valkey_version" in info else "redis"
    version = info.get(f"{server}_version", "0")
    return NodeFacts(
        endpoint=str(link.endpoint),
        server=server,
        version=tuple(int(part) for part in version.split(".") if part.isdigit()),
        memory_policy=info.get("maxmemory_policy", "noeviction"),
        used_memory=int(info.get("used_memory", 0)),
        most_memory=int(info.get("maxmemory", 0)),
        append_only=info.get("aof_enabled") == "1",
        append_only_ok=info.get("aof_last_write_status", "ok") == "ok",
        snapshots=None if save is None else bool(save),
        replicas=int(info.get("connected_slaves", 0)),
        min_replicas=None if min_replicas is None else int(min_replicas),
        replication_id=link.replication_id,
        clock_ms=link.clock.expect(link.time()),
    )


def refuse_lossy(nodes: list[NodeFacts], kind: StoreKind, *, volatile: bool) -> None:
    """Refuse a store that evicts our keys, is too old, or loses everything when it restarts."""
    for node in nodes:
        oldest = OLDEST[node.server]
        if node.version < oldest:
            raise StoreRefused(
                f"{node.endpoint} runs {node.server} {'.'.join(map(str, node.version))}; "
                f"Headgate needs {'.'.join(map(str, oldest))} or later."
            )
        if node.memory_policy.startswith("allkeys-"):
            raise StoreRefused(
                f"{node.endpoint} may evict any key (maxmemory-policy {node.memory_policy}), so it would lose people in "
                "line; set maxmemory-policy noeviction there."
            )
        if kind is StoreKind.STANDALONE and not node.durable and not node.replicas and not volatile:
            raise StoreRefused(
                f"{node.endpoint} keeps nothing on disk, so a restart would lose everything; set appendonly yes there, "
                "or accept it with HEADGATE_STORE_VOLATILE=true."
            )


async def _config(link: Link, name: str, limit: float) -> str | None:
    try:
        reply: Reply = await link.send(("CONFIG", "GET", name), limit)
    except ServerError:
        return None
    if isinstance(reply, list) and len(reply) == 2 and isinstance(reply[1], bytes):
        return reply[1].decode()
    return None
