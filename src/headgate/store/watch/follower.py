"""Follows the history of one thing for all its subscribers, and keeps the newest changes in memory."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic

from headgate.kit.logs import get_logger
from headgate.kit.problems import Closed, HeadgateError
from headgate.store.keys import Thing
from headgate.store.store import Store
from headgate.store.watch.events import (
    Bookmark,
    Compacted,
    Encode,
    FeedChange,
    FeedEvent,
    FeedEvents,
    Item,
    Reset,
    Snapshot,
    revision_after,
)

if TYPE_CHECKING:
    from headgate.store.watch.feed import Feed

PAGE: Final = 500
KEPT: Final = 4096
KEPT_BYTES: Final = 16_777_216
TIMER_SECONDS: Final = 2.0
UNHINTED_TIMER_SECONDS: Final = 0.5
BOOKMARK_SECONDS: Final = 15.0
CATCHING_UP: Final = 8
DOUBT_SECONDS: Final = 60.0
OUTAGE_SECONDS: Final = 1.0

log = get_logger()


class Subscription(Generic[Item]):
    """A subscriber of a broadcast: its revision, its encoder, and the future of its next bytes."""

    __slots__ = ("history", "position", "waiting", "write")

    def __init__(self, write: Encode[Item], position: int, history: int) -> None:
        self.write = write
        self.position = position
        self.history = history
        self.waiting: asyncio.Future[bytes]


class Follower(Generic[Item]):
    """Follows one thing for all its subscribers.

    For DOUBT_SECONDS after a loss of history, members write themselves anew, and subscribers drop those that do not. If the
    store cannot be read or takes no writes meanwhile (a primary without its replicas answers reads), no member can: the
    follower then sends nothing until a write is taken, and reports the loss again.
    """

    def __init__(self, feed: Feed[Item], thing: Thing) -> None:
        self.subscribers = 0
        # Counts the histories; a revision of an earlier history means nothing in this one.
        self.history = 0
        self._feed = feed
        self._thing = thing
        self._epoch = "0"
        self._position = 0
        self._since = 0  # changes after this revision are in memory
        self._kept: list[FeedChange] = []
        self._revisions: list[int] = []
        self._bytes = 0
        self._started = False
        self._ended = False
        self._changed = asyncio.Event()
        self._hint = asyncio.Event()
        self._read_at = self._bookmarked_at = monotonic()
        self._bookmarks = 0
        self._at_head: list[Subscription[Item]] = []
        self._loop = asyncio.get_running_loop()
        self._snapshot: asyncio.Task[Snapshot[Item]] | None = None
        self._catching_up = asyncio.Semaphore(CATCHING_UP)
        self._task: asyncio.Task[None] | None = None
        self._reported_at = -DOUBT_SECONDS  # when a loss of history was last reported
        self._interrupted = False

    @property
    def _in_doubt(self) -> bool:
        return monotonic() < self._reported_at + DOUBT_SECONDS

    @property
    def silent_seconds(self) -> float:
        return monotonic() - self._read_at

    def start(self, store: Store) -> None:
        self._store = store
        self._task = store.tasks.start(self._follow())
        self._task.add_done_callback(self._on_end)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Raise Closed in all subscribers."""
        self._ended = True
        self._changed.set()
        for subscription in self._at_head:
            if not subscription.waiting.done():
                subscription.waiting.set_exception(Closed())

    async def begin(self, after: int | None) -> FeedEvents[Item]:
        """Give the snapshot, or the changes since a revision, and then a bookmark."""
        if after is None:
            snapshot = await self._share_snapshot()
            yield snapshot
            yield Bookmark(snapshot.revision, snapshot.epoch)
        else:
            # From the store and not from memory: the revision may be of another history, or compacted.
            async for event in self._catch_up(after):
                yield event

    async def resume(self, position: int, history: int) -> FeedEvents[Item]:
        """Give the changes between a revision and memory or, after a loss of history, the snapshot; then a bookmark."""
        if self._lost(position, history):
            yield Reset(self._epoch, self._position)
            snapshot = await self._share_snapshot()
            yield snapshot
            yield Bookmark(snapshot.revision, snapshot.epoch)
        else:
            async for event in self._catch_up(position):
                yield event

    async def watch(self, after: int | None) -> FeedEvents[Item]:
        position, history = after or 0, self.history
        async for event in self.begin(after):
            yield event
            position = revision_after(position, event)
        bookmarks = self._bookmarks
        while True:
            changed = self._changed
            if self._ended:
                raise Closed
            if not self._started:
                await changed.wait()
            elif self._lost(position, history) or position < self._since:
                missed, history = self.resume(position, history), self.history
                async for event in missed:
                    yield event
                    position = revision_after(position, event)
            elif position < self._position:
                for change in self._later(position):
                    yield change
                    position = change.revision
                    if self._lost(position, history) or position < self._since:
                        break  # the history moved on while a slow consumer was awaited
            elif bookmarks < self._bookmarks:
                bookmarks = self._bookmarks
                yield Bookmark(position, self._epoch)
            else:
                await changed.wait()  # the follower also wakes all subscribers for bookmarks

    async def next_chunk(self, subscription: Subscription[Item]) -> bytes | None:
        """Wait for the next bytes after a revision in memory; None: continue with `resume`."""
        while True:
            if self._started:
                if self._lost(subscription.position, subscription.history) or subscription.position < self._since:
                    return None
                if subscription.position < self._position:
                    later = self._later(subscription.position)
                    subscription.position = self._position
                    if chunk := b"".join(subscription.write(self._thing, change) for change in later):
                        return chunk
            if self._ended:
                raise Closed
            subscription.waiting = self._loop.create_future()
            self._at_head.append(subscription)
            if chunk := await subscription.waiting:
                return chunk

    def _later(self, position: int) -> list[FeedChange]:
        return self._kept[bisect_right(self._revisions, position) :]

    def _broadcast(self, before: int | None, events: Sequence[FeedEvent[Item]]) -> None:
        """Send the same bytes to all subscribers that wait at revision `before`; those with an empty chunk wait on."""
        subscriptions, self._at_head = self._at_head, []
        chunks: dict[Encode[Item], bytes] = {}
        for subscription in subscriptions:
            if subscription.waiting.done():
                continue  # its client has left
            if subscription.position != before:
                subscription.waiting.set_result(b"")  # it is at another revision, or history was lost: it checks itself
                continue
            chunk = chunks.get(subscription.write)
            if chunk is None:
                chunk = chunks[subscription.write] = b"".join(
                    subscription.write(self._thing, event) for event in events
                )
            subscription.position = self._position
            if chunk:
                subscription.waiting.set_result(chunk)
            else:
                self._at_head.append(subscription)

    def _lost(self, position: int, history: int) -> bool:
        """Tell whether a revision belongs to a lost history."""
        return history != self.history or (position > 0 and (self._epoch == "0" or position < int(self._epoch)))

    async def _catch_up(self, position: int) -> FeedEvents[Item]:
        """Give the changes after a revision from the store, and then a bookmark."""
        while True:
            async with self._catching_up:
                page = await self._feed.read(self._thing, position)
                await self._confirm()
            if page.outcome == "same" and not self._interrupted:
                for change in page.changes:
                    yield change
                    position = change.revision
                if len(page.changes) < PAGE:
                    yield Bookmark(position, page.epoch)
                    return
                continue
            if page.outcome == "new" and position == 0 and not self._in_doubt:
                yield Bookmark(position, page.epoch)
                return
            yield Compacted(page.revision) if page.outcome == "compacted" else Reset(page.epoch, page.revision)
            snapshot = await self._share_snapshot()
            yield snapshot
            yield Bookmark(snapshot.revision, snapshot.epoch)
            return

    async def _confirm(self) -> None:
        if self._in_doubt or self._interrupted:
            await self._feed.confirm(self._thing)

    async def _share_snapshot(self) -> Snapshot[Item]:
        """Read the snapshot once for all concurrent callers."""
        if self._snapshot is None or self._snapshot.done():
            self._snapshot = self._store.tasks.start(self._read_snapshot())
        return await asyncio.shield(self._snapshot)

    async def _read_snapshot(self) -> Snapshot[Item]:
        # One turn of the loop, so that subscribers that come in the same turn share it.
        await asyncio.sleep(0)
        return await self._feed.list(self._thing)

    async def _follow(self) -> None:
        """Read new changes after each hint, and at a timer."""
        with self._store.hints.listen(self._thing, "changes", lambda _: self._hint.set()):
            while True:
                self._hint.clear()
                try:
                    more = await self._step()
                except Closed:
                    return
                except HeadgateError as error:
                    log.debug("cannot read on", thing=self._thing.tag, error=str(error))
                    self._interrupted = self._interrupted or self._in_doubt
                    self._feed.note_lag()
                    await asyncio.sleep(UNHINTED_TIMER_SECONDS)
                    continue
                if not more:
                    timer = TIMER_SECONDS if self._store.hints.connected else UNHINTED_TIMER_SECONDS
                    with suppress(TimeoutError):
                        async with asyncio.timeout(timer):
                            await self._hint.wait()

    async def _step(self) -> bool:
        """Read one page; tell whether there is more."""
        first, before = not self._started, self._position
        restarted = first
        if first:
            # Only the present revision: subscribers get earlier changes by snapshot or `_catch_up`.
            page = await self._feed.read(self._thing, 0, 1)
            self._restart(page.epoch, page.revision)
            self._started = True
        else:
            asked = monotonic()
            page = await self._feed.read(self._thing, self._position)
            await self._confirm()
            if monotonic() - asked > OUTAGE_SECONDS:
                # Not right after a report: all subscribers then read the state, which may slow the store down.
                self._interrupted = self._interrupted or (self._in_doubt and asked > self._reported_at + OUTAGE_SECONDS)
            # The epoch may differ at the same revision: the clock was set back, and then everything was lost.
            replaced = (self._position > 0 and page.epoch != self._epoch) or self._interrupted
            if page.outcome == "same" and not replaced:
                self._epoch = page.epoch
                self._keep(page.changes)
            elif page.outcome != "new" or self._position or replaced:
                if replaced or page.revision < self._position:
                    self.history += 1
                    self._reported_at, self._interrupted = monotonic(), False
                self._restart(page.epoch, page.revision)
                restarted = True
        self._read_at = monotonic()
        events: list[FeedEvent[Item]] = [] if restarted else [*page.changes]
        if self._read_at - self._bookmarked_at >= BOOKMARK_SECONDS:
            self._bookmarked_at = self._read_at
            self._bookmarks += 1
            events.append(Bookmark(self._position, self._epoch))
        if restarted or events:
            self._changed.set()
            self._changed = asyncio.Event()
            self._broadcast(None if restarted else before, events)
        self._feed.note_lag()
        return not first and len(page.changes) == PAGE

    def _restart(self, epoch: str, revision: int) -> None:
        self._epoch, self._position, self._since = epoch, revision, revision
        self._kept, self._revisions, self._bytes = [], [], 0

    def _keep(self, changes: list[FeedChange]) -> None:
        if not changes:
            return
        self._position = changes[-1].revision
        # New lists, because a subscriber may still iterate over the old ones.
        kept = self._kept + changes
        revisions = self._revisions + [change.revision for change in changes]
        self._bytes += sum(len(change.value) for change in changes)
        if len(kept) > KEPT or self._bytes > KEPT_BYTES:
            cut = max(1, len(kept) // 2)
            self._bytes = sum(len(change.value) for change in kept[cut:])
            self._since = revisions[cut - 1]
            kept, revisions = kept[cut:], revisions[cut:]
        self._kept, self._revisions = kept, revisions
