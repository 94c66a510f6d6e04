"""Watching a thing: its present state, then every change in order, once, without a gap, from any revision on.

The truth is a stream in the thing's slot whose entries name the one before them. One reader per thing and process follows
it, woken by hints and by a timer, and keeps the newest changes in memory. A watcher is only a position in that history: a
slow one costs nothing but its own lateness, and one that falls behind what memory holds reads on from the store. A
position whose history is gone is told so (`Compacted`, or `Reset` after a possible loss) and given the present state.

Streams to many clients are broadcast: whoever is at the head of history waits on one future, a change is written as bytes
once for all of them, and each future is given the same bytes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Generic

from prometheus_client import Gauge

from headgate.store.keys import Thing
from headgate.store.scripts.script import script
from headgate.store.store import Store
from headgate.store.watch.notices import (
    Bookmark,
    Compacted,
    FeedChange,
    FeedPage,
    Item,
    Lister,
    Notice,
    Notices,
    Opening,
    Reset,
    Snapshot,
    Writer,
    position_after,
    read_page,
)
from headgate.store.watch.reader import PAGE, FeedReader, Subscription

READ = script("headgate.store.watch", "feed_read")
SETTLE = script("headgate.store.watch", "feed_settle")
CONFIRM = script("headgate.store.watch", "feed_confirm")

__all__ = ["Bookmark", "Compacted", "Feed", "FeedChange", "Notice", "Notices", "Reset", "Snapshot"]


class Feed(Generic[Item]):
    """All watches of one feature in this process."""

    def __init__(
        self,
        store: Store,
        lister: Lister[Item],
        *,
        settle: Callable[[Thing], Awaitable[None]] | None = None,
        open_watches: Gauge | None = None,
        lag: Gauge | None = None,
    ) -> None:
        self._store = store
        self._lister = lister
        self._settle = settle
        self._open_watches = open_watches
        self._lag = lag
        self._readers: dict[Thing, FeedReader[Item]] = {}

    async def read(self, thing: Thing, after: int, most: int = PAGE) -> FeedPage:
        """Read the changes later than a revision; a thing whose history may be lost gets its new epoch first."""
        for _ in range(3):
            page = read_page(await self._store.run(READ, thing, after, most))
            if page.what != "uncertain":
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

    async def watch(self, thing: Thing, after: int | None = None) -> Notices[Item]:
        """Follow a thing from a revision on; without one, its present state comes first."""
        async with self._reader(thing) as reader:
            async for notice in reader.watch(after):
                yield notice

    async def broadcast(
        self, thing: Thing, after: int | None, write: Writer[Item], opening: Opening[Item] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Follow a thing as bytes; watchers with the same `write` share what it writes of a change.

        What `write` leaves empty is not given. `opening` may choose among what has been missed, before the first bookmark.
        """
        async with self._reader(thing) as reader, self._counted():
            ride = Subscription(write, after or 0, reader.history)
            missed = opening(reader.opening(after)) if opening else reader.opening(after)
            while True:
                async with aclosing(missed) as notices:
                    async for notice in notices:
                        ride.position = position_after(ride.position, notice)
                        if chunk := write(thing, notice):
                            yield chunk
                while (carried := await reader.ride(ride)) is not None:
                    yield carried
                missed, ride.history = reader.reopening(ride.position, ride.history), reader.history

    @asynccontextmanager
    async def _reader(self, thing: Thing) -> AsyncIterator[FeedReader[Item]]:
        """Give the thing's reader, which lives as long as somebody watches."""
        reader = self._readers.get(thing)
        if reader is None:
            reader = self._readers[thing] = FeedReader(self, thing)
            reader.start(self._store)
        reader.watchers += 1
        try:
            yield reader
        finally:
            reader.watchers -= 1
            if not reader.watchers:
                del self._readers[thing]
                await reader.stop()

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
        """Say in the metrics how late the slowest reader is."""
        if self._lag is not None:
            self._lag.set(self.silent_seconds)

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
