"""The declarations of routes, and the waiting that a handler can do."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from headgate.http.responses import rendered
from headgate.http.routes import (
    Access,
    Answer,
    Call,
    Caller,
    ClientGone,
    Message,
    Operation,
    Scope,
    Stop,
    Stopping,
    event,
    header_value,
)
from headgate.kit.wire import Wire

pytestmark = pytest.mark.anyio


class Line:
    """A client's connection: it says nothing until it hangs up."""

    def __init__(self) -> None:
        self.headers = {b"x-a": b"\xe9"}
        self.scheme = "http"
        self.scope: Scope = {"headers": []}
        self._watching: list[asyncio.Future[None]] = []

    async def receive(self) -> Message:
        raise AssertionError("nobody asked for the body")

    def watch(self, departure: asyncio.Future[None]) -> None:
        self._watching.append(departure)

    def hang_up(self) -> None:
        for departure in self._watching:
            departure.set_result(None)


def call_on(line: Line, stop: Stop) -> Call:
    return Call(line, "1", stop)


async def forever(ended: list[str]) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        ended.append("ended")


class Greeting(Wire):
    first_name: str
    times: int = 1


def test_wire_is_camel_case_and_refuses_unknown_fields() -> None:
    assert msgspec.json.encode(Greeting("Ann")) == b'{"firstName":"Ann","times":1}'
    with pytest.raises(msgspec.ValidationError, match="unknown field `name`"):
        msgspec.json.decode(b'{"firstName":"Ann","name":1}', type=Greeting)
    with pytest.raises(AttributeError):
        Greeting("Ann").times = 2


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        (Access.PUBLIC, [Access.PUBLIC]),
        (Access.READ, [Access.PUBLIC, Access.READ]),
        (Access.SERVICE, [Access.PUBLIC, Access.READ, Access.SERVICE]),
        (Access.ADMIN, list(Access)),
    ],
)
def test_each_role_includes_the_lesser_ones(role: Access, allowed: list[Access]) -> None:
    assert [access for access in Access if Caller("a", role).may(access)] == allowed


def test_operation_is_named_after_its_handler() -> None:
    async def list_open_queues(call: Call) -> None: ...

    operation = Operation("GET", "/a", list_open_queues, "List", access=Access.READ, tag="a")
    assert operation.id == "listOpenQueues"
    assert (
        Operation("GET", "/a", list_open_queues, "List", access=Access.READ, tag="a", name="show_all").id == "showAll"
    )


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (event("status", {"rank": 1}, 7), b'event: status\nid: 7\ndata: {"rank":1}\n\n'),
        (event("status", Greeting("Ann")), b'event: status\ndata: {"firstName":"Ann","times":1}\n\n'),
        (event("note", "one\r\ntwo"), b"event: note\ndata: one\ndata: two\n\n"),
        (event("note", b"\n\nevent: forged"), b"event: note\ndata: \ndata: \ndata: event: forged\n\n"),
    ],
)
def test_event_cannot_be_broken_out_of(made: bytes, expected: bytes) -> None:
    assert made == expected


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("/a b?c=%20", b"/a b?c=%20"),
        ("/열", b"/%EC%97%B4"),
        ("é", b"%C3%A9"),
        ("a\r\nSet-Cookie: b", b"a%0D%0ASet-Cookie: b"),
        ("\0\x7f\t", b"%00%7F%09"),
        ("\ud800", b"?"),
    ],
)
def test_every_text_can_be_the_value_of_a_header(text: str, written: bytes) -> None:
    assert header_value(text) == written
    status, lines, _ = rendered(Answer(status=302, headers={"Location": text}), 200)
    assert status == 302
    assert b"location: %b\r\n" % written in lines


def test_headers_are_found_in_any_case() -> None:
    call = call_on(Line(), Stop())
    assert call.header("X-A") == "é"
    assert call.header("x-b") is None


async def test_attended_work_gives_its_result() -> None:
    call = call_on(Line(), Stop())
    assert await call.until_disconnect(asyncio.sleep(0, "done")) == "done"
    call.close()


async def test_attended_work_raises_its_own_error() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    call = call_on(Line(), Stop())
    with pytest.raises(ZeroDivisionError):
        await call.until_disconnect(fail())
    call.close()


async def test_work_is_cancelled_when_the_client_leaves() -> None:
    line, ended = Line(), list[str]()
    call = call_on(line, Stop())
    asyncio.get_running_loop().call_later(0.01, line.hang_up)
    with pytest.raises(ClientGone):
        await call.until_disconnect(forever(ended))
    assert ended == ["ended"]
    assert call.disconnected().done()


async def test_work_is_cancelled_when_the_gateway_stops() -> None:
    stop, ended = Stop(), list[str]()
    call = call_on(Line(), stop)
    asyncio.get_running_loop().call_later(0.01, stop.set)
    with pytest.raises(Stopping) as refusal:
        await call.until_disconnect(forever(ended))
    assert refusal.value.retry_after == 1
    assert ended == ["ended"]
    with pytest.raises(Stopping):
        await call_on(Line(), stop).until_disconnect(forever(ended))
    call.close()


async def test_cancelled_waiting_leaves_nothing_behind() -> None:
    ended: list[str] = []
    before = asyncio.all_tasks()
    call = call_on(Line(), Stop())
    waiting = asyncio.ensure_future(call.until_disconnect(forever(ended)))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == ["ended"]
    call.close()
    assert asyncio.all_tasks() == before
