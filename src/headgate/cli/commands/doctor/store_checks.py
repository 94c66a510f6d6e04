"""Checks a store for `headgate doctor`: access, version, persistence, memory, replication, clocks, latency, scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from time import perf_counter, time

from headgate.cli.commands.doctor.finding import LOOPBACK, RIGHTS, Finding, Severity
from headgate.cli.output import counted
from headgate.cli.processes.registration import PROCESS_TYPES, clock_offsets
from headgate.registry.registry import Registry
from headgate.registry.settings import RegistrySettings
from headgate.store import Store
from headgate.store.client.address import Address, StoreKind
from headgate.store.client.link import LinkLost, ServerError
from headgate.store.facts import MOST_OFFSET_SECONDS, OLDEST, NodeFacts
from headgate.store.scripts.contracts import operations
from headgate.store.scripts.script import Script

_SKEW_SECONDS = 2.0
_PINGS = 50
_SLOW_MS, _VERY_SLOW_MS = 10.0, 100.0
_FULL_SHARE = 0.8


def access(address: Address) -> Iterator[Finding]:
    """Check password and TLS."""
    remote = [str(node) for node in address.nodes if not node.host.startswith(LOOPBACK)]
    if remote and not address.password:
        yield Finding(
            Severity.PROBLEM,
            "password",
            f"{remote[0]} is reached without a password",
            "Set one there (`headgate doctor --acl` prints a user for each process) and put it into the URL.",
        )
    if remote and address.tls is None:
        yield Finding(
            Severity.WARNING,
            "TLS",
            f"{remote[0]} is reached without TLS",
            "Use valkeys:// unless the network between is yours alone.",
        )
    if not remote or (address.password and address.tls):
        yield Finding(Severity.OK, "access", "this machine only" if not remote else "password and TLS")


def of_node(node: NodeFacts, kind: StoreKind, *, volatile: bool) -> Iterator[Finding]:
    """Check one primary."""
    yield from version(node)
    yield from persistence(node, volatile=volatile)
    yield from memory(node)
    yield from replication(node, kind)


def version(node: NodeFacts) -> Iterator[Finding]:
    """Check the server's version."""
    version = ".".join(map(str, node.version))
    oldest = OLDEST[node.server]
    if node.version < oldest:
        wanted = ".".join(map(str, oldest))
        yield Finding(
            Severity.PROBLEM,
            "version",
            f"{node.endpoint} runs {node.server} {version}",
            f"Upgrade to {wanted} or later.",
        )
    else:
        yield Finding(Severity.OK, "version", f"{node.endpoint} runs {node.server} {version}")


def persistence(node: NodeFacts, *, volatile: bool) -> Iterator[Finding]:
    """Check what a restart would lose."""
    if node.append_only and not node.append_only_ok:
        yield Finding(
            Severity.PROBLEM,
            "persistence",
            f"{node.endpoint} failed to write its append-only file",
            "Free disk space there and look at the server's log.",
        )
    elif node.append_only:
        yield Finding(Severity.OK, "persistence", f"{node.endpoint} keeps an append-only file")
    elif not node.durable:
        level = Severity.WARNING if node.replicas or volatile else Severity.PROBLEM
        yield Finding(
            level,
            "persistence",
            f"{node.endpoint} keeps nothing on disk",
            "Set `appendonly yes` there: a restart loses everything.",
        )
    else:
        yield Finding(
            Severity.WARNING,
            "persistence",
            f"{node.endpoint} keeps {'snapshots only' if node.snapshots else 'no append-only file, as far as it says'}",
            "Set `appendonly yes` there: a crash loses what came after the last snapshot.",
        )


def memory(node: NodeFacts) -> Iterator[Finding]:
    """Check the memory policy, and how full the memory is."""
    policy = node.memory_policy
    if policy.startswith("allkeys-"):
        yield Finding(
            Severity.PROBLEM,
            "memory policy",
            f"{node.endpoint} may evict any key ({policy})",
            "Set `maxmemory-policy noeviction` there: it would lose people in line.",
        )
    elif policy.startswith("volatile-"):
        yield Finding(
            Severity.WARNING,
            "memory policy",
            f"{node.endpoint} evicts keys with a time to live ({policy})",
            "Nothing of ours that matters has one; `noeviction` is clearer.",
        )
    else:
        yield Finding(Severity.OK, "memory policy", f"{node.endpoint} evicts nothing ({policy})")
    if node.most_memory and node.used_memory > _FULL_SHARE * node.most_memory:
        full = node.used_memory >= node.most_memory
        yield Finding(
            Severity.PROBLEM if full else Severity.WARNING,
            "memory",
            f"{node.endpoint} uses {node.used_memory / node.most_memory:.0%} of its maxmemory",
            "Raise maxmemory or free memory: "
            + ("nobody can join now." if full else "when it is full, nobody can join."),
        )


