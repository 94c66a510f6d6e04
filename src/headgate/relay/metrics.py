"""What the relay measures; an upstream is a label, a user never is."""

from __future__ import annotations

from headgate.kit.metrics import counter, gauge, histogram

WAITING = gauge("headgate_relay_waiting", "requests that wait for a permit", ("upstream",))
IN_FLIGHT = gauge("headgate_relay_in_flight", "requests sent and not answered yet", ("upstream",))
COOLING = gauge(
    "headgate_relay_cooling", "permits that cool after their answer, over all users", ("upstream",), across="latest"
)
SENDS = counter("headgate_relay_sends_total", "requests sent to an upstream", ("upstream",))
REFUSALS = counter("headgate_relay_refusals_total", "answers 429 from an upstream", ("upstream",))
ANSWERS = counter("headgate_relay_answers_total", "how requests ended", ("upstream", "outcome"))
WAIT_SECONDS = histogram(
    "headgate_relay_wait_seconds",
    "time from a request's arrival to its permit",
    ("upstream",),
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600),
)
UPSTREAM_SECONDS = histogram(
    "headgate_relay_upstream_seconds", "time from sending to the first byte of the answer", ("upstream",)
)
LARGEST_WINDOW = gauge(
    "headgate_relay_largest_window",
    "most permits of one user seen in use at once: no window of arrivals can be larger",
    ("upstream",),
    across="max",
)
UTILISATION = gauge(
    "headgate_relay_utilisation", "share of a user's permits that were in use at the last grant", ("upstream",),
    across="max",
)  # fmt: skip
HOLDS = counter("headgate_relay_holds_total", "times that history may have been lost and a window was waited out", ("upstream",))  # fmt: skip
LATE_PERMITS = counter("headgate_relay_late_permits_total", "permits given back because it was too late to send", ("upstream",))  # fmt: skip
JOBS = counter("headgate_relay_jobs_total", "jobs that ended, by state", ("upstream", "state"))
STORE_CALLS = counter("headgate_relay_store_calls_total", "script calls made for permits", ("upstream", "script"))
