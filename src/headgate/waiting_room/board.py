"""The board: the public view of a queue, which is read from the store at most once a second."""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic
from typing import Final

from headgate.kit.wire import iso_time
from headgate.store import Store, Thing
from headgate.waiting_room.queues import BOARD, MARKS, Queues, decode_board
from headgate.waiting_room.wire import Board

CACHE_SECONDS: Final = 1.0
MOST_CACHED: Final = 10_000


class Boards:
    """The cached boards of all queues; concurrent callers share one read."""

    def __init__(self, store: Store, queues: Queues) -> None:
        self._store = store
        self._queues = queues
        self._cache: dict[Thing, tuple[float, asyncio.Future[Board]]] = {}

    async def get(self, thing: Thing) -> Board:
        """Give a board that is at most a second old."""
        read_at, future = self._cache.get(thing, (0.0, None))
        if future is None or monotonic() - read_at >= CACHE_SECONDS:
            future = self._store.tasks.start(self._read(thing))
            future.add_done_callback(partial(self._drop_failed, thing))
            self._cache[thing] = (monotonic(), future)
            if len(self._cache) > MOST_CACHED:
                self._cache.pop(next(iter(self._cache)))
        try:
            return await asyncio.shield(future)
        finally:
            del future  # breaks the reference cycle through the traceback of its error

    def _drop_failed(self, thing: Thing, future: asyncio.Future[Board]) -> None:
        """Drop a failed read at once, because anybody may ask for queues that do not exist."""
        if future.cancelled() or future.exception() is not None:
            _, cached = self._cache.get(thing, (0.0, None))
            if cached is future:
                del self._cache[thing]

    async def _read(self, thing: Thing) -> Board:
        reply = await self._queues.with_restore(thing, lambda: self._store.run(BOARD, thing, MARKS))
        read = decode_board(reply)
        self._queues.update_memory(thing, read.generation, int(read.epoch), read.serving)
        return Board(
            queue=thing.name,
            epoch=read.epoch,
            generation=read.generation,
            serving=read.serving,
            waiting=read.waiting,
            rate_per_second=round(read.rate / 1_000_000, 3),
            marks=read.marks,
            at=iso_time(read.now_ms),
        )
