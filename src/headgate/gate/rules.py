"""What every gate knows by heart: which queues guard what, which of them are on, and whose passes were ended.

The list is kept in memory, so a request for something that nobody guards, or that is not busy, costs no store call, and an
outage of the store leaves the rules standing. A queue is read again when a hint says that it changed. Hints can be lost, so every
look also asks one list what was marked as changed since the last look, whatever the number of queues. In case a process died
between a change and its mark, each look also reads the one queue that was not read for longest.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from hashlib import blake2b
from time import monotonic
from typing import Final, cast

import msgspec

from headgate.gate.paths import literal_path, readings
from headgate.http.networks import Network, read_networks
from headgate.http.path_rules import PathRules
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError
from headgate.store import CHANGES_KEPT_SECONDS, Changes, Reply, Store, Thing, script
from headgate.waiting_room.policy import Policy
from headgate.waiting_room.problems import QueueUnknown
from headgate.waiting_room.queues import Queues

RULES = script("headgate.waiting_room", "gate_rules")

LOOK_SECONDS: Final = 0.7
LIST_SECONDS: Final = 60.0
MOST_REVOKED: Final = 10_000
MOST_MATCHES: Final = 4096
LONGEST_KEPT: Final = 512
MOST_NAME: Final = 128
MOST_CAPTURED: Final = 64
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_.:-]|\A\.\.?\Z")

log = get_logger()


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
        self, queue: Thing, guard: Guard, target: bytes, resource: str = "", *, counted: Match | None = None
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
        literal = literal_path(target) if target and guard.open_paths else None
        self.bypassed = literal is not None and guard.open_paths.match((literal,))
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
        self._changes = Changes("", "0", (), more=False)
        self._looked = self._listed = -float(CHANGES_KEPT_SECONDS)
        self._look = asyncio.Event()
        self._matches: dict[tuple[str, str, str, bytes], Match | None] = {}
        self._ordered: dict[str, list[Guard]] = {}
        self._base: float | None = None

    def now(self) -> float:
        """Give the store's time in seconds, as this process expects it."""
        if self._base is None:  # no queue has told it yet
            return self._store.now()
        return self._base + monotonic()

    def guard(self, thing: Thing) -> Guard | None:
        """Give what is known of a queue."""
        return self._guards.get(thing)

    def templates(self) -> list[Guard]:
        """Give the queues that switch themselves on."""
        return [guard for guard in self._guards.values() if guard.policy.auto is not None]

    def derived(self) -> list[Guard]:
        """Give the queues that were made from a template."""
        return [guard for guard in self._guards.values() if guard.policy.template]

    def match(self, namespace: str, resource: str, event_type: str, target: bytes) -> Match | None:
        """Find the queue that a request is about: by its resource if it was named, else by its path."""
        key = (namespace, resource, event_type, target)
        try:
            return self._matches[key]
        except KeyError:
            path, query, _ = target.partition(b"?")
            if query:
                return self.match(namespace, resource, event_type, path)
            found = self._find(namespace, resource, event_type, target)
            if len(target) <= LONGEST_KEPT:
                if len(self._matches) >= MOST_MATCHES:
                    self._matches.clear()
                self._matches[key] = found
            return found

    async def run(self) -> None:
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
        """Read what may have changed: new queues, those marked or hinted at, and the one not read for longest."""
        before, began = self._changes, monotonic()
        changes = await self._queues.index.changes(before.last)
        due = {*self._stale, *changes.things}
        lost = changes.history != before.history or began - self._looked > CHANGES_KEPT_SECONDS / 2
        if lost or began - self._listed > LIST_SECONDS:
            if lost:
                await self._queues.index.note_age()
            listed = set(await self._queues.index.list(None))
            # One that is not listed may be deleted, or lost by the store and written back by reading it.
            due |= listed ^ self._guards.keys() if not lost else listed | self._guards.keys()
            self._listed = began
        if self._guards:
            due.add(min(self._guards, key=lambda thing: self._guards[thing].read_at))
        self._stale |= due  # in case we do not get through with it
        await asyncio.gather(*(self.read(thing) for thing in due))
        self._changes, self._looked = changes, began
        if changes.more:
            self._look.set()

    async def read(self, thing: Thing) -> Guard | None:
        """Read one queue now."""
        self._stale.discard(thing)
        try:
            reply = await self._queues.with_restore(thing, lambda: self._store.run(RULES, thing, MOST_REVOKED))
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
            self._ordered.clear()
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
        self._ordered.clear()
        if (stack := self._listening.pop(thing, None)) is not None:
            stack.close()

    def _find(self, namespace: str, resource: str, event_type: str, target: bytes) -> Match | None:
        read = None if resource else readings(target)
        paths = read.paths if read is not None else ()
        guards = self._in_order(namespace)
        # An automatic queue that is off takes nothing away from another that is on: it only counts.
        off: Match | None = None
        for guard in guards:
            auto = guard.policy.auto
            if auto is not None:
                named = self._named(guard, resource, paths)
                if named and fnmatchcase(named, auto.resource) and auto.event_type in ("", event_type):
                    match = self._automatic(guard, named, event_type, target)
                    if match.active:
                        return match
                    off = off or match
            elif (resource and resource == guard.thing.name) or guard.paths.match(paths):
                return Match(guard.thing, guard, target, counted=off)
        unread = read is not None and not read.complete
        return (self._guarding_unread(guards, target) if unread else None) or off

    def _in_order(self, namespace: str) -> list[Guard]:
        """Give a namespace's queues in the order of `_order`; those made from a template guard what it says, not by themselves."""
        guards = self._ordered.get(namespace)
        if guards is None:
            own = (guard for guard in self._guards.values() if guard.thing.namespace == namespace)
            guards = sorted((guard for guard in own if not guard.policy.template), key=_order)
            if guards:
                self._ordered[namespace] = guards
        return guards

    def _guarding_unread(self, guards: Sequence[Guard], target: bytes) -> Match | None:
        """Find a queue for a path that cannot be read, and so may lead anywhere: the first that has paths and is on."""
        for guard in guards:
            auto = guard.policy.auto
            if not guard.paths:
                continue
            if auto is None:
                return Match(guard.thing, guard, target)
            if guard.on or guard.policy.queue_all:
                pattern = auto.resource.replace("*", "-", 1)
                return self._automatic(guard, min(guard.on, default=pattern), "", target)
        return None

    @staticmethod
    def _named(guard: Guard, resource: str, paths: Sequence[str]) -> str:
        """Name the resource: as the caller did, or by putting what the path's star stands for into the pattern."""
        auto = guard.policy.auto
        captured = None if resource or auto is None else guard.paths.capture(paths)
        if auto is None or captured is None:
            return resource
        return auto.resource.replace("*", _as_name(captured, MOST_CAPTURED), 1)

    def _automatic(self, guard: Guard, resource: str, event_type: str, target: bytes) -> Match:
        auto = guard.policy.auto
        if auto is not None and "*" not in auto.resource:
            return Match(guard.thing, guard, target, resource)
        name = _as_name(f"{resource}:{event_type}" if event_type else resource, MOST_NAME)
        return Match(self._store.thing("queue", guard.thing.namespace, name), guard, target, name)


def _as_name(text: str, most: int) -> str:
    """Make a name of any text. One that cannot be kept as it is ends in a digest, so that two texts never share a queue."""
    plain = _NOT_A_NAME.sub("-", text)
    if plain == text and len(text) <= most:
        return text
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()
    return f"{plain[: most - len(digest) - 1]}-{digest}"
