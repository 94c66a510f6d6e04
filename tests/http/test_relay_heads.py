"""Upstreams that fail between the head and the body of an answer, and streams that have a head and nothing to say yet."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest

from tests.http.echo import Echo
from tests.http.relays import RelayProcess, client_of, put
from tests.topology import HOST, Stopwatch, Topology

USER = {"X-User-Id": "u1"}
OK = b"HTTP/1.1 200 OK\r\n"
SIZED = OK + b"Content-Length: 10\r\n\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
REFUSED = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 600\r\nContent-Type: text/plain\r\n"


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


@pytest.mark.parametrize(
    "words",
    [SIZED, CHUNKED, CHUNKED + b"zz\r\n", CHUNKED + b"2;" + b"a" * 100_000],
    ids=["cut", "chunks cut", "bad chunk", "endless extension"],
)
async def test_an_answer_that_fails_before_its_body_is_a_problem(
    client: httpx2.AsyncClient, name: str, words: bytes
) -> None:
    async with Echo().open() as echo:
        echo.words["x"] = words
        await put(client, name, echo.url, retry={"attempts": 0})
        answer = await client.get(f"/relay/{name}/say/x", headers=USER)
        assert (answer.status_code, answer.json()["code"]) == (502, "upstream_failed")
        assert answer.json()["outcome"] == "answered"


async def test_a_body_that_was_promised_and_does_not_come_is_a_timeout(client: httpx2.AsyncClient, name: str) -> None:
    async with Echo().open() as echo:
        echo.words["x-open"] = SIZED
        await put(client, name, echo.url, timeoutSeconds=0.5)
        answer = await client.get(f"/relay/{name}/say/x-open", headers=USER)
        assert (answer.status_code, answer.json()["code"]) == (504, "upstream_timeout")
        assert answer.json()["outcome"] == "answered"


@pytest.mark.parametrize("path", ["x", "x-open"], ids=["cut", "stalled"])
@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 10\r\nContent-Encoding: gzip\r\n\r\n",
        b"Content-Length: 10\r\n\r\nhalf",
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ],
)
async def test_a_refusal_whose_body_breaks_off_is_passed_on_without_it(
    client: httpx2.AsyncClient, name: str, rest: bytes, path: str
) -> None:
    async with Echo().open() as echo:
        echo.words[path] = REFUSED + rest
        await put(client, name, echo.url, deadlineSeconds=20, timeoutSeconds=30)
        watch = Stopwatch()
        answer = await client.get(f"/relay/{name}/say/{path}", headers=USER)
        assert (answer.status_code, answer.headers["retry-after"], answer.content) == (429, "600", b"")
        assert answer.headers["content-length"] == "0"
        assert not {"content-type", "content-encoding"} & set(answer.headers)
        assert echo.requests == 1
        assert watch.seconds < 10


@pytest.mark.parametrize("size", [0, 4, 60_000, 300_000])
async def test_a_refusal_that_is_whole_is_passed_on_as_it_is(client: httpx2.AsyncClient, name: str, size: int) -> None:
    async with Echo().open() as echo:
        echo.words["sized"] = REFUSED + b"Content-Length: %d\r\n\r\n" % size + b"x" * size
        echo.words["until-close"] = REFUSED + b"\r\n" + b"x" * size
        await put(client, name, echo.url, retry={"refused": False})
        for number, path in enumerate(("sized", "until-close")):
            answer = await client.get(f"/relay/{name}/say/{path}", headers={"X-User-Id": f"u{number}"})
            assert (answer.status_code, answer.headers["content-type"]) == (429, "text/plain")
            assert answer.content == b"x" * size


async def test_what_waiting_cost_is_told_once_behind_another_relay(client: httpx2.AsyncClient, name: str) -> None:
    async with Echo().open() as echo:
        echo.words["x"] = OK + b"X-Queue-Position: 7\r\nX-Queue-Wait: 9000\r\nContent-Length: 2\r\n\r\nok"
        await put(client, name, echo.url)
        answer = await client.get(f"/relay/{name}/say/x", headers=USER)
        assert answer.headers.get_list("x-queue-position") == ["0"]
        assert len(answer.headers.get_list("x-queue-wait")) == 1


async def test_the_head_of_a_stream_comes_before_its_first_event(client: httpx2.AsyncClient, name: str) -> None:
    async with Echo().open() as echo:
        echo.words["x-open"] = OK + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        await put(client, name, echo.url, timeoutSeconds=20)
        async with asyncio.timeout(10), client.stream("GET", f"/relay/{name}/say/x-open", headers=USER) as answer:
            assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")


async def test_head_and_body_leave_together_although_they_come_one_after_the_other(
    relay: RelayProcess, client: httpx2.AsyncClient, name: str
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(SIZED)
        await asyncio.sleep(0.2)
        writer.write(b"0123456789")
        writer.close()

    upstream = await asyncio.start_server(answer, HOST, 0)
    async with upstream:
        await put(client, name, f"http://{HOST}:{upstream.sockets[0].getsockname()[1]}")
        reader, writer = await asyncio.open_connection(HOST, relay.port)
        head = f"GET /relay/{name}/x HTTP/1.1\r\nHost: x\r\nX-API-Token: {relay.token}\r\nX-User-Id: u1\r\n\r\n"
        writer.write(head.encode())
        first = await reader.read(65536)
        writer.close()
        await writer.wait_closed()
    assert first.startswith(OK)
    assert first.endswith(b"\r\n\r\n0123456789")
