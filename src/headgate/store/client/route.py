"""Routing: finds the node for a slot (one server, the sentinels' primary, or the cluster's owner) and connects to it.

A route keeps one link per node and reconnects when it is lost; concurrent callers share one attempt. The nodes of the URL are
never forgotten, so it recovers from any outage. A lost link is reopened even without calls, because scripts are told from when
until when a node did not answer.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from contextvars import Context
from typing import Final, cast

from headgate.kit.tasks import Tasks
from headgate.store.client.address import Address, Endpoint, StoreKind
from headgate.store.client.link import CONNECT_SECONDS, Link, LinkLost, NodeClock, Reply, ServerError
from headgate.store.keys import SLOTS

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 0.5
MAP_SECONDS: Final = 0.1
SLOW_SECONDS: Final = 0.5
SENTINELS_SECONDS: Final = 0.3
ASK_AGAIN_SECONDS: Final = 0.5


class Route(ABC):
    """Keeps the links by node; the subclasses choose the node for a slot."""

    def __init__(self, address: Address, tasks: Tasks) -> None:
        self.address = address
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._links: dict[Endpoint, Link] = {}
        self._opening: dict[Endpoint, asyncio.Task[Link]] = {}
        self._clocks: dict[Endpoint, NodeClock] = {}
        self._failures: dict[Endpoint, int] = {}
        self._down_since: float | None = None
        self._closed = False
        self.last_error = ""  # of the last attempt to connect

    @abstractmethod
    def owner(self, slot: int) -> Endpoint | None:
        """Give the node that owns a slot, None if unknown."""

    @abstractmethod
    def slot_of(self, endpoint: Endpoint) -> int | None:
        """Give a slot that a node owns, None if it owns none."""

    @abstractmethod
    async def link(self, slot: int) -> Link:
        """Give the link to the primary that owns a slot, looking up the owner and connecting if needed."""

    def ready(self, slot: int) -> Link | None:
        """Give the link to a slot's owner if it is open."""
        endpoint = self.owner(slot)
        link = self._links.get(endpoint) if endpoint is not None else None
        return link if link is not None and not link.closed else None

    def clock(self, slot: int) -> NodeClock | None:
        """Give the clock of a slot's owner, or another node's while that one is unknown; None if all are."""
        endpoint = self.owner(slot)
        clock = self._clocks.get(endpoint) if endpoint is not None else None
        return clock if clock is not None and clock.known else next(iter(self.clocks()), None)

    def clocks(self) -> list[NodeClock]:
        """Give the clocks of all nodes whose time is known."""
        return [clock for clock in self._clocks.values() if clock.known]

    async def primaries(self) -> list[Link]:
        """Give a link to every primary."""
        return [await self.link(0)]

    def moved(self, slot: int, endpoint: Endpoint) -> None:  # noqa: B027 -- only a cluster has owners that move
        """Note that another node owns a slot."""

    def check(self, link: Link) -> None:  # noqa: B027 -- a single server cannot have been succeeded by another
        """Find out whether a node that takes no writes is still the right one; a primary that was succeeded may say so."""

    def drop(self, link: Link) -> None:
        """Close a link whose node is no longer the primary."""
        link.close("this node is not the one to ask")

    def down_seconds(self) -> float:
        """Give how long no node could be reached."""
        return self._loop.time() - self._down_since if self._down_since is not None else 0.0

    def nodes(self) -> set[Endpoint]:
        """Give all known nodes: those of the URL, and those found through them."""
        return {*self.address.nodes, *self._clocks}

    def close(self) -> None:
        """Close all links; those being opened are closed with the tasks, or once they are open."""
        self._closed = True
        for link in self._links.values():
            link.close()

    async def node(self, endpoint: Endpoint) -> Link:
        """Give the link to one node, connecting if needed."""
        link = self._links.get(endpoint)
        if link is not None and not link.closed:
            return link
        opening = self._opening.get(endpoint)
        if opening is None:
            # In an empty context, so that log lines do not inherit the request id of the caller that connected.
            opening = self._tasks.start(self._open(endpoint), Context())
            self._opening[endpoint] = opening
            opening.add_done_callback(lambda done: self._opened(endpoint, done))
        # A shared attempt goes on when a caller is cancelled.
        done, _ = await asyncio.wait({opening})
        return done.pop().result()

    async def _open(self, endpoint: Endpoint) -> Link:
        failures = self._failures.get(endpoint, 0)
        if failures:
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures - 1, 8))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        clock = self._clocks.setdefault(endpoint, NodeClock())
        started = self._loop.time()
        try:
            return await Link.open(endpoint, self.address, clock)
        except LinkLost:
            now = self._loop.time()
            if now - started < CONNECT_SECONDS + SLOW_SECONDS:  # else this process itself stood still
                clock.unanswered(started, now)
            raise

    async def _reconnect(self, endpoint: Endpoint, link: Link) -> None:
        """When a link is lost, connect to its slots again."""
        await link.wait_closed()
        while not self._closed and (slot := self.slot_of(endpoint)) is not None:
            try:
                await self.link(slot)
            except (LinkLost, ServerError):
                await asyncio.sleep(FIRST_PAUSE)
            else:
                return

    def _opened(self, endpoint: Endpoint, done: asyncio.Task[Link]) -> None:
        self._opening.pop(endpoint, None)
        if done.cancelled():
            return
        if self._closed:
            if done.exception() is None:
                done.result().close()
        elif done.exception() is None:
            self._failures.pop(endpoint, None)
            self._links[endpoint] = done.result()
            self._tasks.start(self._reconnect(endpoint, done.result()), Context())
            self._down_since = None
            self.last_error = ""
        else:
            self.last_error = str(done.exception())
            self._failures[endpoint] = self._failures.get(endpoint, 0) + 1
            if self._down_since is None and not any(not link.closed for link in self._links.values()):
                self._down_since = self._loop.time()