def replication(node: NodeFacts, kind: StoreKind) -> Iterator[Finding]:
    """Check the replicas."""
    if not node.replicas:
        if kind is not StoreKind.STANDALONE:
            yield Finding(
                Severity.WARNING,
                "replication",
                f"{node.endpoint} has no replica",
                "Add one: if this node fails, its part of the data is away until it returns.",
            )
        return
    if node.min_replicas is None:
        yield Finding(
            Severity.OK,
            "replication",
            f"{node.endpoint} has {node.replicas} replicas; min-replicas-to-write cannot be read, CONFIG is denied",
        )
    elif node.min_replicas < 1:
        yield Finding(
            Severity.WARNING,
            "replication",
            f"{node.endpoint} has {node.replicas} replicas and takes writes without them",
            "Set `min-replicas-to-write 1`: a primary that was cut off goes on taking writes that are then discarded.",
        )
    else:
        yield Finding(Severity.OK, "replication", f"{node.endpoint} has {node.replicas} replicas and writes to them")


def process_clocks(offsets: Sequence[tuple[str, float]], processes: int) -> Iterator[Finding]:
    """Check the clocks of our processes; `offsets` has the name of each and how far it is ahead of the store's clock."""
    wrong = [(name, offset) for name, offset in offsets if abs(offset) > MOST_OFFSET_SECONDS]
    for name, offset in wrong:
        yield Finding(
            Severity.WARNING,
            "clock of a process",
            f"{name} is {abs(offset):.0f} s {'ahead of' if offset > 0 else 'behind'} the store",
            "Synchronise that machine with NTP; what is signed goes by the store's clock, but its log and cookies do not.",
        )
    if processes:
        reporting = f"{len(offsets)} of {counted(processes, 'process', 'processes')} {'reports its' if processes == 1 else 'report their'} clock"
        right = len(offsets) - len(wrong)
        within = (
            f", {'all' if right == len(offsets) else right} within {MOST_OFFSET_SECONDS:.0f} s of the store's"
            if offsets
            else ""
        )
        yield Finding(Severity.OK, "clocks of processes", f"{reporting}{within}")


def clocks(nodes: list[NodeFacts]) -> Iterator[Finding]:
    """Compare the store's clocks with this machine's."""
    here = time() * 1000
    worst = max(nodes, key=lambda node: abs(node.clock_ms - here))
    skew = (worst.clock_ms - here) / 1000
    if abs(skew) > _SKEW_SECONDS:
        yield Finding(
            Severity.WARNING,
            "clock",
            f"{worst.endpoint} is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine",
            "Synchronise both with NTP: opening times are kept by the store's clock.",
        )
    else:
        yield Finding(Severity.OK, "clock", f"within {abs(skew):.1f} s of this machine")


async def processes(store: Store) -> AsyncIterator[Finding]:
    """Check the clocks of our processes, as each reports its own in the registry."""
    registry = Registry(store, RegistrySettings())
    listings = [await registry.discover("default", type) for type in PROCESS_TYPES]
    instances = [each for found in listings for each in found.instances]
    for finding in process_clocks(clock_offsets(instances), len(instances)):
        yield finding


async def topology(store: Store) -> AsyncIterator[Finding]:
    """Check the topology, and in a cluster whether all slots are served."""
    primaries = await store.route.primaries()
    kind = store.address.kind
    if kind is not StoreKind.CLUSTER:
        yield Finding(Severity.OK, "topology", f"{kind}, primary {primaries[0].endpoint}")
        return
    try:
        reply = await primaries[0].send(("CLUSTER", "INFO"), store.deadline())
    except (ServerError, LinkLost) as error:
        yield Finding(
            Severity.OK, "topology", f"cluster with {len(primaries)} primaries; its state is not told ({error})"
        )
        return
    info = dict(
        line.split(":", 1) for line in bytes(reply if isinstance(reply, bytes) else b"").decode().split() if ":" in line
    )
    if info.get("cluster_state") == "ok":
        yield Finding(Severity.OK, "topology", f"cluster with {len(primaries)} primaries, all slots served")
    else:
        yield Finding(
            Severity.PROBLEM,
            "topology",
            f"the cluster's state is {info.get('cluster_state')}: {info.get('cluster_slots_ok')} of 16384 slots are served",
            "Bring back or replace the nodes that failed, then run `valkey-cli --cluster check`.",
        )


async def latency(store: Store) -> AsyncIterator[Finding]:
    """Measure the round trip to the store."""
    taken: list[float] = []
    for _ in range(_PINGS):
        started = perf_counter()
        await store.ping()
        taken.append((perf_counter() - started) * 1000)
    taken.sort()
    half, most = taken[len(taken) // 2], taken[int(len(taken) * 0.99)]
    words = f"{half:.1f} ms, 99 of 100 within {most:.1f} ms"
    if half > _SLOW_MS or most > _VERY_SLOW_MS:
        yield Finding(
            Severity.WARNING,
            "latency",
            words,
            "Put the store nearer, or look for slow commands there (`SLOWLOG GET`) and a busy disk.",
        )
    else:
        yield Finding(Severity.OK, "latency", words)


async def scripts(store: Store) -> AsyncIterator[Finding]:
    """Load every script on each primary."""
    loaded = [Script(path) for path in operations()]
    for link in await store.route.primaries():
        limit = asyncio.get_running_loop().time() + 10
        for script in loaded:
            try:
                await link.send(("SCRIPT", "LOAD", script.source), limit)
            except (ServerError, LinkLost) as error:
                yield Finding(
                    Severity.PROBLEM,
                    "scripts",
                    f"{link.endpoint} does not take {script.name}.lua: {error}",
                    RIGHTS,
                )
                return
    yield Finding(Severity.OK, "scripts", f"all {len(loaded)} are accepted")
