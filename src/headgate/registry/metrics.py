"""Metrics of the registry."""

from __future__ import annotations

from headgate.kit.metrics import counter, gauge, histogram
from headgate.kit.named_metrics import LabelNames
from headgate.store import Thing

SERVICES = LabelNames("service")
INSTANCES = SERVICES.gauge(
    "headgate_registry_instances", "instances of a service, as last swept", ("state",), across="latest"
)
REGISTRATIONS = counter("headgate_registry_registrations_total", "registrations", ("outcome",))
HEARTBEATS = counter("headgate_registry_heartbeats_total", "heartbeats", ("outcome",))
REGISTERED, RENEWED = REGISTRATIONS.labels("ok"), HEARTBEATS.labels("ok")
EXPIRATIONS = SERVICES.counter("headgate_registry_expirations_total", "instances whose lease ended")
PROTECTED = SERVICES.gauge("headgate_registry_protected", "1 while expiry is held back in a service", across="max")
WATCHERS = gauge("headgate_registry_watchers", "open watches")
WATCH_LAG = gauge(
    "headgate_registry_watch_lag_seconds", "how long a watch's reader has not heard from the store", across="max"
)
PUSH_SECONDS = histogram("headgate_registry_push_seconds", "time from a change in the store to its watchers here")
PROBES = counter("headgate_registry_probes_total", "health checks made", ("kind", "outcome"))
ALERTS = counter("headgate_registry_alerts_total", "alerts sent", ("outcome",))


def service_label(thing: Thing) -> str:
    """Give the label value of a service."""
    return f"{thing.namespace}/{thing.name}"
