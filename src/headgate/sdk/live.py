"""Live values: always the newest, typed, kept on disk for outages, and never emptied by one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from headgate.config.model import MASK, Value
from headgate.kit.logs import get_logger
from headgate.kit.problems import Forbidden, HeadgateError
from headgate.sdk.listeners import Listener, Listening

log = get_logger()
T = TypeVar("T")


class Changed(msgspec.Struct, frozen=True):
    """What a listener is told: the key, its new version, and the value (as before, if the key was removed)."""

    key: str
    version: int
    value: Any
    removed: bool = False


class Live(Generic[T]):
    """One value that follows its key; its fields can be read straight from it.

    `stale` says that the newest version may be another: nobody could be asked, or the store lost its history.
    """

    def __init__(self, namespace: str, key: str, kind: type[T]) -> None:
        self.namespace = namespace
        self.key = key
        self.version = 0
        self.stale = True
        self.removed = False
        self.error: str | None = None
        self.kind = kind
        self._value: T | None = None
        self._listening: list[Listening[Changed]] = []
        self._at_us = 0
        self.on_close: Callable[[], None] | None = None

    @property
    def value(self) -> T:
        """Give the newest value that fits the type."""
        if self._value is None:
            raise LookupError(f"{self.key} has no value")
        return self._value

    @property
    def known(self) -> bool:
        """Tell whether there is a value at all."""
        return self._value is not None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.value, name)

    def listen(self, listener: Listener[Changed]) -> None:
        """Call a listener with the present value at once, and then with every change."""
        made = Listening(listener, lambda changed: changed.key)
        self._listening.append(made)
        if self.known:
            made.tell(Changed(self.key, self.version, self._value, self.removed))

    async def unlisten(self, listener: Listener[Changed]) -> None:
        """Stop calling one listener."""
        for made in [each for each in self._listening if each.listener == listener][:1]:
            self._listening.remove(made)
            await made.stop()

    def is_past(self, value: Value, revision: int) -> bool:
        """Tell whether a publish is older than what is known: a watch may lag behind a read."""
        return value.version < self.version and revision < self._at_us

    async def close(self) -> None:
        """Follow the key and call anybody no more."""
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close()
        for made in self._listening:
            await made.stop()
        self._listening.clear()

    def take(self, value: Value) -> bool:
        """Take a version; one that does not fit the type leaves the value as it is. Tell whether it was taken."""
        if value.kind != "put":
            told = self.removed
            self.removed, self.version, self.stale = True, value.version, False
            if not told:
                self._tell()
            return True
        try:
            made = self._converted(value)
        except (HeadgateError, msgspec.ValidationError) as error:
            self.error = f"version {value.version}: {error}"
            log.warning("live value kept, its new version does not fit", key=self.key, version=value.version)
            return False
        changed = value.version != self.version or self.removed or not self.known
        self._value, self.version, self.removed, self.stale, self.error = made, value.version, False, False, None
        if value.updated_at:
            self._at_us = int(datetime.fromisoformat(value.updated_at).timestamp() * 1_000_000)
        if changed:
            self._tell()
        return True

    def _converted(self, value: Value) -> T:
        if value.secret and value.content == MASK:
            raise Forbidden("This token may not see the secret.")
        if self.kind is str and value.content_type == "text":
            return msgspec.convert(value.content, self.kind)
        return msgspec.convert(value.parsed(), self.kind, strict=value.content_type != "properties")

    def _tell(self) -> None:
        for made in tuple(self._listening):
            made.tell(Changed(self.key, self.version, self._value, self.removed))
