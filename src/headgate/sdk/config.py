"""`hg.config`: read, publish, roll back, watch, and live values that survive outages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final, TypeVar

from headgate.config.model import ContentType, Draft, Published, Update, Value
from headgate.config.problems import UnknownKey
from headgate.kit.logs import get_logger
from headgate.kit.problems import Closed, HeadgateError, InvalidRequest, StoreUnavailable
from headgate.kit.tasks import Tasks, cancel
from headgate.sdk.backends.config import ConfigBackend, ConfigEvent, ConfigMarked, Present
from headgate.sdk.following import follow
from headgate.sdk.live import Live
from headgate.sdk.snapshot import Snapshots

log = get_logger()
SAVE_SECONDS: Final = 5.0

T = TypeVar("T")


class Config:
    """Config for one client."""

    def __init__(
        self, backend: ConfigBackend, snapshots: Snapshots[Value] | None = None, *, snapshot_secrets: bool = False
    ) -> None:
        self._backend = backend
        self._snapshots = snapshots
        self._snapshot_secrets = snapshot_secrets
        self._tasks = Tasks()
        self._lives: dict[str, dict[str, list[Live[object]]]] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._stopped = False

    async def get(self, namespace: str, key: str, *, version: int | None = None) -> Value:
        """Give a key's newest version, or one version; raises UnknownKey or UnknownVersion."""
        return await self._backend.get(namespace, key, version)

    async def list(self, namespace: str) -> Sequence[Value]:
        """Give all values of a namespace."""
        return (await self._backend.read(namespace)).values

    async def set(
        self,
        namespace: str,
        key: str,
        content: str,
        *,
        content_type: ContentType | str | None = None,
        version: int | None = None,
        secret: bool | None = None,
        reason: str = "",
    ) -> Published:
        """Publish a new version; `version` is the one it replaces (0: there must be none). Raises VersionConflict.

        Its content type stays what it was, or is text, unless given.
        """
        draft = Draft(key, content, _content_type(content_type), version, secret)
        return (await self._backend.publish(namespace, [draft], reason))[key]

    async def delete(self, namespace: str, key: str, *, version: int | None = None, reason: str = "") -> Published:
        """Delete a key; its history stays."""
        expected = version if version is not None else (await self._backend.get(namespace, key, None)).version
        return (await self._backend.publish(namespace, [Draft(key, None, expected=expected)], reason))[key]

    async def publish(self, namespace: str, drafts: Sequence[Draft], *, reason: str = "") -> dict[str, Published]:
        """Publish several keys, all or none."""
        return await self._backend.publish(namespace, drafts, reason)

    async def history(self, namespace: str, key: str, *, before: int = 0, limit: int = 50) -> Sequence[Value]:
        """Give a key's versions, newest first."""
        return await self._backend.history(namespace, key, before, limit)

    async def roll_back(self, namespace: str, key: str, version: int, *, reason: str = "") -> Published:
        """Publish an old version's content as a new version."""
        return await self._backend.roll_back(namespace, key, version, reason)

    def watch(self, namespace: str, *, position: int | None = None) -> AsyncGenerator[ConfigEvent, None]:
        """Give raw events: the present values and then publishes, or the publishes after a position that `ConfigMarked` gave."""
        return self._backend.watch(namespace, position)

    async def live(self, namespace: str, key: str, kind: type[T], *, default: T | None = None) -> Live[T]:
        """Give a typed value that stays current; in an outage it is the last known one, marked stale."""
        made: Live[T] = Live(namespace, key, kind)
        lives = self._lives.setdefault(namespace, {}).setdefault(key, [])
        lives.append(made)  # type: ignore[arg-type]  # before the read, so that no publish in between is missed
        made.on_close = lambda: lives.remove(made)  # type: ignore[arg-type]
        try:
            await self._begin(made, default)
        except BaseException:
            await made.close()
            raise
        if self._stopped:
            await made.close()
            raise Closed
        if namespace not in self._following:
            self._following[namespace] = self._tasks.start(self._keep_following(namespace))
        return made

    async def _begin(self, live: Live[T], default: T | None) -> None:
        namespace, key = live.namespace, live.key
        try:
            value = await self._backend.get(namespace, key, None)
        except StoreUnavailable:
            saved = await self._load(namespace, key)
            if saved is None or not live.take(saved):
                raise
            live.stale = True
        except UnknownKey:
            if default is None:
                raise
            if not live.known:
                live._value, live.stale = default, False
        else:
            if value.version < live.version:
                return  # the watch has delivered a newer version
            if not live.take(value):
                raise ValueError(f"{key} does not fit {live.kind.__name__}: {live.error}")
            await self._save(namespace, value)

    async def stop(self) -> None:
        """End all background tasks and close all live values."""
        self._stopped = True
        await cancel(*self._following.values())
        self._following.clear()
        await self._tasks.close(SAVE_SECONDS)
        for live in self._all():
            await live.close()
        self._lives.clear()

    async def _keep_following(self, namespace: str) -> None:
        position: int | None = None

        async def take(event: ConfigEvent) -> bool:
            nonlocal position
            match event:
                case Present():
                    await self._take_all(namespace, event)
                case Update():
                    for value in event.values:
                        await self._take(namespace, value, event.revision)
                case ConfigMarked():
                    position = event.position
            return True

        def on_break(refusal: HeadgateError | None) -> None:
            nonlocal position
            for lives in self._lives.get(namespace, {}).values():
                for live in lives:
                    live.stale = True
            position = None  # the next watch begins with the present values, which include all missed publishes

        await follow(lambda: self._backend.watch(namespace, position), take, on_break, namespace=namespace)

    async def _take_all(self, namespace: str, present: Present) -> None:
        found = {value.key: value for value in present.values}
        for key, lives in list(self._lives.get(namespace, {}).items()):  # more may be added during an await
            value = found.get(key) or await self._removal(namespace, key)
            for live in tuple(lives):
                if value is not None and value.version >= live.version:
                    live.take(value)
                elif value is None and live.version == 0:
                    live.stale = False  # it has its default, and nothing is published
                else:
                    # The store has lost history that is known here: the value stays, marked stale.
                    live.stale = True
                    log.warning("config history is behind what is known here", namespace=namespace, key=key)
            if value is not None and value.kind == "put" and any(live.version == value.version for live in lives):
                await self._save(namespace, value)

    async def _removal(self, namespace: str, key: str) -> Value | None:
        """Give the version that removed a key; None if it never existed or its history is lost."""
        try:
            newest = await self._backend.history(namespace, key, 0, 1)
        except UnknownKey:
            return None
        return newest[0] if newest and newest[0].kind == "removed" else None

    async def _take(self, namespace: str, value: Value, revision: int) -> None:
        lives = self._lives.get(namespace, {}).get(value.key, [])
        taken = [live.take(value) for live in lives if not live.is_past(value, revision)]
        if any(taken) and value.kind == "put":
            await self._save(namespace, value)

    async def _load(self, namespace: str, key: str) -> Value | None:
        if self._snapshots is None:
            return None
        return await asyncio.to_thread(self._snapshots.read, f"{namespace}@{key}")

    async def _save(self, namespace: str, value: Value) -> None:
        if self._snapshots is not None:
            name = f"{namespace}@{value.key}"
            if value.secret and not self._snapshot_secrets:
                write = asyncio.to_thread(
                    self._snapshots.forget, name
                )  # a snapshot of it from before it was secret may exist
            else:
                write = asyncio.to_thread(self._snapshots.write, name, value)
            await asyncio.shield(self._tasks.start(write))  # `stop` may cancel the caller, but the write goes on

    def _all(self) -> Sequence[Live[object]]:
        return [live for keys in self._lives.values() for lives in keys.values() for live in lives]


def _content_type(given: ContentType | str | None) -> ContentType | None:
    try:
        return None if given is None else ContentType(given)
    except ValueError as error:
        known = ", ".join(ContentType)
        raise InvalidRequest(f"content_type must be one of {known}.", field="contentType") from error
