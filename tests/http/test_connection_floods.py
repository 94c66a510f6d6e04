"""Requests that are made to cost much: they are refused early, and meanwhile everybody else is answered."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress

import pytest

from headgate.arena.server import Arena
from headgate.arena.settings import ArenaSettings
from headgate.http.connection import MOST_HEADER_BYTES, MOST_PIPELINED, STEP_BYTES, ServerConnection
from headgate.http.exchange import Exchange
from headgate.http.listener import Listener, RequestCoroutine
from headgate.http.operations import serve_operations
from headgate.http.problems import HeadTooLarge
from headgate.http.routes import Receive, Scope
from headgate.kit.problems import HeadgateError
from tests.http.wires import GET, Wire, echo, flood, parsed, parsed_all, read_answer, served

pytestmark = pytest.mark.anyio

CHUNKED = b"%b %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = 65_536
ENDLESS = {
    "one trailer": (b"3\r\nabc\r\n0\r\nX: ", b"a" * PIECE),
    "many trailers": (b"3\r\nabc\r\n0\r\n", b"a:b\r\n" * (PIECE // 5)),
    "a trailer's name": (b"0\r\n", b"a" * PIECE),
    "a chunk's extension": (b"3;a=", b"a" * PIECE),
    "a chunk's size": (b"", b"0" * PIECE),
}


async def explains(scope: Scope, receive: Receive, send: Exchange) -> None:
    """Echo a request, or answer with the status of what is wrong with it."""
    try:
        await echo(scope, receive, send)
    except HeadgateError as error:
        send.respond(error.status, b"content-length: 0\r\n\r\n", b"")


@pytest.mark.parametrize("kind", ENDLESS)
async def test_an_endless_trailer_is_refused_like_an_endless_head(kind: str) -> None:
    begin, piece = ENDLESS[kind]
    async with served(explains) as site:
        sent, heard = await flood(site.port, CHUNKED % (b"POST", b"/") + begin, piece)
    assert parsed(heard)[0] == 431
    assert sent < 4_000_000, "what is sent while the refusal is on its way is read and thrown away"


@pytest.mark.parametrize("kind", ENDLESS)
async def test_what_is_kept_of_an_endless_trailer_is_bounded(kind: str) -> None:
    begin, piece = ENDLESS[kind]
    exchanges: list[Exchange] = []

    def take(exchange: Exchange) -> None:
        exchanges.append(exchange)

    client, wire = fed_by_hand(take)
    client.data_received(CHUNKED % (b"POST", b"/") + begin)
    taken = 0
    while client._receiving is not None:
        client.data_received(piece)
        await parsed_all(client)
        taken += len(piece)
        assert taken <= MOST_HEADER_BYTES + 2 * PIECE
    assert exchanges[0].body() is None
    with pytest.raises(HeadTooLarge):
        await exchanges[0].receive()
    assert not wire.written


async def test_a_stream_whose_request_has_an_endless_trailer_is_cut() -> None:
    async def streams(scope: Scope, receive: Receive, send: Exchange) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await asyncio.sleep(600)

    async with served(streams) as site:
        reader, writer = await site.connect()
        writer.write(CHUNKED % (b"GET", b"/") + b"0\r\nX: ")
        async with asyncio.timeout(20):
            await reader.readuntil(b"first\r\n")
            with suppress(ConnectionError):
                while True:
                    writer.write(b"a" * PIECE)
                    await writer.drain()
        writer.transport.abort()


@pytest.mark.parametrize(
    "attack",
    [
        *((CHUNKED % (b"POST", b"/") + begin, piece) for begin, piece in ENDLESS.values()),
        (CHUNKED % (b"POST", b"/"), b"1\r\na\r\n" * (PIECE // 6)),
        (b"", GET % b"/" * (PIECE // 27)),
        (b"", b"\r\n" * (PIECE // 2)),
    ],
    ids=[*ENDLESS, "tiny chunks", "pipelined requests", "empty lines"],
)
async def test_others_are_answered_during_a_flood(attack: tuple[bytes, bytes]) -> None:
    """One parser and one loop serve everybody; a request of somebody else takes a few turns of the loop, whatever is sent."""

    async with served(explains) as site:
        flooding = asyncio.ensure_future(flood(site.port, *attack))
        reader, writer = await site.connect()
        for number in range(50):
            writer.write(GET % b"/%d" % number)
            assert (await read_answer(reader))[0] == 200
        writer.close()
        flooding.cancel()
        await asyncio.wait((flooding,))


@pytest.mark.parametrize(
    "data",
    [
        CHUNKED % (b"POST", b"/") + b"1\r\na\r\n" * 40_000,
        CHUNKED % (b"POST", b"/") + b"0\r\n" + b"a:b\r\n" * 50_000,
        b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(8000)),
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:b\r\n" * 50_000,
        b"\r\n" * 120_000,
    ],
    ids=["tiny chunks", "many trailers", "pipelined requests", "many headers", "empty lines"],
)
async def test_one_turn_of_the_loop_parses_little(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much one read brings: the turn that it comes in, and each turn after it, has an upper bound of work."""
    fed: list[int] = []
    served_now: list[Exchange] = []
    feed = ServerConnection._feed

    def counted(connection: ServerConnection, piece: bytes) -> None:
        fed.append(len(piece))
        feed(connection, piece)

    monkeypatch.setattr(ServerConnection, "_feed", counted)

    def answer(exchange: Exchange) -> None:
        served_now.append(exchange)
        exchange.respond(200, b"content-length: 0\r\n\r\n", b"")

    client, wire = fed_by_hand(answer)
    client.data_received(data)
    turns = 1
    while True:
        assert sum(fed) <= STEP_BYTES
        assert len(served_now) <= MOST_PIPELINED
        fed.clear()
        served_now.clear()
        if not client._unparsed:
            break
        turns += 1
        await asyncio.sleep(0)
    assert turns > 3 or wire.written


