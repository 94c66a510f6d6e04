"""The metrics of the relay; an upstream is a label, a user never is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from headgate.kit.named_metrics import CounterSeries, GaugeSeries, LabelNames

FLUSH_SECONDS: Final = 0.2

UPSTREAMS: Final = LabelNames("upstream")
WAITING = UPSTREAMS.gauge("headgate_relay_waiting", "requests that wait for a permit")
IN_FLIGHT = UPSTREAMS.gauge("headgate_relay_in_flight", "requests sent and not answered yet")
COOLING = UPSTREAMS.gauge(
    "headgate_relay_cooling", "permits that cool after their answer, over all users", across="latest"
)
SENDS = UPSTREAMS.counter("headgate_relay_sends_total", "requests sent to an upstream")
REFUSALS = UPSTREAMS.counter("headgate_relay_refusals_total", "answers 429 from an upstream")
ANSWERS = UPSTREAMS.counter("headgate_relay_answers_total", "how requests ended", ("outcome",))
WAIT_SECONDS = UPSTREAMS.histogram(
    "headgate_relay_wait_seconds",
    "time from a request's arrival to its permit",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600),
)
UPSTREAM_SECONDS = UPSTREAMS.histogram(
    "headgate_relay_upstream_seconds", "time from sending to the first byte of the answer"
)
LARGEST_WINDOW = UPSTREAMS.gauge(
    "headgate_relay_largest_window",
    "most permits of one user seen in use at once: no window of arrivals can be larger",
    across="max",
)
UTILISATION = UPSTREAMS.gauge(
    "headgate_relay_utilisation", "share of a user's permits that were in use at the last grant", across="max"
)
HOLDS = UPSTREAMS.counter("headgate_relay_holds_total", "times that history may have been lost and a window was waited out")  # fmt: skip
LATE_PERMITS = UPSTREAMS.counter("headgate_relay_late_permits_total", "permits given back because it was too late to send")  # fmt: skip
JOBS = UPSTREAMS.counter("headgate_relay_jobs_total", "jobs that ended, by state", ("state",))
STORE_CALLS = UPSTREAMS.counter("headgate_relay_store_calls_total", "script calls made for permits", ("script",))


class DeferredMetric:
    """A counter or gauge that is updated a few times a second, because a metric shared by processes costs more than an addition."""

    __slots__ = ("_metric", "_schedule", "_sum")

    def __init__(self, metric: CounterSeries | GaugeSeries, schedule: Callable[[], None]) -> None:
        self._metric = metric
        self._schedule = schedule
        self._sum = 0

    def inc(self) -> None:
        """Add one."""
        self._sum += 1
        self._schedule()

    def dec(self) -> None:
        """Subtract one; for gauges."""
        self._sum -= 1
        self._schedule()

    def flush(self) -> None:
        """Add the sum to the metric."""
        if self._sum:
            self._metric.inc(self._sum)
            self._sum = 0


class UpstreamMetrics:
    """One upstream's metrics, looked up once, because looking up a label costs more than adding a number."""

    __slots__ = (
        "_answers", "_armed", "_calls", "_deferred", "_loop", "in_flight", "largest_window", "late_permits", "refusals",
        "sends", "upstream", "upstream_seconds", "utilisation", "wait_seconds", "waiting",
    )  # fmt: skip

    def __init__(self, upstream: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._armed = False
        self._deferred: list[DeferredMetric] = []
        self.upstream = upstream
        self.waiting = WAITING.labels(upstream)
        self.in_flight = self._make(IN_FLIGHT.labels(upstream))
        self.sends = self._make(SENDS.labels(upstream))
        self.refusals = REFUSALS.labels(upstream)
        self.wait_seconds = WAIT_SECONDS.labels(upstream)
        self.upstream_seconds = UPSTREAM_SECONDS.labels(upstream)
        self.largest_window = LARGEST_WINDOW.labels(upstream)
        self.utilisation = UTILISATION.labels(upstream)
        self.late_permits = LATE_PERMITS.labels(upstream)
        self._answers: dict[str, DeferredMetric] = {}
        self._calls: dict[str, DeferredMetric] = {}

    def answer(self, outcome: str) -> None:
        """Count a request by its outcome."""
        found = self._answers.get(outcome)
        if found is None:
            found = self._answers[outcome] = self._make(ANSWERS.labels(self.upstream, outcome))
        found.inc()

    def call(self, script: str) -> None:
        """Count a script call."""
        found = self._calls.get(script)
        if found is None:
            found = self._calls[script] = self._make(STORE_CALLS.labels(self.upstream, script))
        found.inc()

    def flush(self) -> None:
        """Update all deferred metrics."""
        self._armed = False
        for metric in self._deferred:
            metric.flush()

    def _make(self, metric: CounterSeries | GaugeSeries) -> DeferredMetric:
        made = DeferredMetric(metric, self._schedule_flush)
        self._deferred.append(made)
        return made

    def _schedule_flush(self) -> None:
        if not self._armed:
            self._armed = True
            self._loop.call_later(FLUSH_SECONDS, self.flush)
