"""Checks the data of a store for `headgate doctor`: queues, services, locks and upstreams whose parts do not agree."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from headgate.cli.commands.doctor.finding import RIGHTS, Finding, Severity
from headgate.cli.commands.doctor.upstream_keys import find_keys, left_over
from headgate.cli.output import counted
from headgate.kit.problems import HeadgateError
from headgate.locks.invariants import inspect as inspect_lock
from headgate.registry.invariants import inspect as inspect_service
from headgate.relay.invariants import inspect as inspect_upstream
from headgate.store import Index, Store, Thing
from headgate.waiting_room.invariants import Inspection
from headgate.waiting_room.invariants import inspect as inspect_queue

MOST_THINGS: Final = 1000
_QUEUE_STEP: Final = (
    "Report it with `headgate doctor --json`. `headgate queue reset` puts it right and sends everybody in line back to the "
    "end; seats of servers are put right by their next report."
)
_SERVICE_STEP: Final = "Report it with `headgate doctor --json`. `headgate service remove` takes the instances out; those that live register again."
_LOCK_STEP: Final = "Report it with `headgate doctor --json`. Once nobody waits, the lock is forgotten and begins anew."
_UPSTREAM_STEP: Final = (
    "Report it with `headgate doctor --json`. If it stays, delete the keys {keys} and write the policy again with `headgate "
    "relay upstream set`: nothing is sent for one window, and jobs that wait there are lost."
)

Inspect = Callable[[Thing], Awaitable[Inspection]]


def queues(store: Store) -> AsyncIterator[Finding]:
    """Check queues: sums of seats, sets that must agree, and orphans."""

    async def inspect(thing: Thing) -> Inspection:
        return await inspect_queue(store, thing)

    return _look(store, "queue", "queues", inspect, _QUEUE_STEP)


def services(store: Store) -> AsyncIterator[Finding]:
    """Check services: as many records as states and deadlines."""

    async def inspect(thing: Thing) -> Inspection:
        return Inspection(*await inspect_service(store, thing), complete=True)

    return _look(store, "service", "services", inspect, _SERVICE_STEP)


def locks(store: Store) -> AsyncIterator[Finding]:
    """Check locks: each waiter has a record and a process."""

    async def inspect(thing: Thing) -> Inspection:
        return Inspection(*await inspect_lock(store, thing), complete=True)

    return _look(store, "lock", "locks", inspect, _LOCK_STEP)


async def upstreams(store: Store) -> AsyncIterator[Finding]:
    """Check upstreams: lines and their waiters, permits, jobs, and keys that no list names."""
    keys = await find_keys(store)

    async def inspect(thing: Thing) -> Inspection:
        return Inspection(*await inspect_upstream(store, thing, keys.users(thing)))

    async for finding in _look(store, "upstream", "upstreams", inspect, _UPSTREAM_STEP):
        yield finding
    async for finding in left_over(store, keys):
        yield finding


async def _look(store: Store, part: str, check: str, inspect: Inspect, advice: str) -> AsyncIterator[Finding]:
    """Inspect all things of a part, up to a limit, one after the other."""
    things = await Index(store, part).list(None)
    members, broken, partly = 0, False, len(things) > MOST_THINGS
    for thing in things[:MOST_THINGS]:
        try:
            found = await inspect(thing)
        except HeadgateError as error:
            yield Finding(Severity.WARNING, check, f"{thing.tag} could not be looked at: {error.detail}", RIGHTS)
            return
        members += found.members
        partly = partly or not found.complete
        if found.contradictions:
            broken = True
            more = f" (and {len(found.contradictions) - 1} more)" if len(found.contradictions) > 1 else ""
            words = f"{thing.tag} contradicts itself: {found.contradictions[0]}{more}"
            yield Finding(Severity.PROBLEM, check, words, advice.format(keys=f"{thing.base}*"))
    if not broken:
        checked = f"{counted(len(things[:MOST_THINGS]), part)} with {counted(members, 'member')}"
        checked += ", not all of them" if partly else ""
        yield Finding(Severity.OK, check, f"no contradiction in {checked}")
