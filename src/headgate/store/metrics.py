"""The metrics of the store's client."""

from __future__ import annotations

from functools import cache
from typing import Final

from headgate.kit.metrics import Sums, histogram

_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SCRIPT_SECONDS = histogram(
    "headgate_store_script_seconds", "time from a script's call to its answer, repeats included", ("script", "outcome")
)
BATCH_SIZE = histogram("headgate_store_batch_size", "calls that shared one script call", ("script",), buckets=_SIZES)


@cache
def script_seconds(script: str, outcome: str) -> Sums:
    """Give the histogram of a script's durations with one outcome."""
    return Sums(SCRIPT_SECONDS.labels(script, outcome))


@cache
def batch_size(script: str) -> Sums:
    """Give the histogram of a script's batch sizes."""
    return Sums(BATCH_SIZE.labels(script), _SIZES)
