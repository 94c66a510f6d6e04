"""The reader of one thing: it follows the thing's history for all its watchers and keeps the newest of it in memory."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Final, Generic, Protocol

from headgate.kit.logs import get_logger
from headgate.kit.problems import Closed, HeadgateError
from headgate.store.keys import Thing
from headgate.store.store import Store
from headgate.store.watch.notices import (
    Bookmark,
    Compacted,
    FeedChange,
    FeedPage,
    Item,
    Notice,
    Notices,
    Reset,
    Snapshot,
    Writer,
    position_after,
)

PAGE: Final = 500
KEPT: Final = 4096
KEPT_BYTES: Final = 16_777_216
TIMER_SECONDS: Final = 2.0
DEAF_TIMER_SECONDS: Final = 0.5
BOOKMARK_SECONDS: Final = 15.0
CATCHING_UP: Final = 8

log = get_logger()


class FeedSource(Protocol[Item]):
    """Where a reader reads."""

    async def read(self, thing: Thing, after: int, most: int = PAGE) -> FeedPage:
        """Read the changes later than a revision."""

    async def list(self, thing: Thing) -> Snapshot[Item]:
        """Give the present state."""

    def note_lag(self) -> None:
        """Hear that a reader has, or has not, heard from the store."""


class Subscription(Generic[Item]):
    """A stream at the head of history: where it is, how it is written, and what it waits on."""

    __slots__ = ("history", "position", "waiting", "write")

    def __init__(self, write: Writer[Item], position: int, history: int) -> None:
        self.write = write
        self.position = position
        self.history = history
        self.waiting: asyncio.Future[bytes]


class FeedReader(Generic[Item]):
    """Follows one thing for all its watchers."""

    def __init__(self, feed: FeedSource[Item], thing: Thing) -> None:
        self.watchers = 0
        # How often the history was replaced by another: a position of an earlier one means nothing.
        self.history = 0
        self._feed = feed
        self._thing = thing
        self._epoch = "0"
        self._position = 0
        self._since = 0  # positions from here on are served from memory
        self._kept: list[FeedChange] = []
        self._revisions: list[int] = []
        self._bytes = 0
        self._started = False
        self._over = False
        self._moved = asyncio.Event()
        self._look = asyncio.Event()
        self._heard_at = self._marked_at = monotonic()
        self._marks = 0
        self._rides: list[Subscription[Item]] = []
        self._loop = asyncio.get_running_loop()
        self._listing: asyncio.Task[Snapshot[Item]] | None = None
        self._catching_up = asyncio.Semaphore(CATCHING_UP)
        self._task: asyncio.Task[None] | None = None

    @property
    def silent_seconds(self) -> float:
        return monotonic() - self._heard_at

    def start(self, store: Store) -> None:
        self._store = store
        self._task = store.tasks.start(self._follow())
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Whoever still watches is told that nothing more will come."""
        self._over = True
        self._moved.set()
        for ride in self._rides:
            if not ride.waiting.done():
                ride.waiting.set_exception(Closed())

    async def opening(self, after: int | None) -> Notices[Item]:
        """Give the present state, or what has been missed since a revision, and the mark where that ends."""
        if after is None:
            snapshot = await self._list()
            yield snapshot
            yield Bookmark(snapshot.revision, snapshot.epoch)
        else:
            # A position outside what memory knows is the store's to judge: it may be from the future or long gone.
            async for notice in self._catch_up(after):
                yield notice

    async def reopening(self, position: int, history: int) -> Notices[Item]:
        """Give what is between a position and memory, or after a loss the state that is there now."""
        if self._lost(position, history):
            yield Reset(self._epoch, self._position)
            snapshot = await self._list()
            yield snapshot
            yield Bookmark(snapshot.revision, snapshot.epoch)
        else:
            async for notice in self._catch_up(position):
                yield notice

    async def watch(self, after: int | None) -> Notices[Item]:
        position, history = after or 0, self.history
        async for notice in self.opening(after):
            yield notice
            position = position_after(position, notice)
        marks = self._marks
        while True:
            moved = self._moved
            if self._over:
                raise Closed
            if not self._started:
                await moved.wait()
            elif self._lost(position, history) or position < self._since:
                reopening, history = self.reopening(position, history), self.history
                async for notice in reopening:
                    yield notice
                    position = position_after(position, notice)
            elif position < self._position:
                for change in self._later(position):
                    yield change
                    position = change.revision
                    if self._lost(position, history) or position < self._since:
                        break  # the reader went on while we waited for a slow consumer
            elif marks < self._marks:
                marks = self._marks
                yield Bookmark(position, self._epoch)
            else:
                await moved.wait()  # no timer of its own: the reader wakes all for their bookmarks

    async def ride(self, ride: Subscription[Item]) -> bytes | None:
        """Give what comes next after a position that memory knows, as bytes; None: it is to be opened again."""
        while True:
            if self._started:
                if self._lost(ride.position, ride.history) or ride.position < self._since:
                    return None
                if ride.position < self._position:
                    later = self._later(ride.position)
                    ride.position = self._position
                    if chunk := b"".join(ride.write(self._thing, change) for change in later):
                        return chunk
            if self._over:
                raise Closed
            ride.waiting = self._loop.create_future()
            self._rides.append(ride)
            if chunk := await ride.waiting:
                return chunk

    def _later(self, position: int) -> list[FeedChange]:
        return self._kept[bisect_right(self._revisions, position) :]

    def _carry(self, before: int | None, notices: Sequence[Notice[Item]]) -> None:
        """Give all who wait at the head, where it was before, the same bytes; whoever has nothing in them waits on."""
        rides, self._rides = self._rides, []
        written: dict[Writer[Item], bytes] = {}
        for ride in rides:
            if ride.waiting.done():
                continue  # its client has left
            if ride.position != before:
                ride.waiting.set_result(b"")  # it is elsewhere, or history was lost: it looks for itself
                continue
            chunk = written.get(ride.write)
            if chunk is None:
                chunk = written[ride.write] = b"".join(ride.write(self._thing, notice) for notice in notices)
            ride.position = self._position
            if chunk:
                ride.waiting.set_result(chunk)
            else:
                self._rides.append(ride)

    def _lost(self, position: int, history: int) -> bool:
        """Tell whether a position belongs to a history that is no more."""
        return history != self.history or (position > 0 and (self._epoch == "0" or position < int(self._epoch)))

    async def _catch_up(self, position: int) -> Notices[Item]:
        """Give what lies between a position and the reader's memory, straight from the store, and the mark where it ends."""
        while True:
            async with self._catching_up:
                page = await self._feed.read(self._thing, position)
            if page.what == "same":
                for change in page.changes:
                    yield change
                    position = change.revision
                if len(page.changes) < PAGE:
                    yield Bookmark(position, page.epoch)
                    return
                continue
            if page.what == "new" and position == 0:
                yield Bookmark(position, page.epoch)
                return
            yield Compacted(page.revision) if page.what == "compacted" else Reset(page.epoch, page.revision)
            snapshot = await self._list()
            yield snapshot
            yield Bookmark(snapshot.revision, snapshot.epoch)
            return

    async def _list(self) -> Snapshot[Item]:
        """List once for all who ask at the same moment."""
        if self._listing is None or self._listing.done():
            self._listing = self._store.tasks.start(self._settled_list())
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
                except Closed:
                    return
                except HeadgateError as error:
                    log.debug("cannot read on", thing=self._thing.tag, error=str(error))
                    self._feed.note_lag()
                    await asyncio.sleep(DEAF_TIMER_SECONDS)
                    continue
                if not more:
                    timer = TIMER_SECONDS if self._store.hints.connected else DEAF_TIMER_SECONDS
                    with suppress(TimeoutError):
                        async with asyncio.timeout(timer):
                            await self._look.wait()

    async def _step(self) -> bool:
        """Take one page; tell whether there is more."""
        first, before = not self._started, self._position
        restarted = first
        if first:
            # Only where history stands now: what came before, watchers get from the list or by catching up.
            page = await self._feed.read(self._thing, 0, 1)
            self._restart(page.epoch, page.revision)
            self._started = True
        else:
            page = await self._feed.read(self._thing, self._position)
            # Another epoch may be there at the same position too: the clock was set back, and then everything was lost.
            replaced = self._position > 0 and page.epoch != self._epoch
            if page.what == "same" and not replaced:
                self._epoch = page.epoch
                self._keep(page.changes)
            elif page.what != "new" or self._position:
                if replaced or page.revision < self._position:
                    self.history += 1
                self._restart(page.epoch, page.revision)
                restarted = True
        self._heard_at = monotonic()
        notices: list[Notice[Item]] = [] if restarted else [*page.changes]
        if self._heard_at - self._marked_at >= BOOKMARK_SECONDS:
            self._marked_at = self._heard_at
            self._marks += 1
            notices.append(Bookmark(self._position, self._epoch))
        if restarted or notices:
            self._moved.set()
            self._moved = asyncio.Event()
            self._carry(None if restarted else before, notices)
        self._feed.note_lag()
        return not first and len(page.changes) == PAGE

    def _restart(self, epoch: str, revision: int) -> None:
        self._epoch, self._position, self._since = epoch, revision, revision
        self._kept, self._revisions, self._bytes = [], [], 0

    def _keep(self, changes: list[FeedChange]) -> None:
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
