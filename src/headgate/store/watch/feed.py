"""Feeds: a snapshot of a thing, then every change in order, exactly once, from any revision on.

The history of a thing is a stream in its slot, each of whose entries names the one before it. One follower per thing and process
reads it, woken by hints and by a timer, and keeps the newest changes in memory. A subscriber is only a revision in that history:
a slow one delays no other, and one that falls behind memory reads from the store. A subscriber whose revision is gone gets
`Compacted`, or `Reset` after a possible loss, and a snapshot.

Broadcasts to many clients encode a change once: all subscribers at the head of history wait on a future each, and get the same
bytes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Generic

from prometheus_client import Gauge

from headgate.store.keys import Thing
from headgate.store.scripts.script import script
from headgate.store.store import Store
from headgate.store.watch.events import (
    Bookmark,
    Compacted,
    Encode,
    FeedChange,
    FeedEvent,
    FeedEvents,
    FeedPage,
    Filter,
    Item,
    ReadSnapshot,
    Reset,
    Snapshot,
    read_page,
    revision_after,
)
from headgate.store.watch.follower import PAGE, Follower, Subscription

READ = script("headgate.store.watch", "feed_read")
SETTLE = script("headgate.store.watch", "feed_settle")
CONFIRM = script("headgate.store.watch", "feed_confirm")

__all__ = ["Bookmark", "Compacted", "Feed", "FeedChange", "FeedEvent", "FeedEvents", "Reset", "Snapshot"]


class Feed(Generic[Item]):
    """All subscriptions of one feature in this process."""

    def __init__(
        self,
        store: Store,
        read_snapshot: ReadSnapshot[Item],
        *,
        settle: Callable[[Thing], Awaitable[None]] | None = None,
        open_watches: Gauge | None = None,
        lag: Gauge | None = None,
    ) -> None:
        self._store = store
        self._read_snapshot = read_snapshot
        self._settle = settle
        self._open_watches = open_watches
        self._lag = lag
        self._followers: dict[Thing, Follower[Item]] = {}

    async def read(self, thing: Thing, after: int, most: int = PAGE) -> FeedPage:
        """Read the changes later than a revision; a thing whose history may be lost gets its new epoch first."""
        for _ in range(3):
            page = read_page(await self._store.run(READ, thing, after, most))
            if page.outcome != "uncertain":
                break
            await self.settle(thing)
        return page

    async def settle(self, thing: Thing) -> None:
        """Give a thing its new epoch after a possible loss of data, by the feature's own script if it has one."""
        if self._settle is not None:
            await self._settle(thing)
        else:
            await self._store.run(SETTLE, thing)

    async def confirm(self, thing: Thing) -> None:
        """Make sure that the store takes writes where a thing lives; raises StoreUnavailable if it does not."""
        await self._store.run(CONFIRM, thing)

    async def watch(self, thing: Thing, after: int | None = None) -> FeedEvents[Item]:
        """Subscribe to a thing from a revision on; without one, the snapshot comes first."""
        async with self._follower(thing) as follower:
            async for event in follower.watch(after):
                yield event

    async def broadcast(
        self, thing: Thing, after: int | None, write: Encode[Item], opening: Filter[Item] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Subscribe to a thing as bytes; subscribers with the same `write` share its result for each change.

        Empty results are not sent. `opening` may filter the events before the first bookmark.
        """
        async with self._follower(thing) as follower, self._counted():
            subscription = Subscription(write, after or 0, follower.history)
            missed = opening(follower.begin(after)) if opening else follower.begin(after)
            while True:
                async with aclosing(missed) as events:
                    async for event in events:
                        subscription.position = revision_after(subscription.position, event)
                        if chunk := write(thing, event):
                            yield chunk
                while (broadcast := await follower.next_chunk(subscription)) is not None:
                    yield broadcast
                missed = follower.resume(subscription.position, subscription.history)
                subscription.history = follower.history

    @asynccontextmanager
    async def _follower(self, thing: Thing) -> AsyncIterator[Follower[Item]]:
        """Give the thing's follower, which runs as long as it has subscribers."""
        follower = self._followers.get(thing)
        if follower is None:
            follower = self._followers[thing] = Follower(self, thing)
            follower.start(self._store)
        follower.subscribers += 1
        try:
            yield follower
        finally:
            follower.subscribers -= 1
            if not follower.subscribers:
                del self._followers[thing]
                await follower.stop()

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        if self._open_watches is None:
            yield
            return
        self._open_watches.inc()
        try:
            yield
        finally:
            self._open_watches.dec()

    def note_lag(self) -> None:
        """Set the metric of the follower that has not read for longest."""
        if self._lag is not None:
            self._lag.set(self.silent_seconds)

    @property
    def subscribers(self) -> int:
        """Count the subscribers in this process."""
        return sum(follower.subscribers for follower in self._followers.values())

    @property
    def followers(self) -> int:
        """Count the things that are followed in this process."""
        return len(self._followers)

    @property
    def silent_seconds(self) -> float:
        """Give how long ago the slowest follower last read from the store."""
        return max((follower.silent_seconds for follower in self._followers.values()), default=0.0)

    async def list(self, thing: Thing) -> Snapshot[Item]:
        """Read the snapshot of a thing."""
        return await self._read_snapshot(thing)
