"""The gate's rules: a copy of all queues in memory, with what they guard, which are on, and which passes were revoked.

A request that no queue guards, or whose queue is off, costs no store call, and the rules stay in force during an outage
of the store. A queue is read again when a hint says that it changed. Hints can be lost, so each refresh also reads the
list of queues that were marked as changed since the last refresh. In case a process died between a change and its mark,
each refresh also reads the one queue that was not read for longest.
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

from headgate.gate.paths import interpretations, literal_path
from headgate.http.networks import Network, read_networks
from headgate.http.path_rules import PathRules
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError
from headgate.store import CHANGES_KEPT_SECONDS, Changes, Reply, Store, Thing, script
from headgate.waiting_room.policy import Policy
from headgate.waiting_room.problems import QueueUnknown
from headgate.waiting_room.queues import Queues

RULES = script("headgate.waiting_room", "gate_rules")

REFRESH_SECONDS: Final = 0.7
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
        self.bypass_paths = PathRules(self.policy.bypass.paths, literal=True)
        self.bypass_networks: list[Network] = read_networks(self.policy.bypass.addresses)

    def same_as(self, other: Guard) -> bool:
        """Tell whether policy, generation and active resources are the same."""
        return (self.version, self.generation, self.on) == (other.version, other.generation, other.on)


class Match:
    """The queue that guards a request, and, if it is automatic, the resource whose traffic is counted.

    A match is used by every request and changes only with its guard, so everything is computed here once.
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
        # The match whose traffic is counted: this one, or that of an automatic queue that is off.
        self.counted = self if automatic else counted
        self.active = not automatic or policy.queue_all or resource in guard.on
        self.derived = queue != guard.thing
        literal = literal_path(target) if target and guard.bypass_paths else None
        self.bypassed = literal is not None and guard.bypass_paths.match((literal,))
        self.bypasses = bool(guard.bypass_networks or policy.bypass.header)


