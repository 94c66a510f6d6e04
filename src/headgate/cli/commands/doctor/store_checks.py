"""What there is to find in a store, and what to do about each finding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from time import time

import msgspec

from headgate.cli.output import counted
from headgate.store.client.address import Address, StoreKind
from headgate.store.facts import MOST_OFFSET_SECONDS, OLDEST, NodeFacts

_SKEW_SECONDS = 2.0
_FULL_SHARE = 0.8
RIGHTS = "Give our user the rights that `headgate doctor --acl` prints."
LOOPBACK = ("127.", "::1", "localhost")


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """What was looked at, what was found, and what to do about it."""

    level: Severity
    check: str
    found: str
    advice: str = ""


def access(address: Address) -> Iterator[Finding]:
    """Look at how the store is reached."""
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
    """Look at one primary."""
    yield from version(node)
    yield from persistence(node, volatile=volatile)
    yield from memory(node)
    yield from replication(node, kind)


def version(node: NodeFacts) -> Iterator[Finding]:
    """Look at the server's version."""
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
    """Look at what a restart would lose."""
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
    """Look at what happens when memory is full."""
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
    """Look at the replicas."""
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
    """Look at the clocks of our own processes: those that report theirs have a name and how far it is ahead of the store's."""
    wrong = [(name, offset) for name, offset in offsets if abs(offset) > MOST_OFFSET_SECONDS]
    for name, offset in wrong:
        yield Finding(
            Severity.WARNING,
            "clock of a process",
            f"{name} is {abs(offset):.0f} s {'ahead of' if offset > 0 else 'behind'} the store",
            "Synchronise that machine with NTP; what is signed goes by the store's clock, but its log and cookies do not.",
        )
    if processes:
        told = f"{len(offsets)} of {counted(processes, 'process', 'processes')} {'reports its' if processes == 1 else 'report their'} clock"
        right = len(offsets) - len(wrong)
        within = (
            f", {'all' if right == len(offsets) else right} within {MOST_OFFSET_SECONDS:.0f} s of the store's"
            if offsets
            else ""
        )
        yield Finding(Severity.OK, "clocks of processes", f"{told}{within}")


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
