"""Settings of the registry."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from headgate.kit.settings import Doc, Settings


class RegistrySettings(Settings, section="registry"):
    """Leases, history, protection, probes and alerts."""

    ttl_seconds: Annotated[float, Meta(ge=1, le=86_400), Doc("lease of an instance that names none")] = 30.0
    most_instances: Annotated[int, Meta(ge=1), Doc("most instances in one service")] = 20_000
    history: Annotated[int, Meta(ge=100), Doc("changes kept for watchers who come back, per service, at least")] = (
        10_000
    )
    history_seconds: Annotated[float, Meta(ge=1), Doc("how long an emptied service's history is kept")] = 3600.0
    override_seconds: Annotated[
        float, Meta(ge=0), Doc("how long an operator's override waits for an instance that has gone to come back")
    ] = 604_800.0
    protect_from: Annotated[int, Meta(ge=1), Doc("services with fewer instances expire without protection")] = 8
    protect_share: Annotated[
        float, Meta(ge=0, le=1), Doc("share of a service that may be late before expiry is held back; 1: never")
    ] = 0.5
    probe_networks: Annotated[tuple[str, ...], Doc("networks that health checks may reach")] = (
        "127.0.0.0/8",
        "::1/128",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "fc00::/7",
    )
    probe_at_once: Annotated[int, Meta(ge=1), Doc("health checks that one process makes at the same time")] = 64
    alert_url: Annotated[str, Doc("webhook that hears of deaths, protection and health changes", secret=True)] = ""
    alert_format: Annotated[str, Meta(pattern=r"^(generic|slack|pagerduty)\Z"), Doc("generic, slack or pagerduty")] = (
        "generic"
    )
    alert_key: Annotated[str, Doc("routing key of PagerDuty", secret=True)] = ""
