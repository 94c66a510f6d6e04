"""A differential test of the header cache: with and without it, a connection serves the same requests and sends the same bytes."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from headgate.http.connection import ServerConnection
from headgate.http.exchange import Exchange
from headgate.http.listener import Listener
from tests.http.wires import Wire, parsed_all

pytestmark = pytest.mark.anyio

QUICK = 2_000
STREAMS = 50_000
METHODS = (b"GET", b"GET", b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"PATCH", b"get", b"GET ")
TARGETS = (
    *(b"/", b"/a", b"/a?b=c", b"/a?b=d", b"/a?b=e&f", b"/a?", b"/a?b=c?d", b"/a?b c", b"/a?b#c", b"/a#b", b"/a%20b"),
    *(
        b"*",
        b"a",
        b"http://z/q?r",
        b"/\xc3\xa9",
        b"/a?\xc3\xa9",
        b"/a\x7fb",
        b"/a?b=c HTTP/1.1\r\nX: y",
        b"//",
        b"/a?b=\t",
    ),
)
VERSIONS = (*[b"HTTP/1.1\r\n"] * 12, b"HTTP/1.0\r\n", b"HTTP/1.2\r\n", b"HTTP/1.1\n", b"HTTP/1.1 \r\n", b"\r\n")
BLOCKS = (
    *[b"Host: x\r\n\r\n", b"Host: x\r\nAccept: */*\r\n\r\n", b"host: x\r\nCookie: a=b\r\n\r\n"] * 3,
    b"Host: x\r\nContent-Length: 2\r\n\r\nab",
    b"Host: x\r\nContent-Length: 2\r\n\r\nabc",
    b"Host: x\r\nContent-Length: 4\r\n\r\n\r\n\r\n",
    b"Host: x\r\nContent-Length: 3\r\n\r\nGET",
    b"Host: x\r\nContent-Length: 0\r\n\r\n",
    b"Host: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab",
    b"Host: x\r\nContent-Length: +2\r\n\r\nab",
    b"Host: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    b"Host: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
    b"Host: x\r\nTransfer-Encoding: x\r\n\r\n",
    b"Host: x\r\nConnection: close\r\n\r\n",
    b"Host: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    b"Host: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab",
    b"Host: x\r\nX-Forwarded-For: 1\r\n\r\n",
    b"Host: x\r\nHost: y\r\n\r\n",
    b"Host: x\r\nX: a\r\n b\r\n\r\n",
    b"Host: x\r\nX : a\r\n\r\n",
    b"Host: x\n\r\n",
    b"X: y\r\n\r\n",
    b"\r\n",
    b"",
)


def stream(random: Random) -> list[bytes]:
    """Make a few requests, many of them alike, sometimes with a changed byte; cut them between requests, anywhere or nowhere."""
    targets, blocks = random.choices(TARGETS, k=2), random.choices(BLOCKS, k=2)
    requests = []
    for _ in range(random.randint(2, 6)):
        line = b" ".join(
            (random.choice(METHODS[: random.choice((3, 10))]), random.choice(targets), random.choice(VERSIONS))
        )
        request = line + random.choice(blocks)
        if random.random() < 0.06:
            at = random.randrange(len(request))
            request = request[:at] + random.choice((b"", b" ", b"\r\n", b"\0", b"?", b"GET ")) + request[at + 1 :]
        requests.append(request)
    if random.random() < 0.6:
        return requests
    whole, pieces = b"".join(requests), []
    while whole:
        size = random.choice((1, 7, 40, 200))
        pieces.append(whole[:size])
        whole = whole[size:]
    return pieces


async def outcome(
    pieces: list[bytes], listener: Listener, seen: list[object]
) -> tuple[list[object], list[bytes], bool]:
    """Feed one connection; return the requests that were served, the status lines and bodies sent, and whether it was closed."""
    seen.clear()
    wire, client = Wire(), ServerConnection(listener)
    client.connection_made(wire)
    for piece in pieces:
        if wire.closed:
            break
        client.data_received(piece)
        if client._unparsed:
            await parsed_all(client)
    client.flush()
    closed = wire.closed or client._lingering
    client.connection_lost(None)
    sent = [
        line for line in wire.written.split(b"\r\n") if line.startswith((b"HTTP/", b"connection:", b"content-length:"))
    ]
    return seen.copy(), sent, closed


@pytest.mark.parametrize("seed", range(4))
async def test_the_header_cache_changes_nothing(seed: int, request: pytest.FixtureRequest) -> None:
    random = Random(seed)
    seen: list[object] = []

    def serve(exchange: Exchange) -> None:
        target = exchange.target
        seen.append(
            (target.method, target.path, exchange.query, target.head.pairs, exchange.body(), exchange.keep_alive)
        )
        exchange.respond(200, b"content-length: 0\r\n\r\n", b"")

    cached, parsed = Listener(serve), Listener(serve, header_cache=False)
    streams = STREAMS if request.config.getoption("--topology") == "every" else QUICK
    for number in range(streams):
        if number % 100 == 0:
            await asyncio.sleep(0)  # lets the listeners flush, and so forget, the connections of before
        pieces = stream(random)
        assert await outcome(pieces, cached, seen) == await outcome(pieces, parsed, seen), (seed, number, pieces)


async def test_the_cache_is_used() -> None:
    """Requests with headers that were parsed before are taken from the cache, which shares one object for them."""
    heads: set[int] = set()

    def serve(exchange: Exchange) -> None:
        heads.add(id(exchange.target.head))
        kept.append(exchange.target.head)
        exchange.respond(200, b"content-length: 0\r\n\r\n", b"")

    kept: list[object] = []
    for header_cache, expected in ((True, 1), (False, 4)):
        heads.clear()
        client = ServerConnection(Listener(serve, header_cache=header_cache))
        client.connection_made(Wire())
        for query in (b"a", b"b", b"c", b"d"):
            client.data_received(b"GET /?%b HTTP/1.1\r\nHost: x\r\n\r\n" % query)
        assert len(heads) == expected
