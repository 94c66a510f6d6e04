"""Upstreams whose answers are made to cost much: they are refused early, and meanwhile everybody else is served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import httpx2
import pytest

from headgate.http.client import ClientConnection
from headgate.http.client_response import HEAD_BYTES, STEP_BYTES, BadResponse, ClientResponse
from tests.http.echo import Echo
from tests.http.relays import RelayProcess, client_of, put
from tests.http.wires import Wire
from tests.topology import HOST, Topology

pytestmark = pytest.mark.anyio

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = 65_536
ENDLESS = {
    "head": (b"HTTP/1.1 200 OK\r\nX: ", b"a" * PIECE),
    "interim answers": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * (PIECE // 28)),
    "one trailer": (CHUNKED + b"3\r\nabc\r\n0\r\nX: ", b"a" * PIECE),
    "many trailers": (CHUNKED + b"3\r\nabc\r\n0\r\n", b"a:b\r\n" * (PIECE // 5)),
    "a chunk's extension": (CHUNKED + b"3;a=", b"a" * PIECE),
}


@pytest.fixture(scope="module")
def relay(server: Topology) -> Iterator[RelayProcess]:
    with RelayProcess(server.url) as process:
        yield process


@pytest.fixture
async def client(relay: RelayProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(relay) as made:
        yield made


class Flood:
    """An upstream that answers every request with bytes that do not end, and counts what was taken of them."""

    def __init__(self, begin: bytes, piece: bytes) -> None:
        self.begin, self.piece = begin, piece
        self.url = ""
        self.taken = 0
        self.ended = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Flood]:
        server = await asyncio.start_server(self._answer, HOST, 0)
        self.url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.begin)
            while True:
                writer.write(self.piece)
                await writer.drain()
                self.taken += len(self.piece)
        self.ended.set()
        writer.close()


@pytest.mark.parametrize("kind", ENDLESS)
async def test_an_endless_head_or_trailer_ends_the_answer_and_nobody_else_waits(
    client: httpx2.AsyncClient, kind: str
) -> None:
    user = {"X-User-Id": "u1"}
    async with Echo().open() as echo, Flood(*ENDLESS[kind]).open() as upstream:
        await put(client, "other", echo.url, {"count": 1000, "seconds": 1})
        await put(client, "flood", upstream.url, retry={"attempts": 0})
        flooded = asyncio.ensure_future(client.get("/relay/flood/x", headers=user))
        while not upstream.ended.is_set():
            answer = await client.get("/relay/other/x", headers=user)
            assert answer.status_code == 200
        with suppress(httpx2.RemoteProtocolError):  # some of it was passed on already: that is broken off
            assert (await flooded).status_code == 502
        # The network's buffers take some megabytes before anything is read.
        assert upstream.taken < 16_000_000


@pytest.mark.parametrize("kind", ENDLESS)
async def test_what_is_read_of_an_endless_head_or_trailer_is_bounded(kind: str) -> None:
    begin, piece = ENDLESS[kind]
    response = ClientResponse("GET")
    data, fed = begin + piece * 4, 0
    with suppress(BadResponse):
        while fed < len(data):
            fed += response.feed(data[fed:], 1.0)
    assert fed <= HEAD_BYTES + STEP_BYTES


async def test_one_turn_of_the_loop_parses_little_of_an_answer() -> None:
    """However much one read brings, the rest waits for later turns; all of it arrives, also when the connection ends."""
    for ends_early in (False, True):
        connection, body = ClientConnection(asyncio.get_running_loop()), b""
        connection.connection_made(Wire())
        response = connection._response = ClientResponse("GET")
        connection.data_received(CHUNKED + b"1\r\na\r\n" * 40_000 + b"0\r\n\r\n")
        turns = 0
        while connection._unparsed:
            taken = response.take()
            assert len(taken) <= STEP_BYTES // 6 + 1
            body += taken
            turns += 1
            if ends_early and turns == 3:
                connection.connection_lost(None)
            else:
                await asyncio.sleep(0)
        assert body + response.take() == b"a" * 40_000
        assert response.complete


async def test_an_answer_with_more_behind_it_is_whole_but_ends_its_connection() -> None:
    for head in (b"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n", CHUNKED + b"4e20\r\n"):
        tail = b"" if b"Length" in head else b"\r\n0\r\n\r\n"
        for more in (b"", b"HTTP/1.1 200 OK\r\n\r\n"):
            response = ClientResponse("GET")
            data, fed = head + b"x" * 20_000 + tail + more, 0
            while fed < len(data):
                fed += response.feed(data[fed:], 1.0)
            assert response.complete
            assert response.take() == b"x" * 20_000
            assert response.keep_alive is not bool(more)
