"""One request in the gateway, and the steps of a handler that runs without a task.

A handler of an operation marked `prompt` is a coroutine that waits for the store at most. `step` sends into the coroutine
directly, and continues when the awaited reply has arrived. With a task, a status costs 13 % more CPU (60.9 instead of 54.1 µs,
medians of 5 alternating rounds on a busy machine).

This uses one private attribute of asyncio: `await future` sets `future._asyncio_future_blocking`, and the driver of the
coroutine must reset it, or the next `await` of the same future fails. Only asyncio.Task does so; there is no public function
for it. `tests/unit/test_private_asyncio.py` fails on a Python later than `NEWEST_PYTHON`.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from headgate.gateway.authentication import DEFAULT_NAMESPACE
from headgate.gateway.prepared_routes import PreparedRoute, UnroutedRequest
from headgate.http.exchange import Exchange
from headgate.http.responses import Headers
from headgate.http.routes import ANONYMOUS, Call
from headgate.kit import logs
from headgate.store import PendingReply

if TYPE_CHECKING:
    from headgate.gateway.gateway import Gateway

NEWEST_PYTHON = (3, 14)
_NO_HEADERS: Headers = []


class RequestContext(Call):
    """A request: the call that its handler gets, and what the gateway needs to answer it."""

    work: CoroutineType[Any, Any, object]

    def __init__(
        self, exchange: Exchange, request_id: str, gateway: Gateway, route: UnroutedRequest | PreparedRoute
    ) -> None:
        # Assigns what Call.__init__ does, without another call.
        self.headers = exchange.target.headers
        self.caller = ANONYMOUS
        self.namespace = DEFAULT_NAMESPACE
        self.request_id = request_id
        self.stop = gateway.stop
        self._request = self.exchange = exchange
        self._gateway = gateway
        self.route = route
        self.running = False
        self.extra_headers = _NO_HEADERS
        self.started = perf_counter()

    def begin(self, route: UnroutedRequest | PreparedRoute) -> None:
        """Count the request as in flight on this route."""
        self.route = route
        self.running = True
        route.tally.in_flight += 1

    def end(self) -> None:
        """Stop counting the request as in flight."""
        if self.running:
            self.running = False
            self.route.tally.in_flight -= 1

    def spend(self, limit: str) -> None:
        self._gateway.authentication.spend(self.exchange, self.caller, limit)

    def step(self) -> None:
        """Run a prompt handler until it awaits something, and continue when that is done."""
        try:
            awaited = self.work.send(None)
        except StopIteration as done:
            try:
                self._gateway.reply(self, done.value)
            except Exception as error:  # noqa: BLE001 -- as below: a response that cannot be written is a defect of ours
                self._gateway.fail(self, error)
        except Exception as error:  # noqa: BLE001 -- the top of a request: every error becomes a problem document
            self._gateway.fail(self, error)
        except asyncio.CancelledError:  # the awaited future was cancelled, because this process is about to end
            self.end()
            self.exchange.abort()
        else:
            if awaited is None:
                asyncio.get_running_loop().call_soon(self._resume, awaited)
                return
            awaited._asyncio_future_blocking = False
            if isinstance(awaited, PendingReply):
                awaited.callback = self._resume
            else:
                awaited.add_done_callback(self._resume)

    def _resume(self, _awaited: object) -> None:
        logs.request_id.set(self.request_id)  # a callback runs in another context
        self.step()
