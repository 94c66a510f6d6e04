"""Where messages begin and end: what could be read in two ways is refused, in either direction."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest

from tests.http.echo import Echo
from tests.http.relays import RelayProcess, client_of, put, raw
from tests.topology import Topology


@pytest.fixture(scope="module")
def relay(server: Topology) -> Iterator[RelayProcess]:
    with RelayProcess(server.url) as process:
        yield process


@pytest.fixture
async def client(relay: RelayProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(relay) as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"up-{secrets.token_hex(4)}"


HIDDEN = b"GET /relay/{name}/hidden HTTP/1.1\r\nHost: x\r\nX-API-Token: {token}\r\nX-User-Id: u1\r\n\r\n"
SMUGGLES = {
    "a length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 3\r\nContent-Length: 5\r\n\r\nabcde",
    "two equal lengths": b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "lengths in a list": b"Content-Length: 3, 5\r\n\r\nabcde",
    "negative length": b"Content-Length: -1\r\n\r\n",
    "signed length": b"Content-Length: +3\r\n\r\nabc",
    "hexadecimal length": b"Content-Length: 0x3\r\n\r\nabc",
    "two codings": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "another coding": b"Transfer-Encoding: gzip\r\n\r\n",
    "no coding": b"Transfer-Encoding: identity\r\n\r\n",
    "hidden coding": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a coding that looks like it": b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "bad chunk": b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    "negative chunk": b"Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
    "chunk in hexadecimal signs": b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
    "chunk too large to count": b"Transfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n0\r\n\r\n",
    "chunk longer than said": b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcde\r\n0\r\n\r\n",
    "chunk line ends bare": b"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
    "folded": b"X-A: one\r\n two\r\nContent-Length: 0\r\n\r\n",
    "folded length": b"Content-Length:\r\n 3\r\n\r\nabc",
    "space before the colon": b"Content-Length : 3\r\n\r\nabc",
    "space in a name": b"Content Length: 3\r\n\r\nabc",
    "space before a name": b" Content-Length: 3\r\n\r\nabc",
    "no name": b": x\r\nContent-Length: 0\r\n\r\n",
    "no colon": b"nonsense\r\nContent-Length: 0\r\n\r\n",
    "bare line feed": b"X-A: one\nContent-Length: 0\r\n\r\n",
    "bare carriage return": b"X-A: one\rContent-Length: 0\r\n\r\n",
    "nul in a value": b"X-A: o\0ne\r\nContent-Length: 0\r\n\r\n",
    "second host": b"Host: other\r\nContent-Length: 0\r\n\r\n",
}
STRUCK = {
    "second user": b"X-User-Id: u2\r\nContent-Length: 0\r\n\r\n",
    "struck header": b"Connection: close, X-Custom\r\nContent-Length: 0\r\n\r\n",
    "struck user": b"Connection: X-User-Id\r\nContent-Length: 0\r\n\r\n",
    "struck token": b"Connection: keep-alive, X-API-Token\r\nContent-Length: 0\r\n\r\n",
    "struck length": b"Connection: Content-Length\r\nContent-Length: 3\r\n\r\nabc",
    "struck by the second": b"Connection: close\r\nConnection: Authorization\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("kind", SMUGGLES)
async def test_smuggling_is_refused(relay: RelayProcess, client: httpx2.AsyncClient, name: str, kind: str) -> None:
    """Refused, closed, and what follows on the connection is never taken for a request."""
    async with Echo().open() as echo:
        await put(client, name, echo.url)
        head = f"POST /relay/{name}/x HTTP/1.1\r\nHost: x\r\nX-API-Token: {relay.token}\r\nX-User-Id: u1\r\n".encode()
        hidden = HIDDEN.replace(b"{name}", name.encode()).replace(b"{token}", relay.token.encode())
        answer = await raw(relay.port, head + SMUGGLES[kind] + hidden)
        assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 ")), answer[:300]
        assert answer.count(b"HTTP/1.1 ") == 1
        # A request whose body turns out to be broken half-way may have begun; it must not have been completed.
        assert echo.whole == 0
        assert not any("hidden" in path for path in echo.paths)


@pytest.mark.parametrize("kind", STRUCK)
async def test_headers_that_two_readers_would_see_differently_are_refused(
    relay: RelayProcess, client: httpx2.AsyncClient, name: str, kind: str
) -> None:
    async with Echo().open() as echo:
        await put(client, name, echo.url)
        head = f"POST /relay/{name}/x HTTP/1.1\r\nHost: x\r\nX-API-Token: {relay.token}\r\nX-User-Id: u1\r\n".encode()
        answer = await raw(relay.port, head + STRUCK[kind])
        assert answer.startswith(b"HTTP/1.1 400 "), answer[:300]
        assert echo.requests == 0


async def test_a_proper_request_passes_the_same_way(relay: RelayProcess, client: httpx2.AsyncClient, name: str) -> None:
    """The lawful counterpart of the smuggled requests above: two requests on one connection, with chunks and with a length."""
    async with Echo().open() as echo:
        await put(client, name, echo.url)
        head = f"POST /relay/{name}/x HTTP/1.1\r\nHost: x\r\nX-API-Token: {relay.token}\r\nX-User-Id: u1\r\n".encode()
        chunked = head + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        measured = head + b"Connection: close\r\nContent-Length: 3\r\n\r\nabc"
        answer = await raw(relay.port, chunked + measured, until=2)
        assert answer.count(b"HTTP/1.1 200 ") == 2
        assert echo.whole == 2


BROKEN_ANSWERS = {
    "two-lengths": b"Content-Length: 2\r\nContent-Length: 5\r\n\r\nabcde",
    "length-and-chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks-and-length": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "coding": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding-twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "folded": b"X-A: one\r\n two\r\nContent-Length: 0\r\n\r\n",
    "bare-line-feed": b"X-A: one\nContent-Length: 0\r\n\r\n",
    "space-in-name": b"X A: one\r\nContent-Length: 0\r\n\r\n",
    "nul": b"X-A: o\0ne\r\nContent-Length: 0\r\n\r\n",
    "huge-head": b"X-A: %b\r\n" % (b"a" * 70_000) + b"Content-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("kind", BROKEN_ANSWERS)
async def test_answers_that_can_be_read_in_two_ways_are_refused(
    client: httpx2.AsyncClient, name: str, kind: str
) -> None:
    async with Echo().open() as echo:
        echo.words[kind] = b"HTTP/1.1 200 OK\r\n" + BROKEN_ANSWERS[kind]
        await put(client, name, echo.url, retry={"attempts": 0})
        answer = await client.get(f"/relay/{name}/say/{kind}", headers={"X-User-Id": "u1"})
        assert (answer.status_code, answer.json()["outcome"]) == (502, "answered")


async def test_answers_of_every_length_come_through(client: httpx2.AsyncClient, name: str) -> None:
    """Interim answers are passed over; the end is told by a length, by chunks, by the close, or there is no body."""
    said = {
        "interim": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\no\r\n1\r\nk\r\n0\r\nX-Trailer: 1\r\n\r\n",
        "close": b"HTTP/1.1 200 OK\r\n\r\nok",
        "old": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    }
    async with Echo().open() as echo:
        echo.words = {**said, "none": b"HTTP/1.1 204 No Content\r\n\r\n", "short": said["interim"][:-1]}
        await put(client, name, echo.url, {"count": 50, "seconds": 1}, retry={"attempts": 0})
        user = {"X-User-Id": "u1"}
        for kind in said:
            answer = await client.get(f"/relay/{name}/say/{kind}", headers=user)
            assert (answer.status_code, answer.content) == (200, b"ok"), kind
            assert "x-trailer" not in answer.headers
        none = await client.get(f"/relay/{name}/say/none", headers=user)
        assert (none.status_code, none.content) == (204, b"")
        head = await client.head(f"/relay/{name}/say/interim", headers=user)
        assert (head.status_code, head.headers["content-length"], head.content) == (200, "2", b"")
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get(f"/relay/{name}/say/short", headers=user)


async def test_words_nobody_asked_for_are_not_the_next_answer(client: httpx2.AsyncClient, name: str) -> None:
    """An upstream that says more than it was asked, at once or while the connection rests, poisons nobody's answer."""
    one = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none"
    async with Echo().open() as echo:
        echo.words = {"twice-open": one + one.replace(b"one", b"two")}
        await put(client, name, echo.url, {"count": 50, "seconds": 1})
        for _ in range(5):
            answer = await client.get(f"/relay/{name}/say/twice-open", headers={"X-User-Id": "u1"})
            assert answer.content == b"one"
            honest = await client.get(f"/relay/{name}/x", headers={"X-User-Id": "u2"})
            assert honest.json()["path"] == "/x"
