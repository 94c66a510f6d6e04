"""A small world for the relay's tests: relays on one store, and an upstream that counts arrivals after random delays."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from headgate.cli.trial.strict_limits import ArrivalLimiter, largest_window
from headgate.relay.job_runner import JobRunner
from headgate.relay.model import Limit, Outcome, Upstream
from headgate.relay.permits import Permits
from headgate.relay.problems import PermitExpired
from headgate.relay.upstreams import Upstreams
from headgate.store import Store, StoreSettings, open_store
from tests.topology import Stopwatch

PATIENT_MS = 10_000  # a deadline of the store that a machine which stands still for a while does not miss


def window(count: int, seconds: float, **more: object) -> Upstream:
    """A policy of one window per user, with short times so that tests end."""
    given: dict[str, object] = {
        "base_url": "http://upstream.test",
        "limits": (Limit(count=count, seconds=seconds),),
        "timeout_seconds": 1.0,
        "delivery_seconds": 0.2,
        "deadline_seconds": 60.0,
    }
    return Upstream(**(given | more))  # type: ignore[arg-type]


class Lag:
    """How late this machine is on average when it sleeps and then calls the store."""

    def __init__(self) -> None:
        self._samples: list[float] = []

    @property
    def mean(self) -> float:
        """Give it in seconds."""
        return sum(self._samples) / len(self._samples)

    async def measure(self, node: Node, name: str) -> None:
        """Go on measuring."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            await asyncio.sleep(0.02)
            await node.upstreams.figures(name, "nobody")
            self._samples.append(loop.time() - started - 0.02)


@asynccontextmanager
async def lag_of(node: Node, name: str) -> AsyncIterator[Lag]:
    """Measure beside the work."""
    lag = Lag()
    task = asyncio.ensure_future(lag.measure(node, name))
    try:
        yield lag
    finally:
        task.cancel()
        await asyncio.wait((task,))


class Counting:
    """Counts arrivals per user; `refused` are those that its limiter did not allow."""

    def __init__(
        self, seed: int, delay: float = 0.01, tail: float = 0.2, *, limiter: ArrivalLimiter | None = None
    ) -> None:
        self.random = random.Random(seed)
        self.delay, self.tail, self.limiter = delay, tail, limiter
        self.arrivals: dict[str, list[float]] = {}
        self._watch = Stopwatch()
        self._running: dict[str, list[float]] = {}
        self.trips: list[tuple[float, float]] = []
        self.refused = 0

    async def call(self, user: str, units: int = 1) -> None:
        """Travel, be counted as so many, be worked on, travel back."""
        left = asyncio.get_running_loop().time()
        await asyncio.sleep(self._way())
        moment = asyncio.get_running_loop().time()
        for _ in range(units):
            self.arrivals.setdefault(user, []).append(moment)
            self._running.setdefault(user, []).append(self._watch.seconds)
            if self.limiter is not None and not self.limiter.arrive(moment):
                self.refused += 1
        await asyncio.sleep(self._way())
        self.trips.append((left, asyncio.get_running_loop().time()))

    def seen(self, count: int) -> bool:
        """Tell whether so many have arrived."""
        return sum(len(moments) for moments in self.arrivals.values()) >= count

    def largest(self, user: str, seconds: float) -> int:
        """Give the most arrivals in any window, which no limit allows to be more than its count."""
        return largest_window(self.arrivals.get(user, ()), seconds)

    def fullest(self, user: str, seconds: float) -> int:
        """Give the most arrivals in any window in which the machine ran, to see that a limit was used to the full."""
        return largest_window(self._running.get(user, ()), seconds)

    def optimum(self, count: int, seconds: float, lag: Lag) -> float:
        """Give the shortest time in which the rule could have made the same trips, one after the other on each permit.

        Between two trips on a permit the store hears of the first and is asked for the second, on this machine as it was.
        """
        free = [0.0] * count
        end = 0.0
        for left, back in sorted(self.trips):
            start = heapq.heappop(free)
            end = max(end, start + back - left)
            heapq.heappush(free, start + back - left + 2 * lag.mean + seconds)
        return end + 2 * lag.mean

    def refusals_at_any_phase(self, make: Callable[[float], ArrivalLimiter], phases: int = 200) -> int:
        """Let the same arrivals come to limiters whose windows begin elsewhere; give the most that one refuses."""
        moments = sorted(moment for each in self.arrivals.values() for moment in each)
        worst = 0
        for _ in range(phases):
            limiter = make(self.random.random() * 60)
            worst = max(worst, sum(not limiter.arrive(moment) for moment in moments))
        return worst

    def _way(self) -> float:
        slow = self.tail * self.random.random() if self.random.random() < 0.05 else 0.0
        return self.delay * self.random.lognormvariate(0, 0.5) + slow


