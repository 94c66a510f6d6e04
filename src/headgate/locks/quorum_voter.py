"""One server of a quorum: connects on its own, and does not vote for a while after it may have lost its votes."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Final, cast

from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError, InvalidRequest, StoreUnavailable
from headgate.locks.model import LockRequest, LockState, decode_state
from headgate.store import Store, StoreSettings, Thing, open_store, script
from headgate.store.client.address import StoreKind, parse_address
from headgate.store.client.link import read_info

VOTE = script("headgate.locks", "vote")
UNVOTE = script("headgate.locks", "unvote")
SHOW = script("headgate.locks", "show")

KEEP_MS: Final = 3_600_000
OPEN_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 0.2

log = get_logger()


class Vote:
    """A server's answer: the number of its vote for us, or how long another holder still has its vote."""

    __slots__ = ("left", "number")

    def __init__(self, number: int = 0, left: float = 0.0) -> None:
        self.number = number
        self.left = left


class Voter:
    """A server that votes; `store` is None until it is connected for the first time."""

    def __init__(self, url: str, prefix: str, longest_ttl: float) -> None:
        address = parse_address(url)
        if address.kind is not StoreKind.STANDALONE:
            raise InvalidRequest("A quorum is made of single servers that know nothing of each other.", field="urls")
        self.name = str(address.nodes[0])
        self.store: Store | None = None
        self.trouble = "not reached yet"
        self._settings = StoreSettings(url=url, prefix=prefix, volatile=True)
        self._longest_ttl = longest_ttl
        self._votes_from: dict[str, float] = {}
        self._marked = False
        self._opened = asyncio.Event()

    async def keep(self) -> None:
        """Connect to the server and stay connected while this runs."""
        while True:
            try:
                async with open_store(self._settings, wait_seconds=OPEN_SECONDS) as store:
                    facts = await store.facts()
                    if facts[0].memory_policy != "noeviction":
                        self.trouble = f"may evict votes (maxmemory-policy {facts[0].memory_policy})"
                        log.warning("server cannot vote", server=self.name, trouble=self.trouble)
                        await asyncio.Event().wait()
                    self.store, self.trouble = store, ""
                    self._opened.set()
                    await asyncio.Event().wait()
            except HeadgateError as error:
                self.trouble = str(error)
                await asyncio.sleep(PAUSE_SECONDS)
            finally:
                self.store = None

    async def opened(self) -> None:
        """Wait for the first connection."""
        await self._opened.wait()

    def thing(self, namespace: str, name: str) -> Thing:
        """Give the address of the lock's vote on this server."""
        return self.reached.thing("vote", namespace, name)

    @property
    def reached(self) -> Store:
        """The server's store; raises StoreUnavailable before the first connection."""
        if self.store is None:
            raise StoreUnavailable(f"{self.name} cannot be reached: {self.trouble}.")
        return self.store

    async def vote(self, request: LockRequest, holder: str, floor: int, deadline: float) -> Vote:
        """Ask for this server's vote; raises StoreUnavailable when it does not answer or may not vote."""
        store = self.reached
        thing = self.thing(request.namespace, request.name)
        reply = await store.run(VOTE, thing, holder, request.ttl_ms, floor, KEEP_MS, request.label, deadline=deadline)
        given, number, replication_id = cast("tuple[int, bytes, bytes]", reply)
        if not given:
            return Vote(left=int(number) / 1000)
        silent = await self._silent_for(store, replication_id.decode(), deadline)
        if silent > 0:
            raise StoreUnavailable(f"{self.name} restarted and does not vote for {silent:.0f} s.")
        return Vote(int(number))

    async def unvote(self, namespace: str, name: str, holder: str, deadline: float) -> None:
        """Withdraw this server's vote."""
        await self.reached.run(UNVOTE, self.thing(namespace, name), holder, deadline=deadline)

    async def show(self, namespace: str, name: str, deadline: float) -> LockState:
        """Give the state of the lock on this server."""
        reply = await self.reached.run(SHOW, self.thing(namespace, name), deadline=deadline)
        return decode_state(name, reply)

    async def state(self, deadline: float) -> str:
        """Give this server's state: voting, silent (restarted lately) or away."""
        try:
            store = self.reached
            thing = self.thing("default", "health")
            await store.read(thing, "PING", deadline=deadline)
            link = await store.route.link(thing.slot)
            silent = await self._silent_for(store, link.replication_id, deadline)
        except HeadgateError:
            return "away"
        return "silent" if silent > 0 else "voting"

    async def _silent_for(self, store: Store, replication_id: str, deadline: float) -> float:
        """Give how long this run of the server may not vote yet: one longest TTL from its start.

        It may vote at once if it has lost nothing: it has the mark of a server that voted before, and syncs every
        write. A replacement of a dead server has no mark.
        """
        loop = asyncio.get_running_loop()
        thing = self.thing("default", "health")
        votes_from = self._votes_from.get(replication_id)
        if votes_from is None:
            info = read_info(await store.read(thing, "INFO", "server", deadline=deadline))
            started = loop.time() - int(info.get("uptime_in_seconds", 0))
            marked = await store.read(thing, "EXISTS", thing.key("voted"), deadline=deadline)
            whole = marked == 1 and await _loses_nothing(store, thing, deadline)
            votes_from = -inf if whole else started + self._longest_ttl
            self._votes_from = {replication_id: votes_from}
            self._marked = marked == 1
        silent = votes_from - loop.time()
        if silent <= 0 and not self._marked:
            await store.write(thing, "SET", thing.key("voted"), "1", deadline=deadline, again=True)
            self._marked = True
        return silent


async def _loses_nothing(store: Store, thing: Thing, deadline: float) -> bool:
    """Whether every write is on disk before it is answered; False where CONFIG is denied."""
    info = read_info(await store.read(thing, "INFO", "persistence", deadline=deadline))
    if info.get("aof_enabled") != "1":
        return False
    try:
        return await store.read(thing, "CONFIG", "GET", "appendfsync", deadline=deadline) == [b"appendfsync", b"always"]
    except StoreUnavailable:
        raise
    except HeadgateError:
        return False
