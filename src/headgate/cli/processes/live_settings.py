"""Applies Headgate's own settings that change live to this process: log level, alert target and rate limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from headgate.config.config import Config
from headgate.config.live_settings import NAMESPACE, Apply, EdgeLimits, LiveAlertTarget, LiveSettings, LogLevel
from headgate.config.watch import follow
from headgate.kit import logs
from headgate.kit.logs import Level
from headgate.registry.alerts import Alerts, AlertTarget


class AdjustableLimits(Protocol):
    """A rate limit of the gateway that can be changed while it runs."""

    def change(self, per_second: float | None) -> None:
        """Set another rate, or with None the configured one."""


def live_settings(
    config: Config,
    *,
    usual: Level,
    alerts: Alerts | None = None,
    limits: Callable[[], Mapping[str, AdjustableLimits]] | None = None,
) -> LiveSettings:
    """Return the follower that applies Headgate's own live settings to this process."""
    apply: dict[str, Apply] = {"log/level": lambda said: _set_level(said, usual)}
    if alerts is not None:
        configured = alerts.target

        def aim(said: LiveAlertTarget) -> None:
            given = AlertTarget(**msgspec.structs.asdict(said))
            alerts.target = given if said.url else configured

        apply["alerts/target"] = aim
    if limits is not None:

        def limit(said: EdgeLimits) -> None:
            for name, limiter in limits().items():
                limiter.change(said.per_second.get(name))

        apply["edge/limits"] = limit
    return LiveSettings(lambda: follow(config, NAMESPACE, None), apply)


def _set_level(said: LogLevel, usual: Level) -> None:
    logs.set_level(Level(said.level) if said.level else usual)
