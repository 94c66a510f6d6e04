"""`app = registered(app, url, …)`: an ASGI application is registered for as long as its server runs it."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Final

import msgspec

from headgate.http.routes import Asgi, Message, Receive, Scope, Send
from headgate.kit.ids import new_ulid
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError, StoreUnavailable
from headgate.kit.tasks import Tasks
from headgate.registry.model import Record
from headgate.sdk.client import Headgate

log = get_logger()
DRAIN_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 2.0


def registered(
    app: Asgi, url: str, record: Record, *, token: str | None = None, drain_seconds: float = DRAIN_SECONDS
) -> Asgi:
    """Wrap an application: register when it has started, leave the healthy lists and then the registry when it stops.

    An outage does not keep it from starting: it is registered as soon as Headgate answers. A refusal does.
    """
    return _Registered(app, url, record, token, drain_seconds)


class _Registered:
    def __init__(self, app: Asgi, url: str, record: Record, token: str | None, drain_seconds: float) -> None:
        self._app = app
        self._url = url
        self._record = record
        self._token = token
        self._drain_seconds = drain_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        inner = _Inner(self._app, scope)
        presence = _Presence(Headgate(self._url, token=self._token), self._record, self._drain_seconds)
        try:
            answer = await inner.tell(await receive())
            if answer is not None and answer["type"] == "lifespan.startup.failed":
                await send(answer)
                return
            refusal = await presence.begin()
            if refusal is not None:
                await inner.tell({"type": "lifespan.shutdown"})
                await send({"type": "lifespan.startup.failed", "message": f"not registered: {refusal.detail}"})
                return
            await send(answer or {"type": "lifespan.startup.complete"})
            message = await receive()
            await presence.end()  # before the application stops: traffic must turn away first
            await send(await inner.tell(message) or {"type": "lifespan.shutdown.complete"})
        finally:
            await presence.close()
            await inner.close()


class _Inner:
    """Runs the application's own lifespan; an application without one raises or returns, and is served all the same."""

    def __init__(self, app: Asgi, scope: Scope) -> None:
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._outbox: asyncio.Queue[Message] = asyncio.Queue()
        self._tasks = Tasks()
        self._task = self._tasks.start(self._run(app, scope))

    async def tell(self, message: Message) -> Message | None:
        """Pass a message on and give the reply; None if the application has no lifespan."""
        await self._inbox.put(message)
        answer = self._tasks.start(self._outbox.get())
        await asyncio.wait((answer, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            return self._outbox.get_nowait() if not self._outbox.empty() else None
        return answer.result()

    async def close(self) -> None:
        """End it, if it has not ended."""
        await self._tasks.close()

    async def _run(self, app: Asgi, scope: Scope) -> None:
        try:
            await app(scope, self._inbox.get, self._outbox.put)
        except Exception as error:  # noqa: BLE001  # as the protocol has it: who raises knows of no lifespan
            log.info("the application has no lifespan of its own", error=repr(error))


class _Presence:
    """Keeps the application registered, from the first successful call until the end."""

    def __init__(self, client: Headgate, record: Record, drain_seconds: float) -> None:
        self._client = client
        # One id for every try: the next takes the place of one whose answer was lost.
        self._record = msgspec.structs.replace(record, instance_id=record.instance_id or new_ulid())
        self._drain_seconds = drain_seconds
        self._present = False
        self._leave = asyncio.Event()
        self._tried: asyncio.Future[HeadgateError | None] = asyncio.get_running_loop().create_future()
        self._tasks = Tasks()
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> HeadgateError | None:
        """Register in the background; after the first try, give the refusal or None."""
        self._task = self._tasks.start(self._run())
        await asyncio.wait((self._tried, self._task), return_when=asyncio.FIRST_COMPLETED)
        if not self._tried.done():
            self._task.result()  # raises an unexpected error
        return await self._tried

    async def end(self) -> None:
        """Leave."""
        self._leave.set()
        if self._task is not None:
            if not self._present:
                self._task.cancel()  # the store may be away: nobody waits for it to open, only to leave it again
            await asyncio.wait((self._task,))
            if not self._task.cancelled():
                self._task.result()

    async def close(self) -> None:
        """Stop at once."""
        await self._tasks.close()

    async def _run(self) -> None:
        while not self._leave.is_set():
            try:
                async with self._client as headgate:
                    made = await headgate.registry.register(self._record)
                    headgate.registry.start_auto_heartbeat(made.instance_id)
                    self._present = True
                    self._note(None)
                    await self._leave.wait()
                    await headgate.registry.drain(made.instance_id, wait_seconds=self._drain_seconds)
            except HeadgateError as error:
                self._present = False
                if not self._tried.done() and not isinstance(error, StoreUnavailable):
                    self._note(error)
                    return
                log.warning("not registered", type=self._record.type, error=str(error))
                self._note(None)
                with suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_SECONDS * random.uniform(0.5, 1.5)):
                        await self._leave.wait()

    def _note(self, refusal: HeadgateError | None) -> None:
        if not self._tried.done():
            self._tried.set_result(refusal)
