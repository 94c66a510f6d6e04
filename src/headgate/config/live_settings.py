"""Headgate's own settings that can change while it runs, with their types; they are published like any other value.

They are keys of the namespace `headgate`. A value of the wrong type is refused when it is published, and a process that
cannot read a value keeps the one it has.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from headgate.config.model import Update, Value
from headgate.config.wire import Definition
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError
from headgate.store.watch.feed import Reset, Snapshot

NAMESPACE: Final = "headgate"
RETRY_SECONDS: Final = 1.0

log = get_logger()


class LogLevel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much is logged: debug, info, warning or error; empty leaves it to each process's own setting."""

    level: Literal["", "debug", "info", "warning", "error"] = ""


class EdgeLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Requests a second that one client address may make, by class of route (entry, status, stream, gate, unauthorized);
    what is absent stays as configured."""

    CLASSES: ClassVar[tuple[str, ...]] = ("entry", "status", "stream", "gate", "unauthorized")
    per_second: dict[str, Annotated[float, Meta(gt=0, le=1_000_000)]] = {}

    def __post_init__(self) -> None:
        for name in self.per_second:
            if name not in self.CLASSES:
                raise ValueError(f"{name} is no class of routes; there are {', '.join(self.CLASSES)}")


class LiveAlertTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where alerts go: a webhook's URL, its format (generic, slack, pagerduty) and its key; empty leaves it as configured."""

    SECRET: ClassVar[bool] = True  # whoever has the address or the key can send alerts in our name
    url: str = ""
    format: Literal["generic", "slack", "pagerduty"] = "generic"
    key: str = ""

    def __post_init__(self) -> None:
        if self.url and not _is_web_address(self.url):
            raise ValueError("the url must be http:// or https:// with a host")


def _is_web_address(url: str) -> bool:
    try:
        split = urlsplit(url)
        return (
            split.scheme in {"http", "https"}
            and bool(split.hostname)
            and split.port != 0
            and re.search(r"\s", url) is None
        )
    except ValueError:
        return False


DEFINITIONS: Final[Mapping[str, type[Any]]] = {
    "log/level": LogLevel,
    "edge/limits": EdgeLimits,
    "alerts/target": LiveAlertTarget,
}


def definitions_of(kinds: Mapping[str, type[Any]] | None) -> list[Definition]:
    """List the settings with their defaults."""
    return [
        Definition(key, " ".join((kind.__doc__ or "").split()), msgspec.json.encode(kind()).decode())
        for key, kind in sorted((kinds or {}).items())
    ]


Follow = Callable[[], AsyncIterator[Any]]
Apply = Callable[[Any], None]


class LiveSettings:
    """Applies published live settings to this process; `apply` has a function for each key that it uses."""

    def __init__(self, follow: Follow, apply: Mapping[str, Apply]) -> None:
        self._follow = follow
        self._apply = apply

    async def run(self) -> None:
        """Follow the namespace for the life of the process."""
        lost = False
        while True:
            try:
                steps = self._follow()
                async with aclosing(steps):  # type: ignore[type-var]
                    async for step in steps:
                        if isinstance(step, Reset):
                            lost = True
                        elif isinstance(step, Snapshot):
                            self._apply_all(step.items, lost=lost)
                            lost = False
                        elif isinstance(step, Update):
                            for value in step.values:
                                self._apply_value(value)
            except HeadgateError as error:
                log.debug("live settings not followed", error=str(error))
            await asyncio.sleep(RETRY_SECONDS * random.uniform(0.5, 1.5))

    def _apply_all(self, values: list[Value], *, lost: bool) -> None:
        found = {value.key: value for value in values}
        for key in self._apply:
            if key in found or not lost:  # a key that is missing after a loss of data keeps its last value
                self._apply_value(found.get(key) or Value(key, 0, kind="removed"))

    def _apply_value(self, value: Value) -> None:
        apply = self._apply.get(value.key)
        if apply is None:
            return
        kind = DEFINITIONS[value.key]
        try:
            parsed = msgspec.convert(value.parsed(), kind) if value.kind == "put" else kind()
        except (HeadgateError, msgspec.ValidationError) as error:
            log.warning("live setting not usable", key=value.key, version=value.version, error=str(error))
            return
        apply(parsed)
        if value.version:
            log.info("live setting in force", key=value.key, version=value.version)
