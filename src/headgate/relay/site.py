"""What one process has at one upstream: who waits, which permits are in hand, and which history the store last spoke of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar, cast

from headgate.relay.lines import Lines
from headgate.relay.metrics import Meters
from headgate.store import Thing
from headgate.store.link import Reply

UNLIMITED: Final = 1_000_000
P = TypeVar("P")


class Site(Generic[P]):
    """What this process has at one upstream."""

    __slots__ = ("_hurry", "epoch", "heard", "held", "largest", "lines", "meters", "name", "streaming", "thing",
                 "unreported", "utilisation", "version")  # fmt: skip

    def __init__(self, name: str, thing: Thing, hurry: asyncio.Event) -> None:
        self._hurry = hurry
        self.name = name
        self.thing = thing
        self.lines = Lines()
        self.meters = Meters(name)
        self.held: dict[str, P] = {}
        self.streaming: dict[str, P] = {}
        self.heard = asyncio.get_running_loop().time()
        self.epoch = b""
        self.version = b""
        self.largest = 0
        self.utilisation = -1.0
        self.unreported = False

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
        if self.version not in (b"", version):
            self.lines.ask_all()  # the hint may have been lost
        self.epoch, self.version = cast("bytes", epoch), cast("bytes", version)

    def hear(self, on_policy: Callable[[str], None]) -> Callable[[str | None], None]:
        """Make the listener for this upstream's hints."""

        def listener(words: str | None) -> None:
            if words is None or words.startswith("policy"):
                on_policy(self.name)
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