class StandaloneRoute(Route):
    """One server."""

    def owner(self, slot: int) -> Endpoint | None:
        return self.address.nodes[0]

    def slot_of(self, endpoint: Endpoint) -> int | None:
        return 0

    async def link(self, slot: int) -> Link:
        return await self.node(self.address.nodes[0])


class SentinelRoute(Route):
    """The primary that the sentinels name; they are asked again when it is lost or becomes a replica."""

    def __init__(self, address: Address, tasks: Tasks) -> None:
        super().__init__(address, tasks)
        self._primary: Endpoint | None = None
        self._finding: asyncio.Task[Endpoint] | None = None
        self._ask_after = 0.0

    def owner(self, slot: int) -> Endpoint | None:
        return self._primary

    def slot_of(self, endpoint: Endpoint) -> int | None:
        return 0 if endpoint == self._primary else None

    async def link(self, slot: int) -> Link:
        if (link := self.ready(slot)) is not None:
            return link
        done, _ = await asyncio.wait({self._start_finding()})
        return await self.node(done.pop().result())

    def check(self, link: Link) -> None:
        now = self._loop.time()
        if now >= self._ask_after:
            self._ask_after = now + ASK_AGAIN_SECONDS
            self._start_finding().add_done_callback(lambda _: self._drop_if_succeeded(link))

    def _drop_if_succeeded(self, link: Link) -> None:
        if self._primary != link.endpoint:
            link.close("the sentinels name another primary")

    def _start_finding(self) -> asyncio.Task[Endpoint]:
        if self._finding is None:
            self._finding = self._tasks.start(self._find())
            self._finding.add_done_callback(self._found)
        return self._finding

    def _found(self, done: asyncio.Task[Endpoint]) -> None:
        self._finding = None
        if not done.cancelled() and done.exception() is None:
            self._primary = done.result()

    async def _find(self) -> Endpoint:
        """Ask all sentinels: what most of them say, or most of those that answer soon; one alone may be out of date."""
        asked = {self._tasks.start(self._ask(sentinel)) for sentinel in self.address.nodes}
        most = len(asked) // 2 + 1
        named: Counter[Endpoint] = Counter()
        limit: float | None = None
        try:
            while asked and (limit is None or self._loop.time() < limit):
                timeout = None if limit is None else limit - self._loop.time()
                done, asked = await asyncio.wait(asked, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                named.update(primary for task in done if (primary := task.result()) is not None)
                if named and limit is None:
                    limit = self._loop.time() + SENTINELS_SECONDS
                if named and named.most_common(1)[0][1] >= most:
                    break
        finally:
            for task in asked:
                task.cancel()
        if named:
            return named.most_common(1)[0][0]
        if self._down_since is None:
            self._down_since = self._loop.time()
        await asyncio.sleep(FIRST_PAUSE)
        names = ", ".join(map(str, self.address.nodes))
        raise LinkLost(f"no sentinel of {names} knows a primary named {self.address.primary_name}", sent=False)

    async def _ask(self, sentinel: Endpoint) -> Endpoint | None:
        try:
            link = await Link.open(sentinel, self.address, NodeClock(), sentinel=True)
        except (LinkLost, ServerError):
            return None
        try:
            limit = self._loop.time() + CONNECT_SECONDS
            reply = await link.send(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.address.primary_name), limit)
        except (LinkLost, ServerError):
            return None
        finally:
            link.close()
        if not isinstance(reply, list):
            return None
        host, port = cast("list[bytes]", reply)
        return Endpoint(host.decode(), int(port))


