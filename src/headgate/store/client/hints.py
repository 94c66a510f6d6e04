"""Hints: one subscriber connection per process, any number of listeners.

A hint only says "look now". It may be lost; then its listener looks at its next timer. Whenever the connection is new, every
listener is told None: something may have been missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, cast

from headgate.kit.logs import get_logger
from headgate.kit.tasks import Tasks
from headgate.store.client.link import Link, LinkLost, NodeClock, Reply, ServerError
from headgate.store.client.route import Route
from headgate.store.keys import Thing

PING_SECONDS: Final = 2.0
SILENT_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 0.2

log = get_logger()
Listener = Callable[[str | None], None]


class Hints:
    """Listeners by channel, fed by one connection that is rebuilt whenever it is lost or falls silent."""

    def __init__(self, route: Route, tasks: Tasks) -> None:
        self._route = route
        self._tasks = tasks
        self._listeners: dict[bytes, list[Listener]] = {}
        self._link: Link | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Hints:
        self._keeper = self._tasks.start(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        if self._link is not None:
            self._link.close()

    @contextmanager
    def listen(self, thing: Thing, suffix: str, listener: Listener) -> Iterator[None]:
        """Call `listener` with each hint on a thing's channel; with None as soon as it is subscribed."""
        channel = thing.key(suffix).encode()
        listeners = self._listeners.setdefault(channel, [])
        listeners.append(listener)
        if len(listeners) == 1:
            self._push("SUBSCRIBE", channel)
        elif self._link is not None:
            listener(None)
        try:
            yield
        finally:
            listeners.remove(listener)
            if not listeners and self._listeners.get(channel) is listeners:
                del self._listeners[channel]
                self._push("UNSUBSCRIBE", channel)

    def tell_all(self) -> None:
        """Have every listener look, as if anything might have been missed."""
        for channel in tuple(self._listeners):
            self._tell(channel, None)

    @property
    def connected(self) -> bool:
        """Tell whether hints can reach us now."""
        return self._link is not None and not self._link.closed

    async def _keep(self) -> None:
        """Hold one subscriber connection open for as long as the process lives."""
        while True:
            try:
                link = self._link = await self._subscribe()
            except (LinkLost, ServerError) as error:
                log.debug("no subscriber connection", error=str(error))
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            while not link.closed:
                link.push(("PING",))
                try:
                    async with asyncio.timeout(PING_SECONDS):
                        await link.wait_closed()
                except TimeoutError:
                    if not link.heard_within(SILENT_SECONDS):
                        link.close("the subscriber connection fell silent")
            self._link = None
            log.debug("subscriber connection lost")

    async def _subscribe(self) -> Link:
        node = (await self._route.link(0)).endpoint
        link = await Link.open(node, self._route.address, NodeClock())
        link.on_push = self._on_push
        for channel in list(self._listeners):
            link.push(("SUBSCRIBE", channel))
        return link

    def _push(self, command: str, channel: bytes) -> None:
        if self._link is not None:
            self._link.push((command, channel))

    def _on_push(self, message: list[Reply]) -> None:
        kind = message[0]
        if kind == b"message":
            channel, words = cast("list[bytes]", message[1:3])
            self._tell(channel, words.decode(errors="replace"))
        elif kind == b"subscribe":
            self._tell(cast("bytes", message[1]), None)

    def _tell(self, channel: bytes, words: str | None) -> None:
        for listener in tuple(self._listeners.get(channel, ())):
            try:
                listener(words)
            except Exception:
                # One listener's mistake must not cost the others their hint.
                log.exception("a listener failed", channel=channel.decode())
