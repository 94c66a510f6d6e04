"""The journal of a type: the order in which its groups changed, so that one number is the cursor of a watch of all.

Each group is a service in a slot of its own with its own revisions, and a cursor that named them all would grow with
their number. So every process that watches a type records in one stream, the journal, that a group moved from one
revision to another; the script ignores a move that is already recorded. A watcher reads the journal and then those
changes of that group. Its cursor is a revision of the journal, and inside an entry also one of the group.

Processes learn that a group has moved from hints, which carry the revision, and by polling a few groups each second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

import msgspec

from headgate.kit.ids import thing_name
from headgate.kit.logs import get_logger
from headgate.kit.problems import Closed, HeadgateError
from headgate.registry.model import Instance
from headgate.registry.service_state import ServiceState
from headgate.store import Thing, script
from headgate.store.watch.feed import Compacted, Feed, FeedEvent, Reset, Snapshot
from headgate.store.watch.follower import PAGE

if TYPE_CHECKING:
    from headgate.registry.registry import Registry

JOURNAL: Final = script(__package__, "journal")
MOST_PER_CALL: Final = 500
READ_AT_ONCE: Final = 32
TICK_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 0.5
POLLED_PER_TICK: Final = 100
KEPT_READS: Final = 1024
REFRESH_SECONDS: Final = 600.0
SHORTEST_KEEP_MS: Final = 7_200_000

log = get_logger()


class TypeJournals:
    """The journals of all types that are watched in this process."""

    def __init__(self, registry: Registry) -> None:
        self.feed: Feed[None] = Feed(registry.store, self._snapshot)
        self._registry = registry
        self._open: dict[Thing, TypeJournal] = {}

    def thing(self, namespace: str, type_: str) -> Thing:
        """Give the address of a type's journal in the store."""
        return self._registry.store.thing("type", namespace, thing_name(type_, "type"))

    @asynccontextmanager
    async def open(self, namespace: str, type_: str) -> AsyncIterator[TypeJournal]:
        """Keep a type's journal up to date while the block runs."""
        thing = self.thing(namespace, type_)
        journal = self._open.get(thing)
        if journal is None:
            journal = self._open[thing] = TypeJournal(self._registry, thing)
            journal.start()
        journal.watchers += 1
        try:
            yield journal
        finally:
            journal.watchers -= 1
            if not journal.watchers:
                del self._open[thing]
                await journal.stop()

    async def position(self, namespace: str, type_: str) -> int:
        """Give the journal's revision now."""
        return (await self.feed.read(self.thing(namespace, type_), 0, 1)).revision

    async def cursor_of(self, namespace: str, type_: str, revisions: Mapping[str, int], before: int) -> int:
        """Give a position from which a watch sends every change after these revisions of the groups.

        `before` is the position before the groups were read; from there nothing is missed, but changes may be sent
        twice.
        """
        thing = self.thing(namespace, type_)
        for _ in range(2):
            positions = [await self._record(thing, batch) for batch in _batches(revisions.items())]
            if any(further for _, further in positions):
                return before
            if len({position for position, _ in positions}) == 1:
                return positions[0][0]
        return before

    async def record(self, thing: Thing, revisions: Mapping[str, int]) -> int:
        """Record the revisions of groups; return the journal's revision after that."""
        position = 0
        for batch in _batches(revisions.items()):
            position, _ = await self._record(thing, batch)
        return position

    async def _record(self, thing: Thing, batch: list[tuple[str, int]]) -> tuple[int, int]:
        settings = self._registry.settings
        keep_ms = max(SHORTEST_KEEP_MS, int(settings.history_seconds * 2000))
        words = [word for pair in batch for word in pair]
        position, further = cast(
            "tuple[bytes, int]", await self._registry.store.run(JOURNAL, thing, settings.history, keep_ms, *words)
        )
        return int(position), further

    async def _snapshot(self, thing: Thing) -> Snapshot[None]:
        page = await self.feed.read(thing, 0, 1)
        return Snapshot([], page.revision, page.epoch)


class JournalState(msgspec.Struct, frozen=True):
    """The groups of a type, and the journal's revision at which all of them are recorded."""

    states: dict[str, ServiceState]
    complete_at: int


