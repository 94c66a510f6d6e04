"""What the store's door measures."""

from __future__ import annotations

from functools import cache

from prometheus_client import Histogram

from headgate.kit.metrics import histogram

SCRIPT_SECONDS = histogram(
    "headgate_store_script_seconds", "time from a script's call to its answer, repeats included", ("script", "outcome")
)
BATCH_SIZE = histogram(
    "headgate_store_batch_size",
    "calls that shared one script call",
    ("script",),
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
)


@cache
def script_seconds(script: str, outcome: str) -> Histogram:
    """Give where a script's times with one outcome are kept."""
    return SCRIPT_SECONDS.labels(script, outcome)