def _order(guard: Guard) -> tuple[bool, bool, float, str]:
    """Sort automatic queues first, those of one resource before those of a pattern, then by the lowest threshold."""
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
        self._subscriptions: dict[Thing, ExitStack] = {}
        self._stale: set[Thing] = set()
        self._changes = Changes("", "0", (), more=False)
        self._refreshed_at = self._listed_at = -float(CHANGES_KEPT_SECONDS)
        self._refresh_now = asyncio.Event()
        self._matches: dict[tuple[str, str, str, bytes], Match | None] = {}
        self._ordered: dict[str, list[Guard]] = {}
        self._clock_offset: float | None = None

    def now(self) -> float:
        """Give the store's time in seconds, from the last reading and the monotonic clock."""
        if self._clock_offset is None:  # no queue was read yet
            return self._store.now()
        return self._clock_offset + monotonic()

    def guard(self, thing: Thing) -> Guard | None:
        """Give the known state of a queue."""
        return self._guards.get(thing)

    def templates(self) -> list[Guard]:
        """Give the queues that switch themselves on."""
        return [guard for guard in self._guards.values() if guard.policy.auto is not None]

    def derived(self) -> list[Guard]:
        """Give the queues that were made from a template."""
        return [guard for guard in self._guards.values() if guard.policy.template]

    def match(self, namespace: str, resource: str, event_type: str, target: bytes) -> Match | None:
        """Find the queue that guards a request: by the resource if it is named, else by the path."""
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
        """Refresh the rules for the life of the process."""
        failing = False
        while True:
            try:
                await self.refresh()
                failing = False
            except HeadgateError as error:
                if not failing:
                    log.warning("rules could not be read, the known ones stay in force", error=error.detail)
                failing = True
            try:
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._refresh_now.wait()
            except TimeoutError:
                pass
            self._refresh_now.clear()

    async def refresh(self) -> None:
        """Read the queues that may have changed: new, marked and hinted ones, and the one not read for longest."""
        before, began = self._changes, monotonic()
        changes = await self._queues.index.changes(before.last)
        due = {*self._stale, *changes.things}
        lost = changes.history != before.history or began - self._refreshed_at > CHANGES_KEPT_SECONDS / 2
        if lost or began - self._listed_at > LIST_SECONDS:
            if lost:
                await self._queues.index.note_age()
            listed = set(await self._queues.index.list(None))
            # A known queue that is not listed was deleted, or the store lost it and reading it restores it.
            due |= listed ^ self._guards.keys() if not lost else listed | self._guards.keys()
            self._listed_at = began
        if self._guards:
            due.add(min(self._guards, key=lambda thing: self._guards[thing].read_at))
        self._stale |= due  # in case a read fails
        await asyncio.gather(*(self.read(thing) for thing in due))
        self._changes, self._refreshed_at = changes, began
        if changes.more:
            self._refresh_now.set()

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
        self._clock_offset = guard.now_ms / 1000 - guard.read_at
        known = self._guards.get(thing)
        if known is not None and known.same_as(guard):
            # Nothing changed that matches depend on, so the cached matches stay valid.
            known.revoked, known.now_ms, known.read_at = guard.revoked, guard.now_ms, guard.read_at
            guard = known
        else:
            self._guards[thing] = guard
            self._matches.clear()
            self._ordered.clear()
        if thing not in self._subscriptions:
            stack = self._subscriptions[thing] = ExitStack()
            stack.enter_context(self._store.hints.listen(thing, "events", lambda hint: self._on_hint(thing, hint)))
        return guard

    def close(self) -> None:
        """Unsubscribe from all hints."""
        for stack in self._subscriptions.values():
            stack.close()
        self._subscriptions.clear()

    def _on_hint(self, thing: Thing, hint: str | None) -> None:
        if not (hint or "").startswith("changed"):
            self._stale.add(thing)
            self._refresh_now.set()

    def _forget(self, thing: Thing) -> None:
        self._guards.pop(thing, None)
        self._matches.clear()
        self._ordered.clear()
        if (stack := self._subscriptions.pop(thing, None)) is not None:
            stack.close()

    def _find(self, namespace: str, resource: str, event_type: str, target: bytes) -> Match | None:
        read = None if resource else interpretations(target)
        paths = read.paths if read is not None else ()
        guards = self._ordered_guards(namespace)
        # An automatic queue that is off only counts traffic; another queue may guard the request.
        off: Match | None = None
        for guard in guards:
            auto = guard.policy.auto
            if auto is not None:
                named = self._resource_name(guard, resource, paths)
                if named and fnmatchcase(named, auto.resource) and auto.event_type in ("", event_type):
                    match = self._match_automatic(guard, named, event_type, target)
                    if match.active:
                        return match
                    off = off or match
            elif (resource and resource == guard.thing.name) or guard.paths.match(paths):
                return Match(guard.thing, guard, target, counted=off)
        incomplete = read is not None and not read.complete
        return (self._match_incomplete(guards, target) if incomplete else None) or off

    def _ordered_guards(self, namespace: str) -> list[Guard]:
        """Give a namespace's queues in the order of `_order`, without those that were made from a template."""
        guards = self._ordered.get(namespace)
        if guards is None:
            own = (guard for guard in self._guards.values() if guard.thing.namespace == namespace)
            guards = sorted((guard for guard in own if not guard.policy.template), key=_order)
            if guards:
                self._ordered[namespace] = guards
        return guards

    def _match_incomplete(self, guards: Sequence[Guard], target: bytes) -> Match | None:
        """Find a queue for a path with unknown interpretations: the first that has paths and is on."""
        for guard in guards:
            auto = guard.policy.auto
            if not guard.paths:
                continue
            if auto is None:
                return Match(guard.thing, guard, target)
            if guard.on or guard.policy.queue_all:
                pattern = auto.resource.replace("*", "-", 1)
                return self._match_automatic(guard, min(guard.on, default=pattern), "", target)
        return None

    @staticmethod
    def _resource_name(guard: Guard, resource: str, paths: Sequence[str]) -> str:
        """Give the resource that the caller named, else the pattern with the part of the path that its star matched."""
        auto = guard.policy.auto
        captured = None if resource or auto is None else guard.paths.capture(paths)
        if auto is None or captured is None:
            return resource
        return auto.resource.replace("*", _as_name(captured, MOST_CAPTURED), 1)

    def _match_automatic(self, guard: Guard, resource: str, event_type: str, target: bytes) -> Match:
        auto = guard.policy.auto
        if auto is not None and "*" not in auto.resource:
            return Match(guard.thing, guard, target, resource)
        name = _as_name(f"{resource}:{event_type}" if event_type else resource, MOST_NAME)
        return Match(self._store.thing("queue", guard.thing.namespace, name), guard, target, name)


def _as_name(text: str, most: int) -> str:
    """Make a name from any text; a changed text gets a digest at its end, so that two texts never share a queue."""
    plain = _NOT_A_NAME.sub("-", text)
    if plain == text and len(text) <= most:
        return text
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()
    return f"{plain[: most - len(digest) - 1]}-{digest}"
