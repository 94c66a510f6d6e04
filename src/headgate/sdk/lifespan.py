"""`app = registered(app, url, …)`: an ASGI application is registered for as long as its server runs it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final

import structlog

from headgate.kit.http import Asgi, Message, Receive, Scope, Send
from headgate.kit.problems import HeadgateError
from headgate.registry.model import Record
from headgate.sdk.client import Headgate

log = structlog.get_logger()
DRAIN_SECONDS: Final = 1.0


def registered(
    app: Asgi, url: str, record: Record, *, token: str | None = None, drain_seconds: float = DRAIN_SECONDS
) -> Asgi:
    """Wrap an application: register when it has started, leave the healthy lists and then the registry when it stops."""
    return _Registered(app, Headgate(url, token=token), record, drain_seconds)


class _Registered:
    def __init__(self, app: Asgi, client: Headgate, record: Record, drain_seconds: float) -> None:
        self._app = app
        self._client = client
        self._record = record
        self._drain_seconds = drain_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        async with AsyncExitStack() as stack:
            instance_id: str | None = None

            async def hear() -> Message:
                message = await receive()
                if message["type"] == "lifespan.shutdown" and instance_id is not None:
                    # Before the application stops: traffic must turn away first.
                    try:
                        await self._client.registry.drain(instance_id, wait_seconds=self._drain_seconds)
                    except HeadgateError as error:
                        log.warning("could not leave the registry", error=str(error))
                return message

            async def say(message: Message) -> None:
                nonlocal instance_id
                if message["type"] == "lifespan.startup.complete":
                    try:
                        await stack.enter_async_context(self._client)
                        made = await self._client.registry.register(self._record)
                    except HeadgateError as error:
                        await send({"type": "lifespan.startup.failed", "message": f"not registered: {error.detail}"})
                        return
                    instance_id = made.instance_id
                    self._client.registry.start_auto_heartbeat(made.instance_id)
                await send(message)

            await self._app(scope, hear, say)
