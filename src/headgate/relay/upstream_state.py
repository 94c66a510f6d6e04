"""What one process has at one upstream: who waits, which permits are in hand, and which history the store last spoke of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, Generic, TypeVar, cast

from headgate.relay.metrics import UpstreamMetrics
from headgate.relay.waiters import UserLines
from headgate.store import Thing
from headgate.store.client.link import Reply

UNLIMITED: Final = 1_000_000
P = TypeVar("P")


class UpstreamState(Generic[P]):
    """What this process has at one upstream."""

    __slots__ = ("_hurry", "answered_at", "epoch", "heard", "held", "largest", "lines", "listening", "meters", "name",
                 "streaming", "thing", "told_epoch", "unheard", "unreported", "utilisation")  # fmt: skip

    def __init__(self, name: str, thing: Thing, hurry: asyncio.Event) -> None:
        self._hurry = hurry
        self.name = name
        self.thing = thing
        self.lines = UserLines()
        self.listening = ExitStack()
        self.meters = UpstreamMetrics(name)
        self.held: dict[str, P] = {}
        self.streaming: dict[str, P] = {}
        self.heard = asyncio.get_running_loop().time()
        self.answered_at: float | None = None
        self.epoch = b""
        self.told_epoch = b""  # under which the store heard of our answers
        self.largest = 0
        self.utilisation = -1.0
        self.unreported = False
        self.unheard = False

    def busy(self) -> bool:
        """Tell whether the store must hear that we live; while nobody is here to be missed, we count as heard."""
        if len(self.lines) or self.held or self.streaming:
            return True
        self.heard = asyncio.get_running_loop().time()
        return False

    def learn(self, epoch: Reply, version: Reply) -> None:
        """Remember which history and which policy the store spoke of; whoever waits by another policy asks again."""
        if self.epoch not in (b"", epoch):
            self.unreported = True
            self._hurry.set()
        self.lines.learn(cast("bytes", version))
        self.epoch = cast("bytes", epoch)
        self.told_epoch = self.told_epoch or self.epoch

    def note_answer(self, at: float) -> None:
        """Remember when the last answer came: until it is cool, a store that forgot it must hold."""
        self.answered_at = max(at, self.answered_at or at)

    def answered_ms(self) -> int | str:
        """Say how long ago the last answer came, in ms; nothing if there was none."""
        if self.answered_at is None:
            return ""
        return max(0, int((asyncio.get_running_loop().time() - self.answered_at) * 1000) - 1)

    def hear(self, on_policy: Callable[[str], None]) -> Callable[[str | None], None]:
        """Make the listener for this upstream's hints."""

        def listener(words: str | None) -> None:
            if words is None or words.startswith("policy"):
                on_policy(self.name)
                self.unheard = (
                    True  # it may have been made anew: what we know of it must be told before its first grant
                )
                self._hurry.set()
            self.lines.hear(words)

        return listener

    def note_grant(self, waited: float, room: int, used: int) -> None:
        """Measure a grant: how long it was waited for, and how much of the limit is used."""
        self.meters.wait_seconds.observe(waited)
        if used + room >= UNLIMITED or used + room <= 0:
            return
        if used > self.largest:
            self.largest = used
            self.meters.largest_window.set(used)
        utilisation = round(used / (used + room), 3)
        if utilisation != self.utilisation:
            self.utilisation = utilisation
            self.meters.utilisation.set(utilisation)
