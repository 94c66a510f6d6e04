"""Periodic jobs of workers for the registry."""

from __future__ import annotations

from typing import Final

from headgate.kit.life import Job
from headgate.registry.alerts import Alerts
from headgate.registry.health_checks import HealthChecker
from headgate.registry.probes import Prober
from headgate.registry.registry import Registry
from headgate.registry.sweep import Sweeper

EVERY_SECONDS: Final = 0.25  # how often due services and checks are claimed


def jobs(registry: Registry, prober: Prober, alerts: Alerts) -> list[Job]:
    """List the jobs: the sweep, the health checks, the alerts."""
    return [
        Job("registry sweep", Sweeper(registry, alerts).step, EVERY_SECONDS),
        Job("registry health checks", HealthChecker(registry, prober, alerts).step, EVERY_SECONDS),
        Job("registry alerts", alerts.run),
    ]
