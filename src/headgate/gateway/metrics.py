"""Metrics of the gateway.

To keep hot routes cheap, each operation counts in plain numbers, which are added to the shared metrics every half second.
"""

from __future__ import annotations

from headgate.kit import metrics

FLUSH_SECONDS = 0.5

REQUESTS = metrics.counter("headgate_http_requests_total", "Requests answered.", ["operation", "status"])
SECONDS = metrics.histogram(
    "headgate_http_request_seconds", "Time until the answer was ready, or a stream began.", ["operation"]
)
IN_FLIGHT = metrics.gauge("headgate_http_requests_in_flight", "Requests being answered.", ["operation"])
STREAMS = metrics.gauge("headgate_http_streams", "Open streams.", ["operation"])


class Tally:
    """The numbers of one operation since the last flush."""

    __slots__ = ("_seconds", "_shown", "_statuses", "in_flight", "operation", "streams")

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self.in_flight = 0
        self.streams = 0
        self._shown = (0, 0)
        self._statuses: dict[int, int] = {}
        self._seconds: metrics.Sums | None = None

    def count(self, status: int, seconds: float) -> None:
        """Count one response."""
        statuses = self._statuses
        statuses[status] = statuses.get(status, 0) + 1
        if self._seconds is None:  # an operation without requests has no series
            self._seconds = metrics.Sums(SECONDS.labels(self.operation))
        self._seconds.count(seconds)

    def flush(self) -> None:
        """Add the numbers to the shared metrics."""
        if self._shown != (self.in_flight, self.streams):
            self._shown = (self.in_flight, self.streams)
            IN_FLIGHT.labels(self.operation).set(self.in_flight)
            STREAMS.labels(self.operation).set(self.streams)
        statuses, self._statuses = self._statuses, {}
        for status, number in statuses.items():
            REQUESTS.labels(self.operation, str(status)).inc(number)
        if statuses and self._seconds is not None:
            self._seconds.flush()
