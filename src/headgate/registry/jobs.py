"""Periodic jobs of workers for the registry."""

from __future__ import annotations

from headgate.kit.life import Job
from headgate.registry.alerts import Alerts, alert_job
from headgate.registry.health_checks import HealthChecker, check_job
from headgate.registry.probes import Prober
from headgate.registry.registry import Registry
from headgate.registry.sweep import Sweeper, sweep_job


def jobs(registry: Registry, prober: Prober, alerts: Alerts) -> list[Job]:
    """List the jobs: the sweep, the health checks, the alerts."""
    return [
        sweep_job(Sweeper(registry, alerts)),
        check_job(HealthChecker(registry, prober, alerts)),
        alert_job(alerts),
    ]