class TypeJournal:
    """Records the changes of the groups of one type, and reads them for all watchers."""

    def __init__(self, registry: Registry, thing: Thing) -> None:
        self.watchers = 0
        self.thing = thing
        self._registry = registry
        self._groups: dict[str, Thing] = {}
        self._subscriptions: dict[str, ExitStack] = {}
        self._recorded: dict[str, int] = {}
        self._dirty: dict[str, int | None] = {}
        self._next_poll = 0
        self._recorded_at = monotonic()
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        self._caught_up = False
        self._reads: dict[tuple[str, int, int], asyncio.Task[list[FeedEvent[Instance]]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._next_state: asyncio.Task[JournalState] | None = None
        self._state_in_flight: asyncio.Task[JournalState] | None = None

    def start(self) -> None:
        """Start to follow the groups."""
        self._task = self._registry.store.tasks.start(self._follow())

    async def stop(self) -> None:
        """Stop following the groups."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def record(self, revisions: Mapping[str, int]) -> int:
        """Record the revisions of groups; return the journal's revision after that."""
        return await self._registry.journals.record(self.thing, revisions)

    async def state(self) -> JournalState:
        """Read the state of all groups; watchers that start together share one read."""
        if self._next_state is None:
            self._next_state = self._registry.store.tasks.start(self._read_state())
        return await asyncio.shield(self._next_state)

    async def _read_state(self) -> JournalState:
        before, task = self._state_in_flight, self._next_state
        if before is not None:
            await asyncio.wait([before])  # that read may have started before this caller's position
        else:
            await asyncio.sleep(0)
        self._next_state, self._state_in_flight = None, task
        try:
            states = await self._registry.read_groups(self.thing.namespace, self.thing.name)
            states = {group: state for group, state in states.items() if state.revision}
            return JournalState(states, await self.record({group: state.revision for group, state in states.items()}))
        finally:
            if self._state_in_flight is task:
                self._state_in_flight = None

    async def catch_up(self) -> None:
        """Record the changes that happened while no watcher of this process was there."""
        if not self._caught_up:
            await self._refresh()

    async def read(self, group: str, after: int, until: int) -> list[FeedEvent[Instance]]:
        """Give a group's changes between two revisions, or its state if they were trimmed; watchers share the read."""
        key = (group, after, until)
        task = self._reads.get(key)
        if task is None:
            task = self._reads[key] = self._registry.store.tasks.start(self._read(*key))
            task.add_done_callback(partial(self._end_read, key))
            for old in list(islice(self._reads, max(0, len(self._reads) - KEPT_READS))):
                del self._reads[old]
        return await asyncio.shield(task)

    def _end_read(self, key: tuple[str, int, int], task: asyncio.Task[list[FeedEvent[Instance]]]) -> None:
        """Drop a failed read, so that the next watcher reads again."""
        if (task.cancelled() or task.exception() is not None) and self._reads.get(key) is task:
            del self._reads[key]

    async def _read(self, group: str, after: int, until: int) -> list[FeedEvent[Instance]]:
        thing = self._service(group)
        found: list[FeedEvent[Instance]] = []
        while True:
            page = await self._registry.feed.read(thing, after)
            if page.outcome != "same":
                state = await self._registry.read_service(thing)
                gone = Compacted(page.revision) if page.outcome == "compacted" else Reset(page.epoch, page.revision)
                return [*found, gone, Snapshot(state.instances, state.revision, state.epoch)]
            found.extend(change for change in page.changes if change.revision <= until)
            if len(page.changes) < PAGE or page.changes[-1].revision >= until:
                return found
            after = page.changes[-1].revision

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                tick = loop.time() + TICK_SECONDS
                try:
                    await self._refresh()
                    while await self._wait_for_hint(tick):
                        async with self._turn:
                            await self._record_dirty()
                except Closed:
                    return
                except HeadgateError as error:
                    log.debug("cannot follow a type", thing=self.thing.tag, error=str(error))
                    await asyncio.sleep(PAUSE_SECONDS)
        finally:
            for subscription in self._subscriptions.values():
                subscription.close()

    async def _refresh(self) -> None:
        async with self._turn:
            await self._find_groups()
            await self._record_dirty()
            self._caught_up = True

    async def _wait_for_hint(self, until: float) -> bool:
        """Wait for a hint until a time; False on timeout."""
        try:
            async with asyncio.timeout_at(until):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    async def _find_groups(self) -> None:
        """Subscribe to new groups, and choose groups to poll in case a hint was lost."""
        store = self._registry.store
        listed = await self._registry.group_cache.get(self.thing.namespace, self.thing.name)
        for group, thing in listed.items():
            if group not in self._groups:
                self._groups[group] = thing
                self._dirty[group] = None
                stack = self._subscriptions[group] = ExitStack()
                stack.enter_context(store.hints.listen(thing, "changes", partial(self._on_hint, group)))
        names = list(self._groups)
        if not store.hints.connected:
            self._dirty.update(dict.fromkeys(names))
            return
        first = self._next_poll if self._next_poll < len(names) else 0
        self._next_poll = first + POLLED_PER_TICK
        self._dirty.update(dict.fromkeys(names[first : self._next_poll]))
        self._dirty.update(dict.fromkeys(self._groups.keys() - listed.keys()))

    def _on_hint(self, group: str, words: str | None) -> None:
        before = self._dirty.get(group, 0)
        readable = words is not None and words.isdecimal()
        # None means that the group's revision must be read.
        self._dirty[group] = max(int(words or 0), before) if readable and before is not None else None
        self._wake.set()

    async def _record_dirty(self) -> None:
        dirty, self._dirty = self._dirty, {}
        try:
            turn = asyncio.Semaphore(READ_AT_ONCE)

            async def head(group: str, hinted: int | None) -> int:
                if hinted is not None:
                    return hinted
                async with turn:
                    return (
                        await self._registry.feed.read(self._service(group), self._recorded.get(group, 0), 1)
                    ).revision

            heads = await asyncio.gather(*(head(*each) for each in dirty.items()))
            moved = {
                group: revision
                for group, revision in zip(dirty, heads, strict=True)
                if revision != self._recorded.get(group)
            }
            if moved or monotonic() - self._recorded_at > REFRESH_SECONDS:
                await self.record(moved)  # an empty call keeps the journal from expiring
                self._recorded_at = monotonic()
        except HeadgateError:
            self._dirty = dirty | self._dirty
            raise
        for group, revision in moved.items():
            self._recorded[group] = revision
            if not revision:  # the group is empty and was deleted
                self._recorded.pop(group)
                self._groups.pop(group, None)
                self._subscriptions.pop(group, ExitStack()).close()

    def _service(self, group: str) -> Thing:
        return self._registry.service(self.thing.namespace, self.thing.name, group)


def _batches(revisions: Iterable[tuple[str, int]]) -> list[list[tuple[str, int]]]:
    rest = iter(sorted(revisions))
    batches = []
    while batch := list(islice(rest, MOST_PER_CALL)):
        batches.append(batch)
    return batches or [[]]
