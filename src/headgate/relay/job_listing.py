"""Pages of an upstream's jobs: the open ones in order of arrival, then the ended ones, the latest first.

In this order a job that ends while a client reads page after page may be seen twice, and is never missed. A page names where
the next one begins. It may have fewer jobs than asked for: it ends early after a bounded number of jobs in other states,
and after a bounded number of bytes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, cast

from headgate.kit.problems import InvalidRequest
from headgate.relay.model import JobState
from headgate.relay.problems import JobUnknown
from headgate.relay.wire import JobView
from headgate.store import Store, Thing

FINISHED: Final = frozenset({JobState.DONE, JobState.FAILED, JobState.UNKNOWN, JobState.CANCELLED})
BATCH: Final = 32
MOST_LOOKED: Final = 2_000
MOST_BYTES: Final = 4_194_304
_PAGE = re.compile(r"open:([0-9]{1,19}-[0-9]{1,19})|ended:([0-9]{1,17}):([0-9A-Za-z]{26}\.[A-Za-z0-9_.:-]{1,128})")


class ListingPosition(NamedTuple):
    """The last job of a page: an open one (its entry in the stream), or an ended one (its time and id)."""

    ended: bool
    after: str = ""
    id: str = ""

    def text(self) -> str:
        """Encode it as the `page` of the next call."""
        return f"ended:{self.after}:{self.id}" if self.ended else f"open:{self.after}"


ENDED: Final = ListingPosition(ended=True)


def position_of(page: str) -> ListingPosition:
    """Decode a `page`; raises InvalidRequest if it is not valid."""
    found = _PAGE.fullmatch(page)
    if found is None:
        if page == ENDED.text():
            return ENDED
        raise InvalidRequest("page must be the nextPage of the page before.", field="page")
    entry, score, id = found.groups()
    return ListingPosition(ended=False, after=entry) if entry else ListingPosition(ended=True, after=score, id=id)


class JobListing:
    """Lists the jobs of one upstream; `get` reads one job."""

    def __init__(self, store: Store, thing: Thing, get: Callable[[str], Awaitable[JobView]]) -> None:
        self._store = store
        self._thing = thing
        self._get = get

    async def page(self, state: JobState | None, limit: int, page: str | None) -> tuple[list[JobView], str | None]:
        """Return the jobs of one page, and the next page; None if it is the last."""
        position: ListingPosition | None = (
            ListingPosition(ended=state in FINISHED) if page is None else position_of(page)
        )
        found: list[JobView] = []
        looked = size = 0
        while position is not None and len(found) < limit and looked < MOST_LOOKED and size < MOST_BYTES:
            count = min(BATCH, limit - len(found))
            ids, position = await (self._ended if position.ended else self._open)(position, count)
            if position is not None and position.ended and state is not None and state not in FINISHED:
                position = None
            looked += len(ids)
            views = await self._views(ids, state)
            size += sum(len(one.response.body or one.response.body_base64 or "") for one in views if one.response)
            found += views
        return found, None if position is None else position.text()

    async def _open(self, position: ListingPosition, count: int) -> tuple[list[str], ListingPosition | None]:
        """Return the next open jobs, and the position to go on from."""
        after = f"({position.after}" if position.after else "-"
        reply = await self._store.read(self._thing, "XRANGE", self._thing.key("jobs"), after, "+", "COUNT", count + 1)
        entries = cast("list[tuple[bytes, list[bytes]]]", reply or [])
        ids = [fields[1].decode() for _, fields in entries[:count]]
        if len(entries) > count:
            return ids, ListingPosition(ended=False, after=entries[count - 1][0].decode())
        return ids, ENDED if await self._store.read(self._thing, "EXISTS", self._thing.key("ends")) else None

    async def _ended(self, position: ListingPosition, count: int) -> tuple[list[str], ListingPosition | None]:
        """Return the next ended jobs, and the position to go on from."""
        key, start = self._thing.key("ends"), 0
        if position.after:
            rank = cast("int | None", await self._store.read(self._thing, "ZREVRANK", key, position.id))
            if rank is None:  # deleted meanwhile, with all that ended before it
                newer = await self._store.read(self._thing, "ZCOUNT", key, f"({position.after}", "+inf")
                rank = cast("int", newer) - 1
            start = rank + 1
        reply = await self._store.read(self._thing, "ZREVRANGE", key, start, start + count, "WITHSCORES")
        entries = cast("list[bytes]", reply)
        ids = [id.decode() for id in entries[: 2 * count : 2]]
        if len(entries) <= 2 * count:
            return ids, None
        return ids, ListingPosition(ended=True, after=str(int(float(entries[2 * count - 1]))), id=ids[-1])

    async def _views(self, ids: list[str], state: JobState | None) -> list[JobView]:
        """Read those of these jobs that are in this state."""
        if not ids:
            return []
        if state is not None:
            fields = [f"{id}:state" for id in ids]
            reply = await self._store.read(self._thing, "HMGET", self._thing.key("orders"), *fields)
            states = cast("list[bytes | None]", reply)
            ids = [id for id, found in zip(ids, states, strict=True) if found == state.encode()]
        views = await asyncio.gather(*(self._view(id) for id in ids))
        return [view for view in views if view is not None and state in (None, view.state)]

    async def _view(self, id: str) -> JobView | None:
        try:
            return await self._get(id)
        except JobUnknown:  # deleted since it was listed
            return None
