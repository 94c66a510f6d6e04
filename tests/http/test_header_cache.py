"""Repeated headers are parsed once, which changes no answer; answers of one iteration of the event loop leave together."""

from __future__ import annotations

import asyncio
import json
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.http.connection import ServerConnection
from headgate.http.exchange import Exchange
from headgate.http.header_cache import MOST_BLOCKS, MOST_HEADERS, HeaderCache
from headgate.http.listener import Listener, RequestCoroutine, listen
from headgate.http.server import listening
from tests.http.wires import GET, Served, Wire, echo, parsed_all, read_answer, served
from tests.topology import HOST, eventually

pytestmark = pytest.mark.anyio


HEADS = (
    b"Host: x\r\n",
    b"Host: x\r\nConnection: keep-alive\r\nCookie: a=b\r\n",
    b"Host: y\r\nX-Long: %b\r\n" % (b"z" * 5000),
)
TARGETS = (
    b"/",
    b"/a",
    b"/a?b=c",
    b"/a?b=d&e",
    b"/a?b=c#d",
    b"/a?b c",
    b"/a?\xc3\xa9",
    b"/a?",
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
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
async def test_repeated_headers_change_nothing(requests: list[tuple[bytes, bytes, bytes]], cuts: list[int]) -> None:
    """However requests follow each other and are cut, each is understood as if it came alone on its connection."""
    lines = [b"%b %b HTTP/1.1\r\n%b\r\n" % parts for parts in requests]

    async def asked(pieces: list[bytes]) -> list[bytes]:
        """Give what the application saw, and the refusal that ended the connection, if one did."""
        seen: list[bytes] = []

        def note(exchange: Exchange) -> None:
            target = exchange.target
            seen.append(b"%b %b %b %r" % (target.method.encode(), target.path, exchange.query, target.head.pairs))
            exchange.respond(200, b"content-length: 0\r\n\r\n", b"")

        wire = Wire()
        listener = Listener(note)
        client = ServerConnection(listener)
        client.connection_made(wire)
        for piece in pieces:
            client.data_received(piece)
        await parsed_all(client)
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


@pytest.mark.parametrize("target", [b"/a?%b", b"/%b"])
async def test_headers_that_were_read_before_make_no_room_for_a_longer_first_line(target: bytes) -> None:
    async with served(echo) as site:
        wire = Wire()
        client = ServerConnection(site.listener)
        client.connection_made(wire)
        for size, status in ((10, b"200"), (60_000, b"200"), (66_000, b"431")):
            wire.written = b""
            client.data_received(GET % (target % (b"q" * size)))
            await eventually(lambda: wire.written, 5)
            assert wire.written.startswith(b"HTTP/1.1 %b" % status)
        client.connection_lost(None)


async def test_answers_that_are_ready_at_once_keep_their_turn() -> None:
    """Answers given while a request is read are put off until all is read; none is lost or overtakes another."""

    async def later(exchange: Exchange) -> None:
        await asyncio.sleep(0.01)
        exchange.respond(200, b"content-length: %d\r\n\r\n" % len(exchange.target.path), exchange.target.path)

    def at_once(exchange: Exchange) -> RequestCoroutine | None:
        if exchange.target.path.endswith(b"3"):
            return later(exchange)
        exchange.respond(200, b"content-length: %d\r\n\r\n" % len(exchange.target.path), exchange.target.path)
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
    """A listener whose application notes what it is asked and answers at once."""

    def __init__(self, answer: bytes = b"") -> None:
        self.seen: list[tuple[str, bytes, bytes | None, int]] = []
        self.answer = answer
        self.listener = Listener(self._serve)

    def _serve(self, exchange: Exchange) -> None:
        self.seen.append((exchange.target.method, exchange.target.path, exchange.body(), id(exchange.target.head)))
        exchange.respond(200, b"content-length: %d\r\n\r\n" % len(self.answer), self.answer)

    @property
    def cache(self) -> HeaderCache:
        assert self.listener.header_cache is not None
        return self.listener.header_cache

    def client(self) -> tuple[ServerConnection, Wire]:
        wire, client = Wire(), ServerConnection(self.listener)
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
    assert len(noted.cache) == 0
    first.data_received(request)
    assert len(noted.heads()) == 2


async def test_what_is_remembered_of_headers_is_bounded_in_number_and_in_size() -> None:
    noted = Noted()
    for number in range(3 * MOST_BLOCKS):
        noted.client()[0].data_received(b"GET / HTTP/1.1\r\nHost: %d\r\n\r\n" % number)
    assert MOST_BLOCKS <= len(noted.cache) <= 2 * MOST_BLOCKS
    for most in (b"X: %b\r\n" % (b"y" * 4096), b"".join(b"X%d:\r\n" % n for n in range(MOST_HEADERS))):
        known = len(noted.cache)
        client = noted.client()[0]
        client.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n%b\r\n" % most)
        assert len(noted.cache) == known
        assert client._cacheable is None, "nor does an idle connection keep its last headers"


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
    for end in (ServerConnection.close_if_idle, lambda client: client.data_received(b"rubbish\r\n\r\n")):
        client, wire = noted.client()
        client.data_received(GET % b"/")
        end(client)
        assert b"\r\n\r\nok" in wire.written


async def test_a_long_row_of_requests_answered_at_once_is_a_row_and_not_a_tower() -> None:
    """Each answer calls for the next request; a thousand of them at once must not stand on each other."""
    noted = Noted(b"ok")
    client, wire = noted.client()
    client.data_received(b"".join(GET % b"/%d" % number for number in range(3000)))
    await parsed_all(client)
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
    noted.listener.start_draining()
    client, wire = noted.client()
    client.data_received(GET % b"/1" + GET % b"/2")
    client.resume_writing()
    assert [path for _, path, _, _ in noted.seen] == [b"/1"]
    assert wire.written.count(b"connection: close") == 1
