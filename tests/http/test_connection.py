"""HTTP/1.1 as the gateway's connections speak it, byte by byte, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.gateway import connection
from headgate.gateway.connection import Connection
from headgate.gateway.exchange import Exchange
from headgate.gateway.heads import MOST_BLOCKS, MOST_HEADERS
from headgate.gateway.listener import Listener, Rest, asgi, listen
from headgate.gateway.server import listening
from headgate.kit.http import Receive, Scope
from headgate.kit.problems import HeadgateError
from tests.topology import HOST, eventually

pytestmark = pytest.mark.anyio

Application = Callable[[Scope, Receive, Exchange], Any]
GET = b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n"


class Wire(asyncio.Transport):
    """The other end of a connection that is fed by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """Whoever feeds it by hand stops by themselves."""

    def resume_reading(self) -> None:
        """Nothing was stopped."""


class Served:
    """A listener with an application of the test's own."""

    def __init__(self, listener: Listener, port: int) -> None:
        self.listener = listener
        self.port = port

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self.port)

    async def exchange(self, *parts: bytes) -> bytes:
        """Send bytes, in parts that arrive apart, and give all that comes back until the connection closes."""
        reader, writer = await self.connect()
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.01)
            async with asyncio.timeout(10):
                return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def served(application: Application, most_connections: int = 100) -> AsyncIterator[Served]:
    with listening(HOST, 0) as socket:
        port = socket.getsockname()[1]
        async with listen(asgi(application), socket, most_connections, stop_seconds=2) as listener:
            yield Served(listener, port)


