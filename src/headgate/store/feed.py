"""Watching a thing: its present state, then every change in order, once, without a gap, from any revision on.

The truth is a stream in the thing's slot whose entries name the one before them. One reader per thing and process follows
it, woken by hints and by a timer, and keeps the newest changes in memory. A watcher is only a position in that history: a
slow one costs nothing but its own lateness, and one that falls behind what memory holds reads on from the store. A
position whose history is gone is told so (`Compacted`, or `Reset` after a possible loss) and given the present state.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Final, Generic, TypeAlias, TypeVar, cast

import msgspec
import structlog

from headgate.kit.problems import HeadgateError
from headgate.store.keys import Thing
from headgate.store.link import Reply
from headgate.store.script import script
from headgate.store.store import Store

READ = script("headgate.store", "feed_read")
SETTLE = script("headgate.store", "feed_settle")

PAGE: Final = 500
KEPT: Final = 4096
KEPT_BYTES: Final = 16_777_216
TIMER_SECONDS: Final = 2.0
DEAF_TIMER_SECONDS: Final = 0.5
BOOKMARK_SECONDS: Final = 15.0
CATCHING_UP: Final = 8

log = structlog.get_logger()
Item = TypeVar("Item")


class Change(msgspec.Struct, frozen=True):
    """One change: what happened to which member, with the value after it."""

    revision: int
    kind: str
    member: str
    value: bytes


class Snapshot(msgspec.Struct, Generic[Item], frozen=True):
    """The whole state of a thing at one revision."""

    items: list[Item]
    revision: int
    epoch: str


class Bookmark(msgspec.Struct, frozen=True):
    """Everything up to this revision has been given."""

    revision: int


class Compacted(msgspec.Struct, frozen=True):
    """The changes after the watcher's position are no longer kept; the present state follows."""

    revision: int


class Reset(msgspec.Struct, frozen=True):
    """History may have been lost; the state in the new epoch follows."""

    epoch: str
    revision: int


Notice: TypeAlias = Snapshot[Item] | Change | Bookmark | Compacted | Reset
Lister: TypeAlias = Callable[[Thing], Awaitable[Snapshot[Item]]]


class Page(msgspec.Struct, frozen=True):
    """What the store said to a reader."""

    what: str
    epoch: str
    revision: int
    changes: list[Change]


class Feed(Generic[Item]):
    """All watches of one feature in this process."""

    def __init__(self, store: Store, lister: Lister[Item], *, lease_ms: int = 0) -> None:
        self._store = store
        self._lister = lister
        self._lease_ms = lease_ms
        self._readers: dict[Thing, _Reader[Item]] = {}

    async def read(self, thing: Thing, after: int, most: int = PAGE) -> Page:
        """Read the changes later than a revision; a thing whose history may be lost gets its new epoch first."""
        for _ in range(3):
            page = _page(await self._store.run(READ, thing, after, most))
            if page.what != "uncertain":
                break
            await self.settle(thing)
        return page

    async def settle(self, thing: Thing) -> None:
        """Make up a thing's mind about its epoch after a restart or failover."""
        await self._store.run(SETTLE, thing, self._lease_ms)

    async def watch(self, thing: Thing, after: int | None = None) -> AsyncGenerator[Notice[Item], None]:
        """Follow a thing from a revision on; without one, its present state comes first."""
        reader = self._readers.get(thing)
        if reader is None:
            reader = self._readers[thing] = _Reader(self, thing)
            reader.start(self._store)
        reader.watchers += 1
        try:
            async for notice in reader.watch(after):
                yield notice
        finally:
            reader.watchers -= 1
            if not reader.watchers:
                del self._readers[thing]
                await reader.stop()

    @property
    def watchers(self) -> int:
        """Count who watches, in this process."""
        return sum(reader.watchers for reader in self._readers.values())

    @property
    def readers(self) -> int:
        """Count the things that are followed, in this process."""
        return len(self._readers)

    @property
    def silent_seconds(self) -> float:
        """Tell how long ago the slowest reader last heard from the store."""
        return max((reader.silent_seconds for reader in self._readers.values()), default=0.0)

    async def list(self, thing: Thing) -> Snapshot[Item]:
        """Give the present state."""
        return await self._lister(thing)