class Patient:
    """An HTTP server that lets everybody wait for their answer until it is told to give it."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.arrived = 0
        self.connections: set[asyncio.StreamWriter] = set()
        self._port = 0

    @property
    def url(self) -> str:
        """Give its address."""
        return f"http://127.0.0.1:{self._port}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Patient]:
        """Listen on loopback."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            self.answer.set()
            server.close()
            for writer in tuple(self.connections):
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        with suppress(OSError, EOFError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if b"content-length: 1\r\n" in head:
                    await reader.readexactly(1)
                self.arrived += 1
                await self.answer.wait()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                await writer.drain()
        self.connections.discard(writer)
        writer.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Scripted:
    """An HTTP server that says what a function gives for the n-th request (from 1), and remembers when each came.

    Words that end with `CUT` end the connection; after words that are no whole answer the server says no more.
    """

    CUT = b"<cut>"

    def __init__(self, say: Callable[[int], bytes]) -> None:
        self.arrivals: list[float] = []
        self._say = say
        self._port = 0
        self._connections: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Give its address."""
        return f"http://127.0.0.1:{self._port}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Scripted]:
        """Listen on loopback."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in tuple(self._connections):
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        with suppress(OSError, EOFError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if b"content-length: 1\r\n" in head:
                    await reader.readexactly(1)
                self.arrivals.append(asyncio.get_running_loop().time())
                words = self._say(len(self.arrivals))
                writer.write(words.removesuffix(self.CUT))
                await writer.drain()
                if words.endswith(self.CUT):
                    break
        self._connections.discard(writer)
        writer.close()


class Node:
    """One relay process, as far as permits go."""

    def __init__(self, store: Store, upstreams: Upstreams, permits: Permits) -> None:
        self.store, self.upstreams, self.permits = store, upstreams, permits

    async def send(
        self, name: str, user: str, upstream: Counting, *, seconds: float = 30.0, units: int = 1,
        refused: Callable[[], bool] = lambda: False,
    ) -> float:  # fmt: skip
        """Do what the proxy does with one request; give the moment of the grant. `refused` says which get a 429."""
        loop = asyncio.get_running_loop()
        deadline, place = loop.time() + seconds, 0
        while True:
            policy = (await self.upstreams.get(name)).policy
            permit = await self.permits.acquire(name, policy, user, deadline=deadline, units=units, place=place)
            granted, place = loop.time(), permit.place
            try:
                permit.sending()
                await upstream.call(user, units)
            except PermitExpired:
                permit.give_back()
                continue
            except BaseException:
                permit.give_back()
                raise
            if refused():
                told = permit.settle(Outcome.REFUSED)  # and asks for no pause at all
                if told is not None:
                    await asyncio.wait((told,))
                continue
            permit.settle(Outcome.ENDED)
            return granted


@asynccontextmanager
async def nodes(
    url: str, prefix: str, count: int, *, deadline_ms: int = 2000, new: bool = True
) -> AsyncIterator[list[Node]]:
    """Start so many relays on one store, each with connections of its own; unless said otherwise it is known to be new."""
    settings = StoreSettings(url=url, prefix=prefix, deadline_ms=deadline_ms)
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            store = await stack.enter_async_context(open_store(settings))
            upstreams = Upstreams(store)
            if new:
                await upstreams.note_new_store()
            permits = await stack.enter_async_context(Permits(store, upstreams))
            made.append(Node(store, upstreams, permits))
        yield made


@asynccontextmanager
async def running(runner: JobRunner) -> AsyncIterator[asyncio.Task[None]]:
    """Let a runner run beside the test."""
    task = asyncio.create_task(runner.run())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