async def echo(scope: Scope, receive: Receive, send: Exchange) -> None:
    """Answer with what was asked, as JSON."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    told = {"method": scope["method"], "path": scope["path"], "query": scope["query_string"].decode()}
    told |= {"raw": scope["raw_path"].decode(), "body": body.decode(), "version": scope["http_version"]}
    told["headers"] = [[name.decode(), value.decode()] for name, value in scope["headers"]]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(told).encode()})


def parsed(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        status, headers, _ = parsed(head)
        return status, headers, await reader.readexactly(int(headers.get("content-length", "0")))


async def test_a_request_arrives_whole_however_it_is_cut() -> None:
    request = b"POST /a%20b?x=1 HTTP/1.1\r\nHost: x\r\nX-Empty:\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
    async with served(echo) as site:
        for size in (len(request), 1, 7, 30):
            parts = [request[at : at + size] for at in range(0, len(request), size)]
            reader, writer = await site.connect()
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0.001)
            status, headers, body = parsed(await reader.read())
            writer.close()
            told = json.loads(body)
            assert status == 200
            assert headers["connection"] == "close"
            assert (told["method"], told["path"], told["raw"], told["query"]) == ("POST", "/a b", "/a%20b", "x=1")
            assert told["body"] == "hello"
            assert ["x-empty", ""] in told["headers"]


async def test_pipelined_requests_are_answered_in_order() -> None:
    async def later_is_faster(scope: Scope, receive: Receive, send: Exchange) -> None:
        await asyncio.sleep(0.02 if scope["path"] == "/0" else 0)
        send.whole(200, b"content-length: %d\r\n\r\n" % len(scope["raw_path"]), scope["raw_path"])

    async with served(later_is_faster) as site:
        reader, writer = await site.connect()
        writer.write(b"".join(GET % b"/%d" % number for number in range(100)))
        assert [(await read_answer(reader))[2] for _ in range(100)] == [b"/%d" % number for number in range(100)]
        writer.close()


HEADS = (
    b"Host: x\r\n",
    b"Host: x\r\nConnection: keep-alive\r\nCookie: a=b\r\n",
    b"Host: y\r\nX-Long: %b\r\n" % (b"z" * 5000),
)
TARGETS = (
    b"/",
    b"/a",
    b"/a?b=c",
    b"/a%20b?",
    b"/?x=%2F&y",
    b"/a#b",
    b"/ http",
    b"http://z/q?r",
    b"/a\x7fb",
    b"/\xc3\xa9",
)


@given(
    st.lists(
        st.tuples(st.sampled_from((b"GET", b"HEAD", b"DELETE")), st.sampled_from(TARGETS), st.sampled_from(HEADS))
    ),
    st.lists(st.integers(1, 120), max_size=12),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_repeated_headers_change_nothing(requests: list[tuple[bytes, bytes, bytes]], cuts: list[int]) -> None:
    """However requests follow each other and are cut, each is understood as if it came alone on its connection."""
    lines = [b"%b %b HTTP/1.1\r\n%b\r\n" % parts for parts in requests]

    async def asked(pieces: list[bytes]) -> list[bytes]:
        """Give what the application saw, and the refusal that ended the connection, if one did."""
        seen: list[bytes] = []

        def note(exchange: Exchange) -> None:
            seen.append(b"%b %b %b %r" % (exchange.method.encode(), exchange.path, exchange.query, exchange.head.pairs))
            exchange.whole(200, b"content-length: 0\r\n\r\n", b"")

        wire = Wire()
        house = Listener(note)
        client = Connection(house)
        client.connection_made(wire)
        for piece in pieces:
            client.data_received(piece)
        if b" 400 " in wire.written:
            seen.append(b"refused")
        return seen

    alone: list[bytes] = []
    for line in lines:
        alone += await asked([line])
        if alone[-1] == b"refused":
            break
    whole = b"".join(lines)
    parts, at = [], 0
    for cut in cuts:
        parts.append(whole[at : at + cut])
        at += cut
    assert await asked(lines) == alone
    assert await asked([part for part in (*parts, whole[at:]) if part]) == alone
    assert await asked([whole]) == alone


async def test_what_looks_like_repeated_headers_is_parsed() -> None:
    """A request that only ends like the last one is not taken for one."""
    tail = b" HTTP/1.1\r\nHost: x\r\n\r\n"
    async with served(echo) as site:
        reader, writer = await site.connect()
        for sent, paths in (
            ([b"GET /1" + tail], ["/1"]),
            ([b"GET /2" + tail], ["/2"]),
            ([b"GET /3" + tail + b"GET /4" + tail], ["/3", "/4"]),
            ([b"GET /5 HTTP/1.1\r\nX: GET /6" + tail.removeprefix(b" HTTP/1.1")], ["/5"]),
            ([b"GE", b"T /7" + tail], ["/7"]),
            ([b"\r\n", b"GET /8" + tail], ["/8"]),
        ):
            for part in sent:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.01)
            answers = [await read_answer(reader) for _ in paths]
            assert [json.loads(body)["path"] for _, _, body in answers] == paths
        writer.write(b"GET /9 x" + tail)
        assert (await read_answer(reader))[0] == 400
        writer.close()


async def test_answers_that_are_ready_at_once_keep_their_turn() -> None:
    """Answers given while a request is read are put off until all is read; none is lost or overtakes another."""

    async def later(exchange: Exchange) -> None:
        await asyncio.sleep(0.01)
        exchange.whole(200, b"content-length: %d\r\n\r\n" % len(exchange.path), exchange.path)

    def at_once(exchange: Exchange) -> Rest | None:
        if exchange.path.endswith(b"3"):
            return later(exchange)
        exchange.whole(200, b"content-length: %d\r\n\r\n" % len(exchange.path), exchange.path)
        return None

    with listening(HOST, 0) as socket:
        async with listen(at_once, socket, stop_seconds=2) as listener:
            site = Served(listener, socket.getsockname()[1])
            reader, writer = await site.connect()
            for start in (0, 10, 20):
                writer.write(b"".join(GET % b"/%d" % number for number in range(start, start + 10)))
                answers = [(await read_answer(reader))[2] for _ in range(10)]
                assert answers == [b"/%d" % number for number in range(start, start + 10)]
            writer.close()
            assert (await site.exchange(b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")).endswith(
                b"/last"
            )
            assert (await site.exchange(GET % b"/good" + b"GET / HTTP/9\r\n\r\n")).count(b"HTTP/1.1 ") == 2


class Noted:
    """A house whose application notes what it is asked and answers at once."""

    def __init__(self, answer: bytes = b"") -> None:
        self.seen: list[tuple[str, bytes, bytes | None, int]] = []
        self.answer = answer
        self.house = Listener(self._serve)

    def _serve(self, exchange: Exchange) -> None:
        self.seen.append((exchange.method, exchange.path, exchange.body(), id(exchange.head)))
        exchange.whole(200, b"content-length: %d\r\n\r\n" % len(self.answer), self.answer)

    def client(self) -> tuple[Connection, Wire]:
        wire, client = Wire(), Connection(self.house)
        client.connection_made(wire)
        return client, wire

    def heads(self) -> set[int]:
        return {head for _, _, _, head in self.seen}


async def test_headers_that_another_connection_said_are_not_read_again() -> None:
    noted = Noted()
    tail = b" HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\n"
    for line, body in (
        (b"POST /a", b"\r\n\r\nab"),
        (b"PUT /b", b"GET / "),
        (b"GET /c", b"abcdef"),
        (b"POST /d", b"......"),
    ):
        noted.client()[0].data_received(line + tail + body)
    assert [each[:3] for each in noted.seen] == [
        ("POST", b"/a", b"\r\n\r\nab"), ("PUT", b"/b", b"GET / "), ("GET", b"/c", b"abcdef"), ("POST", b"/d", b"......"),
    ]  # fmt: skip
    assert len(noted.heads()) == 1


@pytest.mark.parametrize(
    "header",
    ["Authorization", "Cookie", "X-API-Token", "X-Place-Token", "X-Forwarded-For", "X-Request-Id", "traceparent"],
)
async def test_what_says_who_asks_is_remembered_by_its_own_connection_alone(header: str) -> None:
    noted = Noted()
    request = b"GET / HTTP/1.1\r\nHost: x\r\n%b: secret\r\n\r\n" % header.encode()
    first, second = noted.client()[0], noted.client()[0]
    first.data_received(request)
    second.data_received(request)
    assert len(noted.heads()) == 2
    assert len(noted.house.known) == 0
    first.data_received(request)
    assert len(noted.heads()) == 2


async def test_what_is_remembered_of_headers_is_bounded_in_number_and_in_size() -> None:
    noted = Noted()
    for number in range(3 * MOST_BLOCKS):
        noted.client()[0].data_received(b"GET / HTTP/1.1\r\nHost: %d\r\n\r\n" % number)
    assert MOST_BLOCKS <= len(noted.house.known) <= 2 * MOST_BLOCKS
    for most in (b"X: %b\r\n" % (b"y" * 4096), b"".join(b"X%d:\r\n" % n for n in range(MOST_HEADERS))):
        known = len(noted.house.known)
        client = noted.client()[0]
        client.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n%b\r\n" % most)
        assert len(noted.house.known) == known
        assert client._plain is None, "nor does an idle connection keep its last headers"


async def test_a_known_head_with_another_amount_of_body_is_parsed() -> None:
    """Neither what is missing of a body nor what follows it is taken for something else."""
    request = b"POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n%b"
    noted = Noted()
    client, wire = noted.client()
    client.data_received(request % (1, b"ab"))
    client.data_received(request % (2, b"abGET /3 HTTP/1.1\r\nHost: x\r\n\r\n"))
    whole = request % (4, b"ab")
    cuts = range(1, len(whole) - 2)
    for at in cuts:
        client.data_received(whole[:at])
        client.data_received(whole[at:])
    assert [path for _, path, _, _ in noted.seen] == [b"/1", b"/2", b"/3", *[b"/4"] * len(cuts)]
    client.data_received(request % (5, b"abc"))
    client.data_received(b"\r\n\r\n")
    await asyncio.sleep(0)
    assert noted.seen[-1][1:3] == (b"/5", b"ab")
    assert wire.written.count(b"HTTP/1.1 200") == len(noted.seen)
    assert b"HTTP/1.1 40" in wire.written


async def test_answers_of_one_turn_of_the_loop_leave_together_and_in_order() -> None:
    noted = Noted(b"ok")
    clients = [noted.client() for _ in range(3)]
    for client, _ in clients:
        client.data_received(GET % b"/1" + GET % b"/2")
        client.data_received(GET % b"/3")
    assert [wire.written for _, wire in clients] == [b""] * 3
    await asyncio.sleep(0)
    assert [wire.written.count(b"\r\n\r\nok") for _, wire in clients] == [3] * 3


async def test_answers_that_were_put_off_are_sent_before_a_connection_is_closed() -> None:
    noted = Noted(b"ok")
    for end in (Connection.close_if_idle, lambda client: client.data_received(b"rubbish\r\n\r\n")):
        client, wire = noted.client()
        client.data_received(GET % b"/")
        end(client)
        assert b"\r\n\r\nok" in wire.written


async def test_a_long_row_of_requests_answered_at_once_is_a_row_and_not_a_tower() -> None:
    """Each answer calls for the next request; a thousand of them at once must not stand on each other."""
    noted = Noted(b"ok")
    client, wire = noted.client()
    client.data_received(b"".join(GET % b"/%d" % number for number in range(3000)))
    await asyncio.sleep(0)
    assert [path for _, path, _, _ in noted.seen] == [b"/%d" % number for number in range(3000)]
    assert wire.written.count(b"\r\n\r\nok") == 3000


async def test_who_asks_for_much_at_once_and_takes_nothing_is_waited_for() -> None:
    noted = Noted(b"x" * 50_000)
    with listening(HOST, 0) as socket:
        async with listen(noted._serve, socket, stop_seconds=0.1) as listener:
            site = Served(listener, socket.getsockname()[1])
            reader, writer = await site.connect()
            cast("asyncio.Transport", writer.transport).pause_reading()
            writer.write(b"".join(GET % b"/%d" % number for number in range(1000)))
            await eventually(lambda: bool(noted.seen), 5, "the first requests are answered")
            await asyncio.sleep(0.1)
            assert len(noted.seen) < 500
            cast("asyncio.Transport", writer.transport).resume_reading()
            for _ in range(1000):
                assert (await read_answer(reader))[0] == 200
            writer.close()


async def test_nothing_is_done_for_requests_behind_the_last_one_that_is_answered() -> None:
    noted = Noted(b"ok")
    noted.house.stopping = True
    client, wire = noted.client()
    client.data_received(GET % b"/1" + GET % b"/2")
    client.resume_writing()
    assert [path for _, path, _, _ in noted.seen] == [b"/1"]
    assert wire.written.count(b"connection: close") == 1


async def test_chunks_and_a_trailer() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    async with served(echo) as site:
        answer = await site.exchange(head, b"3\r\nabc\r\n", b"2;note=1\r\nde\r\n", b"0\r\nX-Trailer: 1\r\n\r\n")
    told = json.loads(parsed(answer)[2])
    assert told["body"] == "abcde"
    assert "x-trailer" not in dict(told["headers"])


async def test_old_clients_are_served_and_may_keep_the_connection() -> None:
    async with served(echo) as site:
        status, headers, _ = parsed(await site.exchange(b"GET / HTTP/1.0\r\n\r\n"))
        assert (status, headers["connection"]) == (200, "close")
        reader, writer = await site.connect()
        for _ in range(2):
            writer.write(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            status, headers, _ = await read_answer(reader)
            assert (status, headers["connection"]) == (200, "keep-alive")
        writer.close()


async def test_a_whole_url_as_the_target() -> None:
    async with served(echo) as site:
        answer = await site.exchange(b"GET http://other/p?q HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    told = json.loads(parsed(answer)[2])
    assert (told["path"], told["query"]) == ("/p", "q")


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400, "malformed"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400, "malformed"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\na", 400, "malformed"),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
            "malformed",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
            400,
            "malformed",
        ),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "coding_unsupported"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, "coding_unsupported"),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501, "coding_unsupported"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nFoo: a\r\n b\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/1.1\nHost: x\n\n", 400, "malformed"),
        (b"GET / HTTP/1.1\r\nHost: x\0\r\n\r\n", 400, "malformed"),
        (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed"),
        (b"GET /a\r\n\r\n", 505, "version_unsupported"),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505, "version_unsupported"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "malformed"),
        (b"CONNECT other:1 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed"),
        (b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method_not_allowed"),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400, "malformed"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431, "headers_too_large"),
    ],
)
async def test_what_could_be_read_in_two_ways_is_refused(request_bytes: bytes, status: int, code: str) -> None:
    reached: list[Scope] = []

    async def counted(scope: Scope, receive: Receive, send: Exchange) -> None:
        reached.append(scope)
        await echo(scope, receive, send)

    async with served(counted) as site:
        answered, headers, body = parsed(await site.exchange(request_bytes))
    assert answered == status
    assert headers["connection"] == "close"
    assert json.loads(body)["code"] == code
    assert not reached


async def test_a_bad_chunk_is_the_readers_error_and_the_end() -> None:
    errors: list[Exception] = []

    async def reads(scope: Scope, receive: Receive, send: Exchange) -> None:
        try:
            while (await receive())["more_body"]:
                pass
        except Exception as error:  # noqa: BLE001  # whatever it is, the test looks at it
            errors.append(error)
        send.whole(400, b"content-length: 0\r\n\r\n", b"")

    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with served(reads) as site:
        answer = await site.exchange(head, b"3\r\nabc\r\n", b"zz\r\n", GET % b"/smuggled")
    assert parsed(answer)[0] == 400
    assert answer.count(b"HTTP/1.1") == 1
    assert [getattr(error, "code", "") for error in errors] == ["malformed"]


async def test_what_came_before_a_bad_request_is_answered_first() -> None:
    async def slow(scope: Scope, receive: Receive, send: Exchange) -> None:
        await asyncio.sleep(0.05)
        send.whole(200, b"content-length: 2\r\n\r\n", b"ok")

    async with served(slow) as site:
        answer = await site.exchange(GET % b"/" + b"rubbish\r\n\r\n")
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"405"]


async def test_expect_continue_is_said_when_the_body_is_wanted() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"

    async def refuses(scope: Scope, receive: Receive, send: Exchange) -> None:
        send.whole(403, b"content-length: 0\r\n\r\n", b"")

    async with served(echo) as site:
        reader, writer = await site.connect()
        writer.write(head)
        async with asyncio.timeout(5):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hi")
        assert json.loads((await read_answer(reader))[2])["body"] == "hi"
        writer.close()
    async with served(refuses) as site:
        assert (await site.exchange(head)).startswith(b"HTTP/1.1 403")


async def test_an_early_answer_arrives_though_the_body_goes_on() -> None:
    async def too_large(scope: Scope, receive: Receive, send: Exchange) -> None:
        send.whole(413, b"content-length: 0\r\n\r\n", b"")

    async with served(too_large) as site:
        reader, writer = await site.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n\r\n")
        for _ in range(20):
            writer.write(b"x" * 100_000)
            await asyncio.sleep(0.005)
        status, headers, _ = await read_answer(reader)
        assert (status, headers["connection"]) == (413, "close")
        assert await reader.read() == b""
        writer.close()


async def test_a_body_is_read_little_ahead_of_its_reader() -> None:
    go = asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Exchange) -> None:
        await go.wait()
        await echo(scope, receive, send)

    async with served(waits) as site:
        reader, writer = await site.connect()
        size = 20_000_000
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
        await asyncio.sleep(0.2)
        left = writer.transport.get_write_buffer_size()
        assert left > 5_000_000, "most of it must still be with the client"
        go.set()
        assert len(json.loads((await read_answer(reader))[2])["body"]) == size
        writer.close()


async def test_whoever_leaves_is_noticed_by_reader_and_watcher() -> None:
    noticed: list[str] = []

    async def attentive(scope: Scope, receive: Receive, send: Exchange) -> None:
        departure = asyncio.get_running_loop().create_future()
        send.watch(departure)
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        await departure
        noticed.append(scope["path"])

    async with served(attentive) as site:
        _, writer = await site.connect()
        writer.write(GET % b"/one")
        await asyncio.sleep(0.05)
        assert not noticed
        writer.close()
        await eventually(lambda: noticed == ["/one"], 5, "the departure is noticed")


async def test_a_slow_reader_is_waited_for_and_then_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STUCK_SECONDS", 0.5)
    sent: list[int] = []
    ended: list[str] = []

    async def endless(scope: Scope, receive: Receive, send: Exchange) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not send.gone:
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
            sent.append(1)
        ended.append("gone")

    async with served(endless) as site:
        _, writer = await site.connect()
        cast("asyncio.Transport", writer.transport).pause_reading()
        writer.write(GET % b"/")
        await eventually(lambda: bool(ended), 10, "the connection is broken")
        assert len(sent) < 1000
        writer.close()


async def test_answers_are_framed_for_whoever_asks() -> None:
    async def parts(scope: Scope, receive: Receive, send: Exchange) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await send({"type": "http.response.body", "body": b"two"})

    async with served(parts) as site:
        chunked = await site.exchange(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert parsed(chunked)[1]["transfer-encoding"] == "chunked"
        assert parsed(chunked)[2] == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
        old = await site.exchange(b"GET / HTTP/1.0\r\n\r\n")
        assert parsed(old)[2] == b"onetwo"
        head = await site.exchange(b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert parsed(head)[2] == b""


async def test_an_answer_that_ends_early_is_no_answer() -> None:
    async def short(scope: Scope, receive: Receive, send: Exchange) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
        await send({"type": "http.response.body", "body": b"one"})

    async def breaks(scope: Scope, receive: Receive, send: Exchange) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        raise ValueError("in the middle")

    async with served(short) as site:
        reader, writer = await site.connect()
        writer.write(GET % b"/")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await read_answer(reader)
        writer.close()
    async with served(breaks) as site:
        reader, writer = await site.connect()
        writer.write(GET % b"/")
        answer = b""
        with suppress(ConnectionResetError):
            answer = await reader.read()
        assert not answer.endswith(b"0\r\n\r\n")
        writer.close()


async def test_a_header_of_two_lines_never_goes_out() -> None:
    async def splits(scope: Scope, receive: Receive, send: Exchange) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"a\r\nset-cookie: b")]})
        await send({"type": "http.response.body", "body": b""})

    async with served(splits) as site:
        reader, writer = await site.connect()
        writer.write(GET % b"/")
        with suppress(ConnectionResetError):
            assert b"set-cookie" not in await reader.read()
        writer.close()


async def test_a_wish_for_another_protocol_is_ignored() -> None:
    wish = b"Host: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    async with served(echo) as site:
        answer = await site.exchange(b"GET / HTTP/1.1\r\n" + wish + b"\r\nPRI * HTTP/2.0\r\n\r\n")
        assert parsed(answer)[0] == 200
        assert answer.count(b"HTTP/1.1 ") == 1


async def test_a_body_behind_such_a_wish_is_not_taken_for_none() -> None:
    errors: list[HeadgateError] = []

    async def reads(scope: Scope, receive: Receive, send: Exchange) -> None:
        assert send.body() is None
        try:
            await receive()
        except HeadgateError as error:
            errors.append(error)
        send.whole(400, b"content-length: 0\r\n\r\n", b"")

    head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\n"
    async with served(reads) as site:
        assert parsed(await site.exchange(head + b"abc"))[0] == 400
    assert [error.code for error in errors] == ["malformed"]


async def test_one_connection_too_many_is_told_so() -> None:
    async with served(echo, most_connections=2) as site:
        first, second = await site.connect(), await site.connect()
        for reader, writer in (first, second):
            writer.write(GET % b"/")
            assert (await read_answer(reader))[0] == 200
        status, headers, body = parsed(await site.exchange())
        assert (status, headers["retry-after"]) == (503, "1")
        assert json.loads(body)["code"] == "too_many_connections"
        first[1].close()
        second[1].close()

        async def room() -> bool:
            reader, writer = await site.connect()
            writer.write(GET % b"/")
            status, _, _ = await read_answer(reader)
            writer.close()
            return status == 200

        await eventually(room, 5, "there is room again")


async def test_slow_heads_and_idle_connections_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(connection, "IDLE_SECONDS", 0.2)
    async with served(echo) as site:
        slow, idle = await asyncio.gather(site.exchange(b"GET / HTTP/1.1\r\nHo"), site.exchange(GET % b"/"))
    assert json.loads(parsed(slow)[2])["code"] == "request_timeout"
    assert parsed(idle)[0] == 200


async def test_stopping_finishes_what_is_under_way_and_closes_the_rest() -> None:
    go = asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Exchange) -> None:
        await go.wait()
        send.whole(200, b"content-length: 2\r\n\r\n", b"ok")

    async with served(waits) as site:
        idle, _idle_writer = await site.connect()
        busy, busy_writer = await site.connect()
        busy_writer.write(GET % b"/")
        await asyncio.sleep(0.05)
        site.listener.stop()
        assert await idle.read() == b""
        go.set()
        status, headers, body = await read_answer(busy)
        assert (status, headers["connection"], body) == (200, "close", b"ok")
        assert await busy.read() == b""
        _idle_writer.close()
        busy_writer.close()
