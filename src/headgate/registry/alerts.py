"""Sends alerts to a webhook for deaths, mass-expiry protection and health changes, with retries."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from datetime import UTC, datetime
from typing import Final

import httpx2
import msgspec

from headgate.kit.logs import get_logger
from headgate.registry import metrics
from headgate.registry.settings import RegistrySettings

KEPT: Final = 1000
TRIES: Final = 6
FIRST_PAUSE: Final = 0.5
TIMEOUT_SECONDS: Final = 5.0

log = get_logger()


class Alert(msgspec.Struct, frozen=True, rename="camel"):
    """A message to an operator."""

    kind: str
    text: str
    namespace: str
    service: str
    at: str
    resolved: bool
    key: str


class AlertTarget(msgspec.Struct, frozen=True):
    """The webhook to call, and the format of its body."""

    url: str = ""
    format: str = "generic"
    key: str = ""


class Alerts:
    """A bounded queue of alerts to send; when it is full, the oldest are dropped."""

    def __init__(self, target: AlertTarget | None = None) -> None:
        self.target = target or AlertTarget()
        self._waiting: deque[Alert] = deque(maxlen=KEPT)
        self._ready = asyncio.Event()

    def raise_alert(
        self, kind: str, text: str, *, namespace: str, service: str, key: str, resolved: bool = False
    ) -> None:
        """Queue an alert; does nothing without a target."""
        if self.target.url:
            at = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._waiting.append(Alert(kind, text, namespace, service, at, resolved, key))
            self._ready.set()

    async def run(self) -> None:
        """Send queued alerts for the life of the process."""
        async with httpx2.AsyncClient(timeout=TIMEOUT_SECONDS, follow_redirects=False) as client:
            while True:
                await self._ready.wait()
                while self._waiting:
                    await self._send(client, self._waiting.popleft())
                self._ready.clear()

    async def _send(self, client: httpx2.AsyncClient, alert: Alert) -> None:
        pause = FIRST_PAUSE
        for _ in range(TRIES):
            target = self.target
            if not target.url:
                return
            try:
                response = await client.post(target.url, json=body_of(alert, target))
                if response.status_code < 300:
                    metrics.ALERTS.labels("sent").inc()
                    return
                words = f"HTTP {response.status_code}"
                if response.status_code in (400, 401, 403, 404, 410):
                    break
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                words = str(error) or type(error).__name__
            log.debug("alert not taken", kind=alert.kind, error=words)
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause *= 2
        metrics.ALERTS.labels("failed").inc()
        log.warning("alert could not be sent", kind=alert.kind, text=alert.text)


def body_of(alert: Alert, target: AlertTarget) -> object:
    """Build the request body in the target's format."""
    match target.format:
        case "slack":
            mark = ":white_check_mark:" if alert.resolved else ":warning:"
            return {"text": f"{mark} {alert.text} ({alert.namespace})"}
        case "pagerduty":
            return {
                "routing_key": target.key,
                "event_action": "resolve" if alert.resolved else "trigger",
                "dedup_key": alert.key,
                "payload": {
                    "summary": alert.text,
                    "source": f"{alert.namespace}/{alert.service}",
                    "severity": "critical" if alert.kind == "protection" else "warning",
                    "timestamp": alert.at,
                    "component": alert.service,
                    "class": alert.kind,
                },
            }
        case _:
            return msgspec.to_builtins(alert)


def target_from(settings: RegistrySettings) -> AlertTarget:
    """Read the target from the settings."""
    return AlertTarget(settings.alert_url, settings.alert_format, settings.alert_key)
