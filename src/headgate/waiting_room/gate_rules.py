"""What every gate knows by heart: which queues guard what, which of them are on, and whose passes were ended.

The list is kept in memory, so a request for something that nobody guards, or that is not busy, costs no store call, and an
outage of the store leaves the rules standing. It is read again on a hint, and by a timer that grows with the number of queues.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from time import monotonic, time
from typing import Final, cast

import msgspec
import structlog

from headgate.kit.problems import HeadgateError
from headgate.store import Reply, Store, Thing, script
from headgate.waiting_room.paths import Network, PathRules, read_networks
from headgate.waiting_room.policy import Policy
from headgate.waiting_room.problems import QueueUnknown
from headgate.waiting_room.queues import Queues

RULES = script("headgate.waiting_room", "gate_rules")

LOOK_SECONDS: Final = 0.7
QUEUES_A_SECOND: Final = 64
MOST_REVOKED: Final = 10_000
MOST_MATCHES: Final = 4096
LONGEST_KEPT: Final = 512
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_.:-]")

log = structlog.get_logger()


class Guard:
    """One queue as a gate sees it."""

    def __init__(self, thing: Thing, reply: Sequence[Reply]) -> None:
        json, version, generation, now, on, revoked = cast(
            "tuple[bytes, int, int, int, list[bytes], list[bytes]]", tuple(reply)
        )
        self.thing = thing
        self.policy = msgspec.json.decode(json, type=Policy)
        self.version = version
        self.generation = generation
        self.on = frozenset(resource.decode() for resource in on)
        self.revoked = {user.decode(): float(when) for user, when in zip(revoked[::2], revoked[1::2], strict=True)}
        self.now_ms = now
        self.read_at = monotonic()
        self.paths = PathRules(self.policy.paths)
        self.open_paths = PathRules(self.policy.bypass.paths, literal=True)
        self.open_networks: list[Network] = read_networks(self.policy.bypass.addresses)

    def same_as(self, other: Guard) -> bool:
        """Tell whether another reading found the same policy, the same generation and the same resources on."""
        return (self.version, self.generation, self.on) == (other.version, other.generation, other.on)


class Match:
    """What a request is about: the queue to stand in, and, where it is automatic, whose traffic counts and for what.

    It is asked for with every request and changes only with its guard, so everything about it is worked out here.
    """

    __slots__ = ("active", "bypassed", "bypasses", "counted", "derived", "guard", "queue", "resource", "tag")

    def __init__(
        self, queue: Thing, guard: Guard, target: str, resource: str = "", *, counted: Match | None = None
    ) -> None:
        policy = guard.policy
        automatic = policy.auto is not None
        self.queue = queue
        self.tag = queue.tag
        self.guard = guard
        self.resource = resource
        # Whose traffic this is: its own, or that of an automatic queue that is off while this one is on.
        self.counted = self if automatic else counted
        self.active = not automatic or policy.queue_all or resource in guard.on
        # Made from a template?
        self.derived = queue != guard.thing
        self.bypassed = bool(target) and guard.open_paths.match(target)
        self.bypasses = bool(guard.open_networks or policy.bypass.header)


def _order(guard: Guard) -> tuple[bool, bool, float, str]:
    """Put automatic queues first, those of one resource before those of a pattern; of several, the one that is on soonest."""
    auto = guard.policy.auto
    if auto is None:
        return True, False, 0.0, guard.thing.name
    return False, "*" in auto.resource, auto.threshold / auto.window_seconds, guard.thing.name


class GateRules:
    """The guards of all queues, kept current."""

    def __init__(self, store: Store, queues: Queues) -> None:
        self._store = store
        self._queues = queues
        self._guards: dict[Thing, Guard] = {}
        self._listening: dict[Thing, ExitStack] = {}
        self._stale: set[Thing] = set()
        self._look = asyncio.Event()
        self._matches: dict[tuple[str, str, str, str], Match | None] = {}
        self._base = time() - monotonic()

    def now(self) -> float:
        """Give the store's time in seconds, as this process expects it."""
        return self._base + monotonic()

    def guard(self, thing: Thing) -> Guard | None:
        """Give what is known of a queue."""
        return self._guards.get(thing)

    def templates(self) -> list[Guard]:
        """Give the queues that switch themselves on."""
        return [guard for guard in self._guards.values() if guard.policy.auto is not None]

    def match(self, namespace: str, resource: str, event_type: str, target: str) -> Match | None:
        """Find the queue that a request is about: by its resource if it was named, else by its path."""
        key = (namespace, resource, event_type, target)
        try:
            return self._matches[key]
        except KeyError:
            path, query, _ = target.partition("?")
            if query:
                return self.match(namespace, resource, event_type, path)
            found = self._find(namespace, resource, event_type, target)
            if len(target) <= LONGEST_KEPT:
                if len(self._matches) >= MOST_MATCHES:
                    self._matches.clear()
                self._matches[key] = found
            return found

    async def keep(self) -> None:
        """Follow the store for as long as the process lives."""
        away = False
        while True:
            try:
                await self.refresh()
                away = False
            except HeadgateError as error:
                if not away:
                    log.warning("rules could not be read, the known ones stay in force", error=error.detail)
                away = True
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._look.wait()
            except TimeoutError:
                pass
            self._look.clear()

    async def refresh(self) -> None:
        """Read what may have changed: new queues, those hinted at, and those not read for a while."""
        things = set(await self._queues.index.list(None))
        for gone in self._guards.keys() - things:
            self._forget(gone)
        oldest = monotonic() - max(1.0, len(things) / QUEUES_A_SECOND)
        due = [
            thing
            for thing in things
            if thing in self._stale or (known := self._guards.get(thing)) is None or known.read_at < oldest
        ]
        await asyncio.gather(*(self.read(thing) for thing in due))

    async def read(self, thing: Thing) -> Guard | None:
        """Read one queue now."""
        self._stale.discard(thing)
        try:
            reply = await self._queues.kept(thing, lambda: self._store.run(RULES, thing, MOST_REVOKED))
        except QueueUnknown:
            self._forget(thing)
            return None
        except HeadgateError:
            self._stale.add(thing)
            raise
        guard = Guard(thing, cast("list[Reply]", reply))
        self._base = guard.now_ms / 1000 - guard.read_at
        known = self._guards.get(thing)
        if known is not None and known.same_as(guard):
            # Nothing that a match was worked out from: all that are known stay good.
            known.revoked, known.now_ms, known.read_at = guard.revoked, guard.now_ms, guard.read_at
            guard = known
        else:
            self._guards[thing] = guard
            self._matches.clear()
        if thing not in self._listening:
            stack = self._listening[thing] = ExitStack()
            stack.enter_context(self._store.hints.listen(thing, "events", lambda words: self._on_hint(thing, words)))
        return guard

    def close(self) -> None:
        """Stop listening."""
        for stack in self._listening.values():
            stack.close()
        self._listening.clear()

    def _on_hint(self, thing: Thing, words: str | None) -> None:
        if not (words or "").startswith("changed"):
            self._stale.add(thing)
            self._look.set()

    def _forget(self, thing: Thing) -> None:
        self._guards.pop(thing, None)
        self._matches.clear()
        if (stack := self._listening.pop(thing, None)) is not None:
            stack.close()

    def _find(self, namespace: str, resource: str, event_type: str, target: str) -> Match | None:
        guards = sorted(
            (guard for guard in self._guards.values() if guard.thing.namespace == namespace),
            key=_order,
        )
        # An automatic queue that is off takes nothing away from another that is on: it only counts.
        off: Match | None = None
        for guard in guards:
            auto = guard.policy.auto
            if auto is not None:
                named = self._named(guard, resource, target)
                if named and fnmatchcase(named, auto.resource) and auto.event_type in ("", event_type):
                    match = self._automatic(guard, named, event_type, target)
                    if match.active:
                        return match
                    off = off or match
            elif off is not None and guard.thing == off.queue:
                continue  # its own queue, about to be removed
            elif (resource and resource == guard.thing.name) or (not resource and guard.paths.match(target)):
                return Match(guard.thing, guard, target, counted=off)
        return off

    @staticmethod
    def _named(guard: Guard, resource: str, target: str) -> str:
        """Name the resource: as the caller did, or by putting what the path's star stands for into the pattern."""
        auto = guard.policy.auto
        captured = None if resource or auto is None else guard.paths.capture(target)
        if auto is None or captured is None:
            return resource
        return auto.resource.replace("*", _NOT_A_NAME.sub("-", captured), 1)

    def _automatic(self, guard: Guard, resource: str, event_type: str, target: str) -> Match:
        auto = guard.policy.auto
        if auto is not None and "*" not in auto.resource:
            return Match(guard.thing, guard, target, resource)
        name = f"{resource}:{event_type}" if event_type else resource
        return Match(self._store.thing("queue", guard.thing.namespace, name[:128]), guard, target, name[:128])
