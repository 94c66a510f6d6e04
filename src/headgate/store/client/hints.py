"""Hints: pub/sub messages, with one subscriber connection per process for all listeners.

A hint only says "read now". It may be lost; then its listener reads at its next timer. After a reconnect every listener is
called with None, because it may have missed hints.
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
    """The listeners by channel, and one connection that is reopened when it is lost or silent."""

    def __init__(self, route: Route, tasks: Tasks) -> None:
        self._route = route
        self._tasks = tasks
        self._listeners: dict[bytes, list[Listener]] = {}
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Hints:
        self._task = self._tasks.start(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
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

    def notify_all(self) -> None:
        """Call every listener with None, as after a reconnect."""
        for channel in tuple(self._listeners):
            self._notify(channel, None)

    @property
    def connected(self) -> bool:
        """Tell whether the subscriber connection is open."""
        return self._link is not None and not self._link.closed

    async def _run(self) -> None:
        """Keep one subscriber connection open until cancelled."""
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
                    if not link.received_within(SILENT_SECONDS):
                        link.close("the subscriber connection fell silent")
                    elif self._route.owner(0) not in (None, link.endpoint):
                        link.close("another node is the primary now")
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
            self._notify(channel, words.decode(errors="replace"))
        elif kind == b"subscribe":
            self._notify(cast("bytes", message[1]), None)

    def _notify(self, channel: bytes, words: str | None) -> None:
        for listener in tuple(self._listeners.get(channel, ())):
            try:
                listener(words)
            except Exception:
                # One listener's error must not keep the hint from the others.
                log.exception("a listener failed", channel=channel.decode())
