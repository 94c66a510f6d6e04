"""Live values: typed values of config that follow their key, and keep the last known value in an outage."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from headgate.config.model import MASK, Value
from headgate.kit.logs import get_logger
from headgate.kit.problems import Forbidden, HeadgateError
from headgate.sdk.listeners import Listener, ListenerTask

log = get_logger()
T = TypeVar("T")


class Changed(msgspec.Struct, frozen=True):
    """A change of a live value: the key, its new version, and the value (the one before, if the key was removed)."""

    key: str
    version: int
    value: Any
    removed: bool = False


class Live(Generic[T]):
    """One value that follows its key; its fields can be read straight from it.

    `stale` says that there may be a newer version: config cannot be reached, or the store lost its history.
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
        self._listeners: list[ListenerTask[Changed]] = []
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
        made = ListenerTask(listener, lambda changed: changed.key)
        self._listeners.append(made)
        if self.known:
            made.put(Changed(self.key, self.version, self._value, self.removed))

    async def unlisten(self, listener: Listener[Changed]) -> None:
        """Stop calling one listener."""
        for made in [each for each in self._listeners if each.listener == listener][:1]:
            self._listeners.remove(made)
            await made.stop()

    def is_past(self, value: Value, revision: int) -> bool:
        """Tell whether a publish is older than the known version: a watch may lag behind a read."""
        return value.version < self.version and revision < self._at_us

    async def close(self) -> None:
        """Stop following the key and calling listeners."""
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close()
        for made in self._listeners:
            await made.stop()
        self._listeners.clear()

    def take(self, value: Value) -> bool:
        """Take a version and give True; one that does not fit the type leaves the value as it is and gives False."""
        if value.kind != "put":
            known = self.removed
            self.removed, self.version, self.stale = True, value.version, False
            if not known:
                self._notify()
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
            self._notify()
        return True

    def _converted(self, value: Value) -> T:
        if value.secret and value.content == MASK:
            raise Forbidden("This token may not see the secret.")
        if self.kind is str and value.content_type == "text":
            return msgspec.convert(value.content, self.kind)
        return msgspec.convert(value.parsed(), self.kind, strict=value.content_type != "properties")

    def _notify(self) -> None:
        for made in tuple(self._listeners):
            made.put(Changed(self.key, self.version, self._value, self.removed))
