"""Looks for contradictions in an upstream's data: sets that must agree, counts, jobs that no runner would send, orphans.

Nothing is changed. Keys that all users share are read in steps, each of them one script that compares some members of one
key with the rest. The keys of one user are read by one script, so at one moment. A job that seems to have no place
is checked again together with its user, since it may have come or ended meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Final, cast

import msgspec

from headgate.relay.job_queue import entries_of
from headgate.relay.model import LONGEST_LEASE_MS, MOST_DELIVERY_SECONDS, Order
from headgate.store import Store, Thing, script
from headgate.store.client.link import Reply

INSPECT = script(__package__, "inspect")
INSPECT_USER = script(__package__, "inspect_user")

PARTS: Final = ("sums", "turns", "heads", "deadlines", "ends", "orders", "jobs")
STEP: Final = 500
AT_ONCE: Final = 32  # users checked concurrently
MOST_EACH: Final = 1000  # members of each of a user's keys
MOST_MEMBERS: Final = 200_000
MOST_FOUND: Final = 100
_MOST_LATE_MS: Final = MOST_DELIVERY_SECONDS * 1000
_read_order = msgspec.msgpack.Decoder(Order).decode


class _Policy(msgspec.Struct, rename="camel"):
    delivery_seconds: float


class _Inspection:
    """One inspection of an upstream, with its findings so far."""

    def __init__(self, store: Store, thing: Thing, most_members: int) -> None:
        self.members = 0
        self.complete = True
        self.found: dict[str, None] = {}  # a scan may return a member twice
        self._store = store
        self._thing = thing
        self._most_members = most_members
        self._late_ms = _MOST_LATE_MS
        self._looked: set[str] = set()
        self._jobs: set[bytes] = set()

    async def run(self, stray: Collection[str]) -> None:
        """Inspect all keys, up to the limit."""
        for part in PARTS:
            await self._look_at_part(part)
        self._late_ms = await self._read_late_ms()
        processes: dict[str, list[str]] = {}
        async for field, _ in self._scan("HSCAN", "crowd"):
            process, _, user = _text(field).partition(" ")
            processes.setdefault(user, []).append(process)
        await self._look_at_users(processes, processes)
        await self._look_at_users(stray, processes)
        for key in ("users", "owners"):
            batch: list[str] = []
            async for member, _ in self._scan("ZSCAN", key):
                batch.append(_text(member))
                if len(batch) >= STEP:
                    await self._look_at_users(batch, processes)
                    batch = []
            await self._look_at_users(batch, processes)
        if self.complete:
            await self._look_at_jobs()

    def _full(self) -> bool:
        """Whether the limit is reached; then the inspection is marked as incomplete."""
        if self.members >= self._most_members or len(self.found) >= MOST_FOUND:
            self.complete = False
            return True
        return False

    async def _look_at_part(self, part: str) -> None:
        cursor = b"0"
        while not self._full():
            reply = await self._store.run(INSPECT, self._thing, part, cursor, STEP, LONGEST_LEASE_MS)
            cursor, members, *words = cast("tuple[bytes, int, *tuple[bytes, ...]]", tuple(cast("list[Reply]", reply)))
            self._note(members, words)
            if cursor == b"0":
                return

    async def _look_at_users(self, users: Collection[str], processes: dict[str, list[str]]) -> None:
        """Inspect the users that have not been inspected yet, some of them concurrently."""
        left = [user for user in dict.fromkeys(users) if user not in self._looked]
        self._looked.update(left)
        for start in range(0, len(left), AT_ONCE):
            if self._full():
                return
            some = left[start : start + AT_ONCE]
            await asyncio.gather(*(self._look_at_user(user, " ".join(processes.get(user, ()))) for user in some))

    async def _look_at_user(self, user: str, processes: str = "", suspects: str = "") -> None:
        reply = await self._store.run(
            INSPECT_USER, self._thing, user, MOST_EACH, LONGEST_LEASE_MS, self._late_ms, processes, suspects, user=user
        )
        members, whole, jobs, *words = cast(
            "tuple[int, int, list[bytes], *tuple[bytes, ...]]", tuple(cast("list[Reply]", reply))
        )
        self._note(members, words)
        self._jobs.update(jobs)
        self.complete = self.complete and whole == 1

    async def _look_at_jobs(self) -> None:
        """Look for waiting jobs that are in no user's line."""
        after = "-"
        while not self._full():
            reply = await self._store.read(
                self._thing, "XRANGE", self._thing.key("jobs"), after, "+", "COUNT", STEP
            )  # fmt: skip
            entries = entries_of(reply)
            for _, id in entries:
                if id.encode() not in self._jobs:
                    await self._look_at_suspect(id)
            if len(entries) < STEP:
                return
            after = f"({entries[-1][0]}"

    async def _look_at_suspect(self, id: str) -> None:
        order = await self._store.read(self._thing, "HGET", self._thing.key("orders"), f"{id}:order")
        if order is None:
            return  # it has ended meanwhile, or its missing order is reported already
        try:
            user = _read_order(cast("bytes", order)).user
        except msgspec.DecodeError:
            self._note(0, [f"job {id} has an order that cannot be read".encode()])
            return
        await self._look_at_user(user, suspects=id)

    async def _read_late_ms(self) -> int:
        """Return how long a request without an answer counts as in flight under the policy in force."""
        document = await self._store.read(self._thing, "HGET", self._thing.key("policy"), "document")
        try:
            return round(msgspec.json.decode(cast("bytes", document or b""), type=_Policy).delivery_seconds * 1000)
        except msgspec.DecodeError:
            return _MOST_LATE_MS

    async def _scan(self, command: str, key: str) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield the members of a key with their values, in steps."""
        cursor = b"0"
        while not self._full():
            # The command names are literals because `store/acl.py` reads the needed rights out of this file.
            if command == "HSCAN":
                reply = await self._store.read(self._thing, "HSCAN", self._thing.key(key), cursor, "COUNT", STEP)
            else:
                reply = await self._store.read(self._thing, "ZSCAN", self._thing.key(key), cursor, "COUNT", STEP)
            cursor, page = cast("tuple[bytes, list[bytes]]", reply)
            for position in range(0, len(page), 2):
                yield page[position], page[position + 1]
            if cursor == b"0":
                return

    def _note(self, members: int, words: Collection[bytes]) -> None:
        self.members += members
        self.found.update(dict.fromkeys(_text(each) for each in words))


async def inspect(
    store: Store, thing: Thing, stray: Collection[str] = (), most_members: int = MOST_MEMBERS
) -> tuple[int, list[str], bool]:
    """Return the number of members inspected, the contradictions, and whether everything was inspected.

    `stray` are users of whom keys were seen: they are inspected even if no list names them.
    """
    look = _Inspection(store, thing, most_members)
    await look.run(stray)
    return look.members, list(look.found)[:MOST_FOUND], look.complete


def _text(word: bytes) -> str:
    return word.decode(errors="replace")