class ClusterRoute(Route):
    """The owner of each slot, from CLUSTER SLOTS; a MOVED updates one slot at once and triggers a new map."""

    def __init__(self, address: Address, tasks: Tasks) -> None:
        super().__init__(address, tasks)
        self._owners: list[Endpoint | None] = [None] * SLOTS
        self._mapping: asyncio.Task[None] | None = None
        self._map_after = 0.0
        self._map_error: LinkLost | ServerError | None = None

    def owner(self, slot: int) -> Endpoint | None:
        return self._owners[slot]

    def slot_of(self, endpoint: Endpoint) -> int | None:
        return self._owners.index(endpoint) if endpoint in self._owners else None

    async def link(self, slot: int) -> Link:
        owner = self._owners[slot]
        if owner is not None:
            try:
                return await self.node(owner)
            except (LinkLost, ServerError):
                await self._remap()
        else:
            await self._remap()
        owner = self._owners[slot]
        if owner is None:
            raise self._map_error or LinkLost(f"no node of the cluster owns slot {slot}", sent=False)
        return await self.node(owner)

    async def primaries(self) -> list[Link]:
        await self._remap()
        owners = {owner for owner in self._owners if owner is not None}
        if not owners:
            raise self._map_error or LinkLost("no node of the cluster owns any slot", sent=False)
        return [await self.node(owner) for owner in owners]

    def moved(self, slot: int, endpoint: Endpoint) -> None:
        self._owners[slot] = endpoint
        self._start_map()

    def drop(self, link: Link) -> None:
        super().drop(link)
        self._start_map()

    def check(self, link: Link) -> None:
        self._start_map()

    async def _remap(self) -> None:
        await asyncio.wait({self._start_map()})

    def _start_map(self) -> asyncio.Task[None]:
        if self._mapping is None or self._mapping.done():
            self._mapping = self._tasks.start(self._map())
        return self._mapping

    async def _map(self) -> None:
        """Ask the known nodes, connected ones first, until one gives its map."""
        await asyncio.sleep(self._map_after - self._loop.time())
        for endpoint in self._known():
            try:
                reply = await self._ask_map(endpoint)
            except (LinkLost, ServerError) as error:
                self._map_error = error
                continue
            if self._read_map(reply, endpoint.host):
                self._map_error = None
                break
        self._map_after = self._loop.time() + MAP_SECONDS

    async def _ask_map(self, endpoint: Endpoint) -> Reply:
        """Ask one node for the map, by its link if there is one. Others may be replicas, so their link is not kept."""
        limit = self._loop.time() + CONNECT_SECONDS
        kept = self._links.get(endpoint)
        if kept is not None and not kept.closed:
            return await kept.send(("CLUSTER", "SLOTS"), limit)
        link = await Link.open(endpoint, self.address, NodeClock(), bare=True)
        try:
            return await link.send(("CLUSTER", "SLOTS"), limit)
        finally:
            link.close()

    def _known(self) -> Iterable[Endpoint]:
        alive = [endpoint for endpoint, link in self._links.items() if not link.closed]
        rest = {owner for owner in self._owners if owner is not None} | set(self.address.nodes)
        random.shuffle(alive)
        return [*alive, *sorted(rest - set(alive), key=lambda node: self._failures.get(node, 0))]

    def _read_map(self, reply: Reply, asked_host: str) -> bool:
        ranges = cast("list[list[Reply]]", reply)
        for first, last, primary, *_ in ranges:
            host, port = cast("list[Reply]", primary)[:2]
            name = cast("bytes", host).decode() if host else asked_host
            owner = Endpoint(name or asked_host, cast("int", port))
            for slot in range(cast("int", first), cast("int", last) + 1):
                self._owners[slot] = owner
        return bool(ranges)


ROUTES: Final[dict[StoreKind, type[Route]]] = {
    StoreKind.STANDALONE: StandaloneRoute,
    StoreKind.SENTINEL: SentinelRoute,
    StoreKind.CLUSTER: ClusterRoute,
}
