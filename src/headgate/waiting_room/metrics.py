"""Metrics of the waiting room; those of queues are read from the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Final

from headgate.kit import metrics
from headgate.kit.logs import get_logger
from headgate.kit.named_metrics import MOST_NAMES, OTHER, LabelNames, NamedReadings
from headgate.kit.problems import HeadgateError
from headgate.store import Index, Thing
from headgate.waiting_room.wire import Figures

WAITS: Final = (1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400)

QUEUES: Final = LabelNames("queue")
WAIT_SECONDS = QUEUES.histogram(
    "headgate_queue_wait_seconds", "How long people waited from entry to promotion.", buckets=WAITS
)
HOLD_SECONDS = QUEUES.histogram(
    "headgate_queue_hold_seconds", "How long a seat was held from promotion to entering.", buckets=WAITS
)
ETA_ERROR_SECONDS = QUEUES.histogram(
    "headgate_queue_eta_error_seconds", "How far the wait predicted at entry was from the real one.", buckets=WAITS
)
TICK_SECONDS = QUEUES.histogram("headgate_queue_tick_seconds", "How long a visit of a queue takes.")
STREAMS = QUEUES.gauge("headgate_queue_streams", "Open event streams of people in line.")

_GAUGES: Final = {
    "waiting": NamedReadings("queue", "headgate_queue_waiting", "People in line."),
    "live": NamedReadings(
        "queue", "headgate_queue_live_waiting", "People in line who were seen lately, estimated from a sample."
    ),
    "away": NamedReadings("queue", "headgate_queue_away", "People who were called while away."),
    "holds": NamedReadings("queue", "headgate_queue_holds", "Seats held by tickets that are not used yet."),
    "sessions": NamedReadings("queue", "headgate_queue_sessions", "Sessions inside."),
    "capacity": NamedReadings("queue", "headgate_queue_capacity", "Seats in force."),
}
_COUNTS: Final = {
    "entered_total": NamedReadings("queue", "headgate_queue_entered_total", "People who entered the line.", "unknown"),
    "admitted_total": NamedReadings("queue", "headgate_queue_admitted_total", "People called to the front.", "unknown"),
    "abandoned_total": NamedReadings(
        "queue", "headgate_queue_abandoned_total", "People who stayed away too long.", "unknown"
    ),
    "issued_total": NamedReadings("queue", "ticket_issued_count", "Tickets issued.", "unknown"),
    "expired_total": NamedReadings("queue", "ticket_expired_count", "Tickets not used in time.", "unknown"),
}
EVERY_SECONDS: Final = 5.0
FRESH_SECONDS: Final = 0.25
# Workers visit a queue that has users at least this often.
BUSY_MS: Final = 5000
MOST_BUSY: Final = 500

log = get_logger()


class QueueNumbers:
    """The numbers that the store keeps for each queue, as they were read last.

    Every process shows the same numbers, because each ticket is counted once, by the script that makes it. Only busy
    queues are read each time. The fullest queues are shown by name and the rest as `other`. Counters of `other` begin
    at the first read, so that they never decrease when a queue changes between named and `other`.
    """

    def __init__(
        self, index: Index, read: Callable[[Thing], Awaitable[Figures | None]], most: int = MOST_NAMES
    ) -> None:
        self._index = index
        self._read_figures = read
        self._most = most
        self._figures: dict[Thing, Figures] = {}
        self._shown: set[Thing] = set()
        self._busy: set[Thing] = set()
        self._others = dict.fromkeys(_COUNTS, 0)
        self._refreshed_at = -FRESH_SECONDS
        self._refreshing = asyncio.Lock()

    async def run(self) -> None:
        """Refresh every few seconds, in one of the processes that share their metrics."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            if metrics.sole("queue-numbers"):
                await self.refresh()

    async def refresh(self) -> None:
        """Read the numbers, unless that was done a moment ago."""
        async with self._refreshing:
            if monotonic() - self._refreshed_at < FRESH_SECONDS:
                return
            try:
                await self.read()
            except HeadgateError as error:
                log.debug("queue figures not read", error=error.detail)
            self._refreshed_at = monotonic()

    async def read(self) -> None:
        """Read the numbers now and publish them as metrics."""
        things = await self._index.list(None)
        busy = set(await self._index.due(BUSY_MS, MOST_BUSY))
        living = set(things)
        for gone in self._figures.keys() - living:
            del self._figures[gone]
        # A queue that was busy at the last read is read once more; of the idle ones, as many as can be shown by name.
        room = max(0, self._most - len(self._figures.keys() | busy))
        unread = [thing for thing in things if thing not in self._figures and thing not in busy][:room]
        wanted = [thing for thing in (*busy, *(self._busy - busy), *unread) if thing in living]
        self._busy = busy
        self._publish(wanted, await asyncio.gather(*(self._read_figures(thing) for thing in wanted)))

    def _publish(self, things: Sequence[Thing], found: Sequence[Figures | None]) -> None:
        before = dict(self._figures)
        for thing, figures in zip(things, found, strict=True):
            if figures is None:
                self._figures.pop(thing, None)
            else:
                self._figures[thing] = figures
        ranked = sorted(self._figures, key=lambda thing: _fullness(self._figures[thing]), reverse=True)
        shown, rest = ranked[: self._most], ranked[self._most :]
        for thing in rest:
            if thing in before and thing not in self._shown:
                for field in _COUNTS:
                    grown = getattr(self._figures[thing], field) - getattr(before[thing], field)
                    self._others[field] += max(0, grown)
        self._shown = set(shown)
        others: dict[str, float] = dict(self._others) if rest or any(self._others.values()) else {}
        if others:
            others |= {field: sum(getattr(self._figures[thing], field) for thing in rest) for field in _GAUGES}
        for field, readings in (_GAUGES | _COUNTS).items():
            values = {label(thing): getattr(self._figures[thing], field) for thing in shown}
            readings.replace(values | ({OTHER: others[field]} if others else {}))
        for thing in rest:
            if thing not in self._busy:
                del self._figures[thing]


def label(thing: Thing) -> str:
    """Give the metric label of a queue: without the namespace if that is the default one."""
    return thing.name if thing.namespace == "default" else f"{thing.namespace}/{thing.name}"


def _fullness(figures: Figures) -> tuple[int, int]:
    return figures.waiting + figures.away + figures.holds + figures.sessions, figures.entered_total
