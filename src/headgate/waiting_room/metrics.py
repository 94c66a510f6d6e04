"""What the waiting room counts and measures; numbers that live in the store are looked up there when asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from threading import get_ident
from time import monotonic
from typing import Final

import structlog
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from headgate.kit import metrics
from headgate.kit.problems import HeadgateError
from headgate.waiting_room.policy import Figures

WAITS: Final = (1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400)

WAIT_SECONDS = metrics.histogram(
    "headgate_queue_wait_seconds", "How long people waited from entry to promotion.", ["queue"], buckets=WAITS
)
HOLD_SECONDS = metrics.histogram(
    "headgate_queue_hold_seconds", "How long a seat was held from promotion to entering.", ["queue"], buckets=WAITS
)
ETA_ERROR_SECONDS = metrics.histogram(
    "headgate_queue_eta_error_seconds",
    "How far the wait predicted at entry was from the real one.",
    ["queue"],
    buckets=WAITS,
)
TICK_SECONDS = metrics.histogram("headgate_queue_tick_seconds", "How long a visit of a queue takes.", ["queue"])
STREAMS = metrics.gauge("headgate_queue_streams", "Open event streams of people in line.", ["queue"])

_GAUGES: Final = {
    "headgate_queue_waiting": ("People in line.", "waiting"),
    "headgate_queue_live_waiting": ("People in line who were seen lately, estimated from a sample.", "live"),
    "headgate_queue_away": ("People who were called while away.", "away"),
    "headgate_queue_holds": ("Seats held by tickets that are not used yet.", "holds"),
    "headgate_queue_sessions": ("Sessions inside.", "sessions"),
    "headgate_queue_capacity": ("Seats in force.", "capacity"),
}
_COUNTS: Final = {
    "headgate_queue_entered_total": ("People who entered the line.", "entered_total"),
    "headgate_queue_admitted_total": ("People called to the front.", "admitted_total"),
    "headgate_queue_abandoned_total": ("People who stayed away too long.", "abandoned_total"),
    "ticket_issued_count": ("Tickets issued.", "issued_total"),
    "ticket_expired_count": ("Tickets not used in time.", "expired_total"),
}
FRESH_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 1.0

log = structlog.get_logger()


class QueueNumbers:
    """The numbers that the store keeps for each queue, as they were at the last look.

    Every process that shows them shows the same, because each ticket was counted once, by the script that made it.
    """

    def __init__(self, look: Callable[[], Awaitable[dict[str, Figures]]]) -> None:
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._figures: dict[str, Figures] = {}
        self._looked = -FRESH_SECONDS
        self._looking: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Look at the store now."""
        self._looked = monotonic()
        try:
            self._figures = await self._look()
        except HeadgateError as error:
            log.debug("queue figures not read", error=error.detail)

    def collect(self) -> Iterable[Metric]:
        """Give what is known; if that is old, look first, or, where waiting would stop the loop, behind the asker's back."""
        if monotonic() - self._looked > FRESH_SECONDS and not self._loop.is_closed():
            if get_ident() == self._thread:
                self._refresh_soon()
            else:
                with suppress(TimeoutError):
                    asyncio.run_coroutine_threadsafe(self.refresh(), self._loop).result(PATIENCE_SECONDS)
        for name, (text, field) in _GAUGES.items():
            family = GaugeMetricFamily(name, text, labels=["queue"])
            for queue, figures in self._figures.items():
                family.add_metric([queue], getattr(figures, field))
            yield family
        for name, (text, field) in _COUNTS.items():
            # The library would add _total to a counter's name, and two of these names are given.
            counts = Metric(name, text, "unknown")
            for queue, figures in self._figures.items():
                counts.add_sample(name, {"queue": queue}, getattr(figures, field))
            yield counts

    def _refresh_soon(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = self._loop.create_task(self.refresh())