class _Reader(Generic[Item]):
    """Follows one thing for all its watchers."""

    def __init__(self, feed: Feed[Item], thing: Thing) -> None:
        self.watchers = 0
        self._feed = feed
        self._thing = thing
        self._epoch = "0"
        self._position = 0
        self._since = 0  # positions from here on are served from memory
        self._kept: list[Change] = []
        self._revisions: list[int] = []
        self._bytes = 0
        self._started = False
        self._moved = asyncio.Event()
        self._look = asyncio.Event()
        self._heard_at = self._woken_at = monotonic()
        self._listing: asyncio.Task[Snapshot[Item]] | None = None
        self._catching_up = asyncio.Semaphore(CATCHING_UP)
        self._task: asyncio.Task[None] | None = None

    @property
    def silent_seconds(self) -> float:
        return monotonic() - self._heard_at

    def start(self, store: Store) -> None:
        self._store = store
        self._task = store.errands.start(self._follow())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def watch(self, after: int | None) -> AsyncGenerator[Notice[Item], None]:
        if after is None:
            snapshot = await self._list()
            yield snapshot
            position = snapshot.revision
        else:
            position = after
            # A position outside what memory knows is the store's to judge: it may be from the future or long gone.
            async for notice in self._catch_up(position):
                yield notice
                position = _after(position, notice)
        yield Bookmark(position)
        marked_at = monotonic()
        while True:
            moved = self._moved
            if not self._started:
                await moved.wait()
                continue
            if self._lost(position):
                yield Reset(self._epoch, self._position)
                snapshot = await self._list()
                yield snapshot
                position = snapshot.revision
                yield Bookmark(position)
            elif position < self._since:
                async for notice in self._catch_up(position):
                    yield notice
                    position = _after(position, notice)
                yield Bookmark(position)  # if that was a whole state, it is complete here
            elif position < self._position:
                for change in self._kept[bisect_right(self._revisions, position) :]:
                    yield change
                    position = change.revision
                    if self._lost(position) or position < self._since:
                        break  # the reader went on while we waited for a slow consumer
            elif monotonic() - marked_at >= BOOKMARK_SECONDS and self.silent_seconds < BOOKMARK_SECONDS:
                yield Bookmark(position)
                marked_at = monotonic()
            else:
                await moved.wait()  # no timer of its own: the reader wakes all for their bookmarks

    def _lost(self, position: int) -> bool:
        """Tell whether a position belongs to a history that is no more."""
        return position > 0 and (self._epoch == "0" or position < int(self._epoch))

    async def _catch_up(self, position: int) -> AsyncGenerator[Notice[Item], None]:
        """Give what lies between a position and the reader's memory, straight from the store."""
        while True:
            async with self._catching_up:
                page = await self._feed.read(self._thing, position)
            if page.what == "same":
                for change in page.changes:
                    yield change
                    position = change.revision
                if len(page.changes) < PAGE:
                    return
                continue
            if page.what == "new" and position == 0:
                return
            yield Compacted(page.revision) if page.what == "compacted" else Reset(page.epoch, page.revision)
            snapshot = await self._list()
            yield snapshot
            return

    async def _list(self) -> Snapshot[Item]:
        """List once for all who ask at the same moment."""
        if self._listing is None or self._listing.done():
            self._listing = self._store.errands.start(self._settled_list())
        return await asyncio.shield(self._listing)

    async def _settled_list(self) -> Snapshot[Item]:
        # One turn of the loop, so that a herd of watchers shares the list that is about to be read.
        await asyncio.sleep(0)
        return await self._feed.list(self._thing)

    async def _follow(self) -> None:
        """Read on after each hint, and now and then without one."""
        with self._store.hints.listen(self._thing, "changes", lambda _: self._look.set()):
            while True:
                self._look.clear()
                try:
                    more = await self._step()
                except HeadgateError as error:
                    log.debug("cannot read on", thing=self._thing.tag, error=str(error))
                    await asyncio.sleep(DEAF_TIMER_SECONDS)
                    continue
                if not more:
                    timer = TIMER_SECONDS if self._store.hints.connected else DEAF_TIMER_SECONDS
                    with suppress(TimeoutError):
                        async with asyncio.timeout(timer):
                            await self._look.wait()

    async def _step(self) -> bool:
        """Take one page; tell whether there is more."""
        first = not self._started
        if first:
            # Only where history stands now: what came before, watchers get from the list or by catching up.
            page = await self._feed.read(self._thing, 0, 1)
            self._restart(page.epoch, page.revision)
            self._started = True
        else:
            page = await self._feed.read(self._thing, self._position)
            if page.what == "same":
                self._epoch = page.epoch
                self._keep(page.changes)
            elif page.what != "new" or self._position:
                self._restart(page.epoch, page.revision)
        self._heard_at = monotonic()
        if first or page.changes or page.what != "same" or self._heard_at - self._woken_at >= BOOKMARK_SECONDS:
            self._woken_at = self._heard_at
            self._moved.set()
            self._moved = asyncio.Event()
        return not first and len(page.changes) == PAGE

    def _restart(self, epoch: str, revision: int) -> None:
        self._epoch, self._position, self._since = epoch, revision, revision
        self._kept, self._revisions, self._bytes = [], [], 0

    def _keep(self, changes: list[Change]) -> None:
        if not changes:
            return
        self._position = changes[-1].revision
        # New lists, not longer ones: a watcher may be half-way through the old.
        kept = self._kept + changes
        revisions = self._revisions + [change.revision for change in changes]
        self._bytes += sum(len(change.value) for change in changes)
        if len(kept) > KEPT or self._bytes > KEPT_BYTES:
            cut = max(1, len(kept) // 2)
            self._bytes = sum(len(change.value) for change in kept[cut:])
            self._since = revisions[cut - 1]
            kept, revisions = kept[cut:], revisions[cut:]
        self._kept, self._revisions = kept, revisions


def _after(position: int, notice: Notice[Item]) -> int:
    if isinstance(notice, Change | Snapshot):
        return notice.revision
    return position


def _page(reply: Reply) -> Page:
    what, epoch, revision, entries = cast("tuple[bytes, bytes, bytes, list[list[Reply]]]", reply)
    changes = []
    for id_, fields in entries:
        _, kind, _, member, _, value, *_ = cast("list[bytes]", fields)
        changes.append(Change(int(cast("bytes", id_).split(b"-")[0]), kind.decode(), member.decode(), value))
    return Page(what.decode(), epoch.decode(), int(revision), changes)
