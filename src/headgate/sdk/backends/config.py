"""Backends of `hg.config`, on the store or behind a gateway; both give the same values and the same events."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol
from urllib.parse import quote

import msgspec

from headgate.config.config import Config as StoreConfig
from headgate.config.config import NamespaceState
from headgate.config.live_settings import DEFINITIONS, NAMESPACE
from headgate.config.model import Draft, Published, Update, Value, check_key
from headgate.config.watch import follow
from headgate.config.wire import ConfigBatchAnswer, ValueEvent, Values, Versions
from headgate.kit.ids import thing_name
from headgate.sdk.http import Http, problem_in
from headgate.store import Store
from headgate.store.watch.feed import Bookmark, Reset, Snapshot


class Present(msgspec.Struct, frozen=True):
    """All values of a namespace; `lost` says that history may have been lost before."""

    values: list[Value]
    revision: int
    lost: bool


class ConfigMarked(msgspec.Struct, frozen=True):
    """A position from which a watch can be resumed."""

    position: int


ConfigEvent = Present | Update | ConfigMarked


class ConfigBackend(Protocol):
    """The calls that `Config` is built on."""

    async def get(self, namespace: str, key: str, version: int | None) -> Value: ...

    async def read(self, namespace: str) -> NamespaceState: ...

    async def publish(self, namespace: str, drafts: Sequence[Draft], reason: str) -> dict[str, Published]: ...

    async def history(self, namespace: str, key: str, before: int, limit: int) -> list[Value]: ...

    async def roll_back(self, namespace: str, key: str, version: int, reason: str) -> Published: ...

    def watch(self, namespace: str, position: int | None) -> AsyncGenerator[ConfigEvent, None]: ...


class StoreConfigBackend:
    """Config on the store; the author of changes is the user that runs this process."""

    def __init__(self, store: Store) -> None:
        self._config = StoreConfig(store, definitions={NAMESPACE: DEFINITIONS})
        self._author = f"{_user()}@{socket.gethostname()}"[:64]

    async def get(self, namespace: str, key: str, version: int | None) -> Value:
        if version is not None:
            return await self._config.version(namespace, key, version)
        return await self._config.get(namespace, key)

    async def read(self, namespace: str) -> NamespaceState:
        return await self._config.read(namespace)

    async def publish(self, namespace: str, drafts: Sequence[Draft], reason: str) -> dict[str, Published]:
        return await self._config.publish(namespace, drafts, author=self._author, reason=reason)

    async def history(self, namespace: str, key: str, before: int, limit: int) -> list[Value]:
        return await self._config.history(namespace, key, before=before, most=limit)

    async def roll_back(self, namespace: str, key: str, version: int, reason: str) -> Published:
        return await self._config.roll_back(namespace, key, version, author=self._author, reason=reason)

    async def watch(self, namespace: str, position: int | None) -> AsyncGenerator[ConfigEvent, None]:
        lost = False
        async with aclosing(follow(self._config, namespace, position)) as steps:
            async for step in steps:
                match step:
                    case Snapshot():
                        yield Present(step.items, step.revision, lost)
                        lost = False
                        yield ConfigMarked(step.revision)
                    case Update():
                        yield step
                        yield ConfigMarked(step.revision)
                    case Bookmark():
                        yield ConfigMarked(step.revision)
                    case Reset():
                        lost = True
                    case _:
                        pass


class HttpConfigBackend:
    """Config behind a gateway; the author of changes is the name of the token."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def get(self, namespace: str, key: str, version: int | None) -> Value:
        return await self._http.request("GET", _path(namespace, key), query={"version": version}, answer=Value)

    async def read(self, namespace: str) -> NamespaceState:
        found = await self._http.request("GET", _path(namespace), answer=Values)
        return NamespaceState(found.values, found.revision, found.epoch)

    async def publish(self, namespace: str, drafts: Sequence[Draft], reason: str) -> dict[str, Published]:
        values = [
            {
                "key": draft.key,
                "content": draft.content,
                "contentType": draft.content_type,
                "secret": draft.secret,
                "version": draft.expected,
            }
            for draft in drafts
        ]
        body = {"values": values, "reason": reason}
        answer = await self._http.request("POST", _path(namespace), body=body, answer=ConfigBatchAnswer)
        return {key: Published(version, answer.revision) for key, version in answer.versions.items()}

    async def history(self, namespace: str, key: str, before: int, limit: int) -> list[Value]:
        query = {"before": before or None, "limit": limit}
        return (
            await self._http.request("GET", f"{_path(namespace, key)}/history", query=query, answer=Versions)
        ).versions

    async def roll_back(self, namespace: str, key: str, version: int, reason: str) -> Published:
        body = {"version": version, "reason": reason}
        return await self._http.request("POST", f"{_path(namespace, key)}/rollback", body=body, answer=Published)

    async def watch(self, namespace: str, position: int | None) -> AsyncGenerator[ConfigEvent, None]:
        present: list[Value] | None = [] if position is None else None
        lost = False
        batch: list[Value] = []
        async with self._http.events(f"{_path(namespace)}/watch", query={"revision": position}) as events:
            async for event in events:
                match event.event:
                    case "problem":
                        raise problem_in(event)
                    case "put" | "removed":
                        change = msgspec.json.decode(event.data, type=ValueEvent)
                        value = change.value or Value(change.key, change.version, kind="removed")
                        if present is not None:
                            present.append(value)
                            continue
                        batch.append(value)
                        if event.id == str(change.revision):  # the last of its publish
                            yield Update(change.revision, batch)
                            batch = []
                            yield ConfigMarked(change.revision)
                    case "compacted" | "reset":
                        present, lost = [], event.event == "reset"
                    case "bookmark":
                        if present is not None:
                            yield Present(present, int(event.id), lost)
                            present, lost = None, False
                        yield ConfigMarked(int(event.id))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return f"user-{os.getuid()}"


def _path(namespace: str, key: str | None = None) -> str:
    base = f"/cfg/v1/{quote(thing_name(namespace, 'namespace'), safe='')}"
    return base if key is None else f"{base}/{quote(check_key(key), safe='/')}"
