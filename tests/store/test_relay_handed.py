"""Permits that a gateway hands over: whoever leaves before the answer is out leaves none behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from headgate.http.routes import Call, ClientGone, Message, Scope, Stop, Stopping
from headgate.relay.api import RelayRoutes
from headgate.relay.model import Outcome
from headgate.relay.relay import Relay
from headgate.relay.wire import PermitAnswer, PermitRequest
from headgate.store import Store
from tests.store.relay_world import window


class Caller:
    """A client that may leave."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.scheme = "http"
        self.scope: Scope = {}
        self._gone = False
        self._departures: list[asyncio.Future[None]] = []

    async def receive(self) -> Message:
        raise AssertionError("the body was read before")

    def watch(self, departure: asyncio.Future[None]) -> None:
        self._departures.append(departure)
        if self._gone:
            self.leave()

    def leave(self) -> None:
        self._gone = True
        for departure in self._departures:
            if not departure.done():
                departure.set_result(None)


@pytest.fixture
async def relay(store: Store) -> AsyncIterator[Relay]:
    async with Relay(store) as made:
        await made.upstreams.note_new_store()
        yield made


Leave = Callable[[Caller, Stop, "asyncio.Task[PermitAnswer]"], object]


@pytest.mark.parametrize(
    ("leave", "raised"),
    [
        (lambda caller, stop, asking: caller.leave(), ClientGone),
        (lambda caller, stop, asking: stop.set(), Stopping),
        (lambda caller, stop, asking: asking.cancel(), asyncio.CancelledError),
    ],
    ids=["client leaves", "gateway stops", "handler is cancelled"],
)
async def test_no_permit_is_handed_to_nobody_however_far_the_question_was(
    relay: Relay, leave: Leave, raised: type[BaseException]
) -> None:
    view = await relay.upstreams.put("a", window(1, 100.0))
    routes = RelayRoutes(relay)
    answered = left = 0
    beats = 0
    while answered < 3:  # of the loop: from before the question is sent until after its answer
        caller, stop = Caller(), Stop()
        call = Call(caller, "1", stop)
        call.body = PermitRequest(upstream="a", user="u1")
        asking = asyncio.create_task(routes.acquire_permit(call))
        for _ in range(beats):
            await asyncio.sleep(0)
        beats += 1
        if asking.done():
            answered += 1
            await relay.permits.complete(
                view, "u1", asking.result().permit, Outcome.UNSENT, age_ms=0, pause_seconds=0.0
            )
            continue
        leave(caller, stop, asking)
        left += 1
        with pytest.raises(raised):
            await asking
        await relay.permits.settled(10)
        figures, _, _ = await relay.upstreams.figures("a", "u1")
        assert (figures.waiting, figures.in_flight, figures.room) == (0, 0, 1), beats
    assert left >= 3
