"""Metrics of locks."""

from __future__ import annotations

from headgate.kit.metrics import counter, gauge, histogram

HELD = gauge("headgate_lock_held", "Locks held by this process now.")
WAITING = gauge("headgate_lock_waiting", "Waiters of this process in the lines of locks.")
ACQUIRE_SECONDS = histogram(
    "headgate_lock_acquire_seconds", "How long it took until a lock was given or refused.", ["outcome"]
)
HOLD_SECONDS = histogram(
    "headgate_lock_hold_seconds",
    "How long locks were held.",
    buckets=(0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0),
)
LOST = counter("headgate_lock_lost_total", "Locks lost while they were held.", ["reason"])
RENEWALS = counter("headgate_lock_renewals_total", "Renewals of leases.", ["outcome"])
QUORUM_NODES = gauge("headgate_lock_quorum_nodes", "Servers of quorums by state.", ["state"], across="max")

ACQUIRED = ACQUIRE_SECONDS.labels("acquired")
REFUSED = ACQUIRE_SECONDS.labels("held")
FAILED = ACQUIRE_SECONDS.labels("failed")
RENEWED = RENEWALS.labels("renewed")
NOT_RENEWED = RENEWALS.labels("failed")
