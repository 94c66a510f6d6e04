"""Lists of things, and which of them are due for a worker's visit.

A list is in another slot than its things, so it is only a hint: a thing is put before it is written and again when it is used,
and a worker removes it only when it is empty and was not put meanwhile. Claims expire, so a dead worker blocks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import msgspec

from headgate.store.batch import Batch
from headgate.store.client.link import Reply
from headgate.store.keys import Thing, part_of_key, split_tag
from headgate.store.scripts.script import script
from headgate.store.store import Store

CLAIM_MS: Final = 2000
PAGE: Final = 1000
CHANGES_KEPT_SECONDS: Final = 600

PUT = script("headgate.store", "index_put")
CLAIM = script("headgate.store", "index_claim")
DONE = script("headgate.store", "index_done")
FORGET = script("headgate.store", "index_forget")
DUE = script("headgate.store", "index_due")
MARK = script("headgate.store", "index_mark")
CHANGES = script("headgate.store", "index_changes")
AGE = script("headgate.store", "index_age")


class Claim(msgspec.Struct, frozen=True):
    """A thing that this worker alone visits for about two seconds."""

    thing: Thing
    stamp: str


class Changes(msgspec.Struct, frozen=True):
    """Things that changed since a read; the next read continues at `last`, if `history` is still the same."""

    history: str
    last: str
    things: Sequence[Thing]
    more: bool


class Index:
    """The list of all things of one part (queues, services, probes)."""

    def __init__(self, store: Store, part: str) -> None:
        self._store = store
        self._part = part
        self._home = store.thing("index", "default", part)
        self._puts = Batch(store, PUT)
        self._dones = Batch(store, DONE)
        self._marks = Batch(store, MARK, shared=lambda _: (CHANGES_KEPT_SECONDS * 1000,))

    @property
    def home(self) -> Thing:
        """Give the thing that holds the list, for data that must be lost together with it."""
        return self._home

    async def put(self, thing: Thing, due_in_ms: int | None = None) -> None:
        """Add a thing, due after so many ms (None: leave its due time as it is)."""
        await self._puts.call(self._home, thing.tag, "" if due_in_ms is None else due_in_ms)

    async def list(self, namespace: str | None = None) -> Sequence[Thing]:
        """Give the things of one namespace, or all, by name; some may not exist any more."""
        prefix = f"{part_of_key(namespace)}/" if namespace is not None else ""
        after = f"[{prefix}" if prefix else "-"
        # 0x7e sorts after every character of a tag.
        last = f"[{prefix}~" if prefix else "+"
        found: list[Thing] = []
        while True:
            page = cast(
                "list[bytes]",
                await self._store.read(
                    self._home, "ZRANGE", self._home.key("names"), after, last, "BYLEX", "LIMIT", 0, PAGE
                ),
            )
            found.extend(self._thing(tag) for tag in page)
            if len(page) < PAGE:
                return found
            after = f"({page[-1].decode()}"

    async def due(self, within_ms: int, most: int) -> Sequence[Thing]:
        """Give the things that are due within so many ms, claimed or not, most overdue first."""
        reply = cast("list[bytes]", await self._store.run(DUE, self._home, within_ms, most))
        return [self._thing(tag) for tag in reply]

    async def mark(self, thing: Thing) -> None:
        """Mark a thing as changed, after it was written, so that processes with a cached copy read it again."""
        await self._marks.call(self._home, thing.tag)

    async def changes(self, after: str = "0") -> Changes:
        """Give the things marked since the last read; marks are kept for ten minutes, after that all must be listed."""
        reply = cast("list[bytes]", await self._store.run(CHANGES, self._home, after, PAGE))
        tags, numbers = reply[1::2], reply[2::2]
        return Changes(
            history=reply[0].decode(),
            last=numbers[-1].decode() if numbers else after,
            things=[self._thing(tag) for tag in tags],
            more=len(tags) == PAGE,
        )

    async def age(self, thing: Thing) -> tuple[int, bool]:
        """Give for how many ms the store has surely lost nothing of the list, and whether a thing is listed."""
        reply = cast("list[Reply]", await self._store.run(AGE, self._home, thing.tag, 0))
        return int(cast("bytes", reply[0])), reply[1] == 1

    async def note_age(self, *, new: bool = False) -> None:
        """Start counting the age, unless it is counted already; a `new` store is empty and has lost nothing."""
        await self._store.run(AGE, self._home, "", 1 if new else 0)

    async def claim(self, limit: int = 16) -> Sequence[Claim]:
        """Claim the things that are due, until `done` or for about two seconds."""
        reply = cast("list[bytes]", await self._store.run(CLAIM, self._home, limit, CLAIM_MS))
        return [Claim(self._thing(tag), stamp.decode()) for tag, stamp in zip(reply[::2], reply[1::2], strict=True)]

    async def done(self, claim: Claim, due_in_ms: int | None) -> None:
        """Release a claim; with None the thing is due only after the next put."""
        await self._dones.call(self._home, claim.thing.tag, claim.stamp, "" if due_in_ms is None else due_in_ms)

    async def forget(self, claim: Claim) -> bool:
        """Remove a thing that is empty; False if it was put again meanwhile."""
        return await self._store.run(FORGET, self._home, claim.thing.tag, claim.stamp) == 1

    def _thing(self, tag: bytes) -> Thing:
        return self._store.thing(self._part, *split_tag(tag.decode()))