async def test_pipelined_requests_of_one_read_are_bounded_too() -> None:
    go = asyncio.Event()

    async def later(exchange: Exchange) -> None:
        await go.wait()
        exchange.respond(200, b"content-length: %d\r\n\r\n" % len(exchange.target.path), exchange.target.path)

    def serve(exchange: Exchange) -> RequestCoroutine | None:
        return later(exchange)

    gc.collect()
    before = sum(isinstance(each, Exchange) for each in gc.get_objects())
    client, wire = fed_by_hand(serve)
    for start in (0, 4000):
        client.data_received(b"".join(GET % b"/%04d" % number for number in range(start, start + 4000)))
    for _ in range(100):
        await asyncio.sleep(0)
    made = sum(isinstance(each, Exchange) for each in gc.get_objects())
    assert made - before <= 1 + MOST_PIPELINED
    go.set()
    async with asyncio.timeout(60):
        while wire.written.count(b"HTTP/1.1 200") < 8000:
            await asyncio.sleep(0.01)
    answers = [answer[-5:] for answer in wire.written.split(b"HTTP/1.1 200")[1:]]
    assert answers == [b"/%04d" % number for number in range(8000)]


async def test_a_request_with_thousands_of_headers_is_refused() -> None:
    """Short header lines take forty times the memory of their bytes."""
    async with served(explains) as site:
        lines = b"".join(b"a%d:b\r\n" % number for number in range(5000))
        assert parsed(await site.exchange(b"GET / HTTP/1.1\r\nHost: x\r\n%b\r\n" % lines))[0] == 431


@pytest.mark.parametrize("kind", [*ENDLESS, "head"])
async def test_the_operations_port_reads_no_more_than_a_head(kind: str) -> None:
    async def ready() -> None:
        """Say that all is well."""

    async with serve_operations(0, ready) as port:
        sent, heard = await flood(port, *endless(kind, b"/livez"))
    if heard:  # what was sent behind the answer may have ended the connection before it was read
        assert parsed(heard)[0] == (431 if kind == "head" else 200)
    assert sent < 4_000_000


@pytest.mark.parametrize("kind", [*ENDLESS, "head"])
async def test_an_arena_reads_no_more_than_a_head(kind: str) -> None:
    async with Arena(ArenaSettings(port=0)).open() as port:
        sent, heard = await flood(port, *endless(kind, b"/gameserver"))
    if heard:
        assert parsed(heard)[0] == (431 if kind == "head" else 400)
    assert sent < 4_000_000


def endless(kind: str, path: bytes) -> tuple[bytes, bytes]:
    if kind == "head":
        return b"GET %b HTTP/1.1\r\nX: " % path, b"a" * PIECE
    begin, piece = ENDLESS[kind]
    return CHUNKED % (b"GET", path) + begin, piece


def fed_by_hand(serve: object) -> tuple[ServerConnection, Wire]:
    wire, client = Wire(), ServerConnection(Listener(serve))  # type: ignore[arg-type]
    client.connection_made(wire)
    return client, wire
