"""How a stream is sent: comments keep a quiet one open, and one that nobody reads is ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headgate.http import responses as answering
from headgate.http.responses import StreamRunner
from headgate.http.routes import Call, Message, Scope, Stop, Stream, event

pytestmark = pytest.mark.anyio


class Patient:
    """A client that sends no body and never leaves."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.scheme = "http"
        self.scope: Scope = {}

    async def receive(self) -> Message:
        raise AssertionError("a stream reads no body")

    def watch(self, departure: asyncio.Future[None]) -> None:
        """Never settle it."""


def call_of(stop: Stop) -> Call:
    return Call(Patient(), "7", stop)


class Sent:
    """The bytes that the client got; `blocked` is a client that does not read."""

    def __init__(self, *, blocked: bool = False) -> None:
        self.chunks: list[bytes] = []
        self.blocked = blocked

    async def __call__(self, message: Message) -> None:
        self.chunks.append(message["body"])
        if self.blocked:
            await asyncio.sleep(60)


async def quiet_after_one(closed: list[bool]) -> AsyncIterator[bytes]:
    try:
        yield event("a", 1)
        await asyncio.sleep(60)
    finally:
        closed.append(True)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "KEEP_ALIVE_SECONDS", 0.02)
    monkeypatch.setattr(answering, "SEND_SECONDS", 0.05)


async def test_quiet_stream_is_kept_open_by_comments() -> None:
    stop, sent, closed = Stop(), Sent(), list[bool]()
    running = asyncio.ensure_future(StreamRunner(Stream(quiet_after_one(closed)), call_of(stop), sent).run())
    async with asyncio.timeout(10):
        while len(sent.chunks) < 4:
            await asyncio.sleep(0.005)
    assert sent.chunks[:4] == [event("a", 1), b":\n\n", b":\n\n", b":\n\n"]
    stop.set()
    async with asyncio.timeout(10):
        await running
    assert closed == [True]


async def test_nothing_is_put_into_a_stream_of_another_kind() -> None:
    stop, sent, closed = Stop(), Sent(), list[bool]()
    stream = Stream(quiet_after_one(closed), "application/octet-stream")
    asyncio.get_running_loop().call_later(0.1, stop.set)
    async with asyncio.timeout(10):
        await StreamRunner(stream, call_of(stop), sent).run()
    assert sent.chunks == [event("a", 1)]


async def test_client_that_does_not_read_is_let_go() -> None:
    closed: list[bool] = []
    async with asyncio.timeout(10):
        await StreamRunner(Stream(quiet_after_one(closed)), call_of(Stop()), Sent(blocked=True)).run()
    assert closed == [True]


async def test_stream_that_always_has_more_lets_others_run() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x"

    stop = Stop()
    asyncio.get_running_loop().call_later(0.01, stop.set)
    async with asyncio.timeout(10):
        await StreamRunner(Stream(endless()), call_of(stop), Sent()).run()
