"""When a link to the store writes: at once for one who is alone, together for a crowd."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from typing import NamedTuple, cast

import pytest

from headgate.kit.tasks import Tasks, cancel
from headgate.store.client.address import Endpoint, parse_address
from headgate.store.client.link import Link, NodeClock
from headgate.store.client.route import SentinelRoute
from tests.topology import Stopwatch

LATER = 1e12


class Wire(NamedTuple):
    """Both ends of one connection; the far one is ours to read and answer."""

    link: Link
    far: socket.socket

    def arrived(self) -> int:
        """Count the commands that were written by now, without giving the link a turn."""
        try:
            return self.far.recv(65536).count(b"ECHO")
        except BlockingIOError:
            return 0

    async def answer(self, *waiting: asyncio.Future[object]) -> None:
        self.far.sendall(b"+ok\r\n" * len(waiting))
        await asyncio.gather(*waiting)


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        host, port = server.getsockname()
        endpoint = Endpoint(host, port)
        link = await Link.open(endpoint, parse_address(f"valkey://{host}:{port}"), NodeClock(), bare=True)
        far, _ = server.accept()
        with closing(far):
            far.setblocking(False)
            yield Wire(link, far)
            link.close()


def say(link: Link, words: str) -> asyncio.Future[object]:
    return link.send(("ECHO", words), LATER)  # type: ignore[return-value]


async def alone(wire: Wire) -> None:
    """Have one command come and go with nobody beside it."""
    only = say(wire.link, "only")
    await asyncio.sleep(0)
    assert wire.arrived() <= 1
    await wire.answer(only)


async def test_one_who_is_alone_waits_for_no_company(wire: Wire) -> None:
    await alone(wire)
    for _ in range(3):
        second = say(wire.link, "second")
        assert wire.arrived() == 1
        await wire.answer(second)


async def test_a_crowd_shares_one_write(wire: Wire) -> None:
    await alone(wire)
    crowd = [say(wire.link, str(n)) for n in range(5)]
    assert wire.arrived() == 1  # nobody could know that the others would come
    await asyncio.sleep(0)
    assert wire.arrived() == 4
    await wire.answer(*crowd)
    crowd = [say(wire.link, str(n)) for n in range(5)]
    assert wire.arrived() == 0
    await asyncio.sleep(0)
    assert wire.arrived() == 5
    await wire.answer(*crowd)


async def test_answers_go_to_those_who_asked_whether_they_were_alone_or_not(wire: Wire) -> None:
    await alone(wire)
    first, second = say(wire.link, "first"), say(wire.link, "second")
    await asyncio.sleep(0)
    wire.far.sendall(b"+1\r\n+2\r\n")
    assert [await first, await second] == [b"1", b"2"]


async def told_after(wire: Wire, clock: NodeClock) -> list[str]:
    """Have the far side answer what waits, and give the words that scripts get."""
    wire.far.sendall(b"+ok\r\n")
    await asyncio.sleep(0.1)
    return clock.for_scripts(asyncio.get_running_loop().time()).split(" ")


@pytest.mark.anyio
async def test_scripts_are_told_of_a_request_that_waited_long_for_its_answer(wire: Wire) -> None:
    clock = wire.link.clock
    clock.learn(1_000_000.0, asyncio.get_running_loop().time())
    say(wire.link, "quick")
    await asyncio.sleep(0.4)
    assert len(await told_after(wire, clock)) == 3
    asked = say(wire.link, "slow")
    await asyncio.sleep(1.5)
    *_, from_ms, until_ms = await told_after(wire, clock)
    assert asked.done()
    assert 1000 <= int(until_ms) - int(from_ms) <= 1700


@pytest.mark.anyio
async def test_a_process_that_stood_still_itself_tells_of_no_outage(wire: Wire) -> None:
    clock = wire.link.clock
    clock.learn(1_000_000.0, asyncio.get_running_loop().time())
    asked = say(wire.link, "slow")
    await asyncio.sleep(0.4)
    time.sleep(1.5)  # nothing runs in this process
    assert len(await told_after(wire, clock)) == 3
    assert asked.done()


@pytest.mark.anyio
async def test_a_time_whose_answer_waited_for_this_process_is_not_learned(wire: Wire) -> None:
    loop, clock = asyncio.get_running_loop(), wire.link.clock
    clock.learn(1_000_000.0, loop.time())
    asked = b""
    while b"TIME" not in asked:
        await asyncio.sleep(0.02)
        with suppress(BlockingIOError):
            asked += wire.far.recv(65536)
    expected = clock.expect(loop.time())
    wire.far.sendall(b"+role:master\r\n*2\r\n$4\r\n%d\r\n$1\r\n0\r\n" % (expected // 1000))
    time.sleep(1.5)
    await asyncio.sleep(0.1)
    assert 1500 <= clock.expect(loop.time()) - expected < 2500


@asynccontextmanager
async def sentinel(port: int, after_seconds: float) -> AsyncIterator[int]:
    """A sentinel that names the primary at a port, somewhat later."""

    handlers: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(cast("asyncio.Task[None]", asyncio.current_task()))
        try:
            await reader.readuntil(b"GET-MASTER-ADDR-BY-NAME")
            await asyncio.sleep(after_seconds)
            writer.write(b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%d\r\n" % (len(str(port)), port))
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await cancel(*handlers)


async def test_the_primary_is_the_one_that_most_sentinels_name_not_the_first_answer() -> None:
    old, new = 7001, 7002
    async with sentinel(old, 0) as a, sentinel(new, 0.05) as b, sentinel(new, 0.05) as c, Tasks() as tasks:
        nodes = ",".join(f"127.0.0.1:{port}" for port in (a, b, c))
        route = SentinelRoute(parse_address(f"valkey+sentinel://{nodes}/mine"), tasks)
        assert await route._find() == Endpoint("127.0.0.1", new)


async def test_one_sentinel_that_answers_is_enough() -> None:
    async with sentinel(7001, 0) as a, sentinel(7002, 60) as b, sentinel(7002, 60) as c, Tasks() as tasks:
        nodes = ",".join(f"127.0.0.1:{port}" for port in (a, b, c))
        route = SentinelRoute(parse_address(f"valkey+sentinel://{nodes}/mine"), tasks)
        watch = Stopwatch()
        assert await route._find() == Endpoint("127.0.0.1", 7001)
        assert watch.seconds < 3
