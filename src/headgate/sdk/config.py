"""`hg.config`: read, publish, roll back, watch, and live values that survive outages."""

from __future__ import annotations

import asyncio
import getpass
import os
import random
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final, TypeVar

from headgate.config.config import Config as StoreConfig
from headgate.config.live_settings import DEFINITIONS, NAMESPACE
from headgate.config.model import ContentType, Draft, Published, Update, Value
from headgate.config.problems import UnknownKey
from headgate.kit.logs import get_logger
from headgate.kit.problems import Closed, HeadgateError, InvalidRequest, StoreUnavailable
from headgate.kit.tasks import Tasks, cancel
from headgate.sdk.config_modes import (
    ConfigBackend,
    ConfigMarked,
    Happening,
    HttpConfigBackend,
    Present,
    StoreConfigBackend,
)
from headgate.sdk.http import Http
from headgate.sdk.live import Changed, Live
from headgate.sdk.snapshot import Snapshots, directory_for
from headgate.store import Store

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0
SAVE_SECONDS: Final = 5.0

log = get_logger()
T = TypeVar("T")

__all__ = [
    "Changed",
    "Config",
    "ConfigMarked",
    "ContentType",
    "Draft",
    "Live",
    "Present",
    "Published",
    "Update",
    "Value",
]


class Config:
    """Config as a client sees it."""

    def __init__(
        self, mode: ConfigBackend, snapshots: Snapshots[Value] | None = None, *, snapshot_secrets: bool = False
    ) -> None:
        self._mode = mode
        self._snapshots = snapshots
        self._snapshot_secrets = snapshot_secrets
        self._tasks = Tasks()
        self._lives: dict[str, dict[str, list[Live[object]]]] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._stopped = False

    async def get(self, namespace: str, key: str, *, version: int | None = None) -> Value:
        """Give a key's newest version, or one version; raises UnknownKey or UnknownVersion."""
        return await self._mode.get(namespace, key, version)

    async def list(self, namespace: str) -> Sequence[Value]:
        """Give all values of a namespace."""
        return (await self._mode.read(namespace)).values

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
        return (await self._mode.publish(namespace, [draft], reason))[key]

    async def delete(self, namespace: str, key: str, *, version: int | None = None, reason: str = "") -> Published:
        """Delete a key; its history stays."""
        expected = version if version is not None else (await self._mode.get(namespace, key, None)).version
        return (await self._mode.publish(namespace, [Draft(key, None, expected=expected)], reason))[key]

    async def publish(self, namespace: str, drafts: Sequence[Draft], *, reason: str = "") -> dict[str, Published]:
        """Publish several keys, all or none."""
        return await self._mode.publish(namespace, drafts, reason)

    async def history(self, namespace: str, key: str, *, before: int = 0, limit: int = 50) -> Sequence[Value]:
        """Give a key's versions, newest first."""
        return await self._mode.history(namespace, key, before, limit)

    async def roll_back(self, namespace: str, key: str, version: int, *, reason: str = "") -> Published:
        """Publish an old version's content as a new version."""
        return await self._mode.roll_back(namespace, key, version, reason)

    def watch(self, namespace: str, *, position: int | None = None) -> AsyncGenerator[Happening, None]:
        """Follow a namespace by hand: the present values first, or what changed after a position."""
        return self._mode.watch(namespace, position)

    async def live(self, namespace: str, key: str, kind: type[T], *, default: T | None = None) -> Live[T]:
        """Give a typed value that stays current; in an outage it is what was last known, marked stale."""
        made: Live[T] = Live(namespace, key, kind)
        lives = self._lives.setdefault(namespace, {}).setdefault(key, [])
        lives.append(made)  # type: ignore[arg-type]  # before it is read: what is published meanwhile must not be missed
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
            value = await self._mode.get(namespace, key, None)
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
                return  # the watch was quicker
            if not live.take(value):
                raise ValueError(f"{key} does not fit {live.kind.__name__}: {live.error}")
            await self._save(namespace, value)

    async def stop(self) -> None:
        """End all that runs for this part."""
        self._stopped = True
        await cancel(*self._following.values())
        self._following.clear()
        await self._tasks.close(SAVE_SECONDS)
        for live in self._all():
            await live.close()
        self._lives.clear()

    async def _keep_following(self, namespace: str) -> None:
        position: int | None = None
        pause = FIRST_PAUSE
        while True:
            try:
                async with aclosing(self._mode.watch(namespace, position)) as happenings:
                    async for happening in happenings:
                        pause = FIRST_PAUSE
                        match happening:
                            case Present():
                                await self._take_all(namespace, happening)
                            case Update():
                                for value in happening.values:
                                    await self._take(namespace, value, happening.revision)
                            case ConfigMarked():
                                position = happening.position
            except Closed:
                return
            except HeadgateError as error:
                refused = error.status < 500 and not isinstance(error, StoreUnavailable)
                (log.warning if refused else log.debug)("config watch broke", namespace=namespace, error=str(error))
            except Exception as error:  # noqa: BLE001  # whatever a stream may bring, the watch goes on
                log.warning("a config watch failed", namespace=namespace, error=repr(error))
            for lives in self._lives.get(namespace, {}).values():
                for live in lives:
                    live.stale = True
            position = None  # the present values say all that was missed
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _take_all(self, namespace: str, present: Present) -> None:
        found = {value.key: value for value in present.values}
        for key, lives in list(self._lives.get(namespace, {}).items()):  # others may be made while we wait
            value = found.get(key) or await self._removal(namespace, key)
            for live in tuple(lives):
                if value is not None and value.version >= live.version:
                    live.take(value)
                elif value is None and live.version == 0:
                    live.stale = False  # a default, and nothing published
                else:
                    # The store knows less than we do: it has lost history. What we know stands, and says so.
                    live.stale = True
                    log.warning("config history is behind what is known here", namespace=namespace, key=key)
            if value is not None and value.kind == "put" and any(live.version == value.version for live in lives):
                await self._save(namespace, value)

    async def _removal(self, namespace: str, key: str) -> Value | None:
        """Give the version that removed a key; None if nobody did: then it was never there, or its history is lost."""
        try:
            newest = await self._mode.history(namespace, key, 0, 1)
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
                write = asyncio.to_thread(self._snapshots.forget, name)  # it may have been open before
            else:
                write = asyncio.to_thread(self._snapshots.write, name, value)
            await asyncio.shield(self._tasks.start(write))  # `stop` may end who waits, but what was taken is kept

    def _all(self) -> Sequence[Live[object]]:
        return [live for keys in self._lives.values() for lives in keys.values() for live in lives]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return f"user-{os.getuid()}"


def _content_type(given: ContentType | str | None) -> ContentType | None:
    try:
        return None if given is None else ContentType(given)
    except ValueError as error:
        known = ", ".join(ContentType)
        raise InvalidRequest(f"content_type must be one of {known}.", field="contentType") from error


def config_of(
    backend: Http | Store, *, url: str, snapshot_dir: str | Path | None = None, snapshot_secrets: bool = False
) -> Config:
    """Make the config part of a client."""
    mode: ConfigBackend
    if isinstance(backend, Http):
        mode, place = HttpConfigBackend(backend), url
    else:
        author = f"{_user()}@{socket.gethostname()}"[:64]
        mode = StoreConfigBackend(StoreConfig(backend, definitions={NAMESPACE: DEFINITIONS}), author)
        place = f"{','.join(map(str, backend.address.nodes))} {backend.prefix}"
    snapshots = Snapshots(directory_for(snapshot_dir, place, "config"), Value)
    return Config(mode, snapshots, snapshot_secrets=snapshot_secrets)
