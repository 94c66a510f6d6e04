"""HTTP/1.1 as the gateway's connections speak it, byte by byte, over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from typing import cast

import pytest

from headgate.http import connection
from headgate.http.client_addresses import AddressCount
from headgate.http.exchange import Exchange
from headgate.http.routes import Receive, Scope
from headgate.kit.problems import HeadgateError
from tests.http.wires import GET, echo, parsed, read_answer, served
from tests.topology import HOST, eventually

pytestmark = pytest.mark.anyio

TWO_CODINGS = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: %b\r\ntransfer-encoding: %b\r\n\r\n0\r\n\r\n"


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
        send.respond(200, b"content-length: %d\r\n\r\n" % len(scope["raw_path"]), scope["raw_path"])

    async with served(later_is_faster) as site:
        reader, writer = await site.connect()
        writer.write(b"".join(GET % b"/%d" % number for number in range(100)))
        assert [(await read_answer(reader))[2] for _ in range(100)] == [b"/%d" % number for number in range(100)]
        writer.close()


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
        (b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed"),
        (b"GET    /a HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed"),
        (b"GET /  HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed"),
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
        (TWO_CODINGS % (b"gzip", b"chunked"), 501, "coding_unsupported"),
        (TWO_CODINGS % (b"identity", b"chunked"), 501, "coding_unsupported"),
        (TWO_CODINGS % (b"chunked", b"gzip"), 400, "malformed"),
        (TWO_CODINGS % (b"chunked", b"chunked"), 400, "malformed"),
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
        send.respond(400, b"content-length: 0\r\n\r\n", b"")

    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with served(reads) as site:
        answer = await site.exchange(head, b"3\r\nabc\r\n", b"zz\r\n", GET % b"/smuggled")
    assert parsed(answer)[0] == 400
    assert answer.count(b"HTTP/1.1") == 1
    assert [getattr(error, "code", "") for error in errors] == ["malformed"]


async def test_what_came_before_a_bad_request_is_answered_first() -> None:
    async def slow(scope: Scope, receive: Receive, send: Exchange) -> None:
        await asyncio.sleep(0.05)
        send.respond(200, b"content-length: 2\r\n\r\n", b"ok")

    async with served(slow) as site:
        answer = await site.exchange(GET % b"/" + b"rubbish\r\n\r\n")
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"405"]


async def test_expect_continue_is_said_when_the_body_is_wanted() -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"

    async def refuses(scope: Scope, receive: Receive, send: Exchange) -> None:
        send.respond(403, b"content-length: 0\r\n\r\n", b"")

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


async def test_an_early_answer_arrives_though_the_body_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LINGER_SECONDS", 20.0)  # however slowly this client goes on

    async def too_large(scope: Scope, receive: Receive, send: Exchange) -> None:
        send.respond(413, b"content-length: 0\r\n\r\n", b"")

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
        while not send.disconnected:
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
        send.respond(400, b"content-length: 0\r\n\r\n", b"")

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


async def test_an_address_may_not_hold_all_connections_but_a_trusted_proxy_may() -> None:
    count = AddressCount(3, ["127.0.0.9", "10.0.0.0/8"])
    async with served(echo, addresses=count) as site:

        async def asks(address: str) -> tuple[int, asyncio.StreamWriter]:
            reader, writer = await site.connect(address)
            writer.write(GET % b"/")
            return (await read_answer(reader))[0], writer

        mine = [await asks("127.0.0.2") for _ in range(4)]
        assert [status for status, _ in mine] == [200, 200, 200, 429]
        other = await asks("127.0.0.3")
        proxied = [await asks("127.0.0.9") for _ in range(6)]
        assert [status for status, _ in (other, *proxied)] == [200] * 7
        assert len(count) == 2
        for _, writer in mine:
            writer.close()
        await eventually(lambda: len(count) == 1, 5, "what was closed is not counted any more")
        again = await asks("127.0.0.2")
        assert again[0] == 200
        for _, writer in (other, *proxied, again):
            writer.close()
    assert len(count) == 0


def test_addresses_of_one_customer_are_counted_together() -> None:
    count = AddressCount(2, ["2001:db8::5"])
    assert [count.add((f"2001:db8::{number}", 1)) for number in (1, 2, 3)] == [True, True, False]
    assert [count.add(("2001:db8::5", number)) for number in range(5)] == [True] * 5
    count.remove(("2001:db8::5", 0))
    assert not count.add(("2001:db8::4", 1))
    count.remove(("2001:db8::1", 1))
    assert count.add(("2001:db8::4", 1)), "the one that was refused does not count"
    assert count.add(None), "a client on a Unix socket has no address"


async def test_connections_that_were_refused_do_not_count_for_their_address() -> None:
    count = AddressCount(2)
    async with served(echo, addresses=count) as site:
        held = [await site.connect() for _ in range(2)]
        refused = [await site.connect() for _ in range(5)]
        for reader, _ in refused:
            assert (await read_answer(reader))[0] == 429
        for _, writer in held:
            writer.close()
        await eventually(lambda: len(count) == 0, 1, "only those that are held count, though the refused ones linger")
        for _, writer in refused:
            writer.close()
    assert len(count) == 0


async def test_two_spaces_elsewhere_are_no_mistake() -> None:
    async with served(echo) as site:
        answer = await site.exchange(
            b"GET /a HTTP/1.1\r\nHost: x\r\nX-Words: GET  /a  HTTP/1.1\r\nConnection: close\r\n\r\n"
        )
        body = b"\r\nGET  /a  HTTP/1.1\r\n"
        head = b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        posted = await site.exchange(head + body)
    assert parsed(answer)[0] == parsed(posted)[0] == 200


async def test_slow_heads_and_idle_connections_end(monkeypatch: pytest.MonkeyPatch) -> None:
    # Long enough for what is sent to arrive, also where the machine stands still for a moment.
    monkeypatch.setattr(connection, "HEADER_SECONDS", 2.0)
    monkeypatch.setattr(connection, "IDLE_SECONDS", 2.0)
    async with served(echo) as site:
        slow, idle = await asyncio.gather(site.exchange(b"GET / HTTP/1.1\r\nHo"), site.exchange(GET % b"/"))
    assert json.loads(parsed(slow)[2])["code"] == "request_timeout"
    assert parsed(idle)[0] == 200


async def test_stopping_finishes_what_is_under_way_and_closes_the_rest() -> None:
    under_way, go = asyncio.Event(), asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Exchange) -> None:
        under_way.set()
        await go.wait()
        send.respond(200, b"content-length: 2\r\n\r\n", b"ok")

    async with served(waits) as site:
        idle, _idle_writer = await site.connect()
        busy, busy_writer = await site.connect()
        busy_writer.write(GET % b"/")
        await under_way.wait()
        site.listener.stop()
        assert await idle.read() == b""
        go.set()
        status, headers, body = await read_answer(busy)
        assert (status, headers["connection"], body) == (200, "close", b"ok")
        assert await busy.read() == b""
        _idle_writer.close()
        busy_writer.close()


async def test_while_quiet_each_answer_says_close_and_idle_connections_stay() -> None:
    go = asyncio.Event()

    async def answers(scope: Scope, receive: Receive, send: Exchange) -> None:
        if scope["path"] == "/later":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"o", "more_body": True})
            await go.wait()
            await send({"type": "http.response.body", "body": b"k"})
        else:
            send.respond(200, b"content-length: 2\r\n\r\n", b"ok")

    async with served(answers) as site:
        idle, idle_writer = await site.connect()
        idle_writer.write(GET % b"/")
        assert "connection" not in (await read_answer(idle))[1]
        begun, begun_writer = await site.connect()
        begun_writer.write(GET % b"/later")
        await begun.readuntil(b"\r\n\r\no")
        site.listener.start_draining()
        # An answer whose head went out before did not say it: its connection takes one more request.
        go.set()
        await begun.readexactly(1)
        for reader, writer in ((begun, begun_writer), (idle, idle_writer), await site.connect()):
            writer.write(GET % b"/")
            status, headers, _ = await read_answer(reader)
            assert (status, headers["connection"]) == (200, "close")
            assert await reader.read() == b""
            writer.close()


async def test_who_connects_just_before_the_stop_is_answered() -> None:
    """Neither connections that nobody has accepted yet nor a request that is just being sent are lost."""

    async def answers(scope: Scope, receive: Receive, send: Exchange) -> None:
        send.respond(200, b"content-length: 2\r\n\r\n", b"ok")

    async with served(answers) as site:
        new, new_writer = await site.connect()
        await eventually(lambda: len(site.listener._connections) == 1)
        waiting = [socket.create_connection((HOST, site.port)) for _ in range(20)]
        for each in waiting:
            each.sendall(GET % b"/")
        asyncio.get_running_loop().call_later(0.1, new_writer.write, GET % b"/")
    assert (await read_answer(new))[0] == 200
    new_writer.close()
    for each in waiting:
        with each:
            each.settimeout(5)
            answer = each.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in answer
