"""Metrics of config."""

from __future__ import annotations

from headgate.kit.metrics import counter, gauge, histogram

PUBLISHES = counter("headgate_config_publishes_total", "publishes", ("outcome",))
READS = counter("headgate_config_reads_total", "reads of values")
WATCHERS = gauge("headgate_config_watchers", "open watches")
WATCH_LAG = gauge(
    "headgate_config_watch_lag_seconds", "how long a watch's reader has not heard from the store", across="max"
)
PUSH_SECONDS = histogram("headgate_config_push_seconds", "time from a publish in the store to its watchers here")
