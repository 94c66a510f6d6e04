"""This process's state of one upstream: its waiters, the permits it holds, and the epoch that the store last reported."""

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
    """The waiters, permits, epoch and metrics of one upstream in this process."""

    __slots__ = (
        "_beat_now",
        "answered_at",
        "beat_due",
        "epoch",
        "held",
        "largest",
        "last_beat",
        "lines",
        "listening",
        "meters",
        "name",
        "reported_epoch",
        "streaming",
        "thing",
        "unreported",
        "utilisation",
    )  # fmt: skip

    def __init__(self, name: str, thing: Thing, beat_now: asyncio.Event) -> None:
        self._beat_now = beat_now
        self.name = name
        self.thing = thing
        self.lines = UserLines()
        self.listening = ExitStack()
        self.meters = UpstreamMetrics(name)
        self.held: dict[str, P] = {}
        self.streaming: dict[str, P] = {}
        self.last_beat = asyncio.get_running_loop().time()
        self.answered_at: float | None = None
        self.epoch = b""
        self.reported_epoch = b""  # the epoch in which our answers were reported to the store
        self.largest = 0
        self.utilisation = -1.0
        self.unreported = False
        self.beat_due = False

    def busy(self) -> bool:
        """Whether heartbeats are needed: something waits or is held here. Without it the last heartbeat counts as recent."""
        if len(self.lines) or self.held or self.streaming:
            return True
        self.last_beat = asyncio.get_running_loop().time()
        return False

    def learn(self, epoch: Reply, version: Reply) -> None:
        """Record the epoch and the policy version of a reply; waiters under another policy ask again."""
        if self.epoch not in (b"", epoch):
            self.unreported = True
            self._beat_now.set()
        self.lines.learn(cast("bytes", version))
        self.epoch = cast("bytes", epoch)
        self.reported_epoch = self.reported_epoch or self.epoch

    def note_answer(self, at: float) -> None:
        """Record when the last answer came: a store that has lost it must hold until its window has ended."""
        self.answered_at = max(at, self.answered_at or at)

    def answered_ms(self) -> int | str:
        """Return how long ago the last answer came, in ms; empty if there was none."""
        if self.answered_at is None:
            return ""
        return max(0, int((asyncio.get_running_loop().time() - self.answered_at) * 1000) - 1)

    def subscriber(self, on_policy: Callable[[str], None]) -> Callable[[str | None], None]:
        """Return the callback for this upstream's hints."""

        def listener(words: str | None) -> None:
            if words is None or words.startswith("policy"):
                on_policy(self.name)
                # it may have been created anew: our answers must be reported before its first grant
                self.beat_due = True
                self._beat_now.set()
            self.lines.on_hint(words)

        return listener

    def note_grant(self, waited: float, room: int, used: int) -> None:
        """Update the metrics of a grant: how long it took, and how much of the limit is used."""
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
