"""Watches as they leave the house: the events of one service, or of all groups of a type under one cursor."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from functools import lru_cache
from time import time
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from headgate.kit.http import event
from headgate.kit.ids import thing_name
from headgate.kit.problems import InvalidRequest
from headgate.registry import metrics
from headgate.registry.instances import Registry
from headgate.registry.model import Instance
from headgate.registry.views import read_put, read_removal
from headgate.store import Thing
from headgate.store.feed import Bookmark, Change, Compacted, Notice, Reset, Snapshot

NEW_GROUPS_SECONDS: Final = 1.0
QUEUED: Final = 64
MOST_GROUPS: Final = 5000

_Position = Annotated[int, Meta(ge=0, lt=2**53)]
Found = tuple[str, Notice[Instance]]


class Put(msgspec.Struct, frozen=True, rename="camel"):
    """An instance is new, or changed."""

    revision: int
    instance: Instance


class Removed(msgspec.Struct, frozen=True, rename="camel"):
    """An instance has gone, and why: removed, expired, evicted or unhealthy."""

    revision: int
    instance_id: str
    group: str
    reason: str


class Mark(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A position: of a bookmark, of a compaction, or of a new epoch."""

    revision: int
    epoch: str | None = None
    group: str | None = None


def watch_service(registry: Registry, thing: Thing, after: int | None) -> AsyncGenerator[bytes, None]:
    """Give the events of one service."""
    return registry.feed.broadcast(thing, after, _write)


async def watch_type(
    registry: Registry, namespace: str, type_: str, positions: dict[str, int] | None
) -> AsyncGenerator[bytes, None]:
    """Give the events of all groups of a type, those that appear later too; ids are cursors over all of them."""
    at = dict(positions or {})
    metrics.WATCHERS.inc()
    try:
        async with aclosing(follow_type(registry, namespace, type_, positions)) as found:
            async for group, notice in found:
                if not isinstance(notice, Compacted | Reset):  # the state that follows has not been given yet
                    at[group] = notice.revision
                # Within a snapshot nobody may resume: only the bookmark after it carries the cursor.
                yield _render(notice, group, write_cursor(at))
    finally:
        metrics.WATCHERS.dec()


async def follow_type(
    registry: Registry, namespace: str, type_: str, positions: dict[str, int] | None
) -> AsyncGenerator[Found, None]:
    """Follow every group of a type; one that was not there at the start is followed from its first change."""
    queue: asyncio.Queue[Found | Exception] = asyncio.Queue(QUEUED)
    following: dict[str, asyncio.Task[None]] = {}

    async def follow(group: str, thing: Thing, after: int | None) -> None:
        async with aclosing(registry.feed.watch(thing, after)) as notices:
            async for notice in notices:
                await queue.put((group, notice))

    async def look_for_groups() -> None:
        first = positions is None
        while True:
            groups = await registry.recent_groups.of(namespace, type_)
            for group in positions or {}:
                groups.setdefault(group, registry.service(namespace, type_, group))
            for group, thing in groups.items():
                if group not in following:
                    after = None if first else (positions or {}).get(group, 0)
                    following[group] = asyncio.ensure_future(told(follow(group, thing, after)))
            if first and not groups:
                await queue.put(("", Bookmark(0)))
            first = False
            await asyncio.sleep(NEW_GROUPS_SECONDS)

    async def told(work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001  # a broken reader ends the watch: it is raised below
            await queue.put(error)

    looking = asyncio.ensure_future(told(look_for_groups()))
    try:
        while True:
            found = await queue.get()
            if isinstance(found, Exception):
                raise found  # the client resumes from its cursor
            yield found
    finally:
        tasks = [looking, *following.values()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def write_cursor(positions: dict[str, int]) -> str:
    """Write the positions in several groups as one opaque word."""
    known = {group: revision for group, revision in sorted(positions.items()) if group}
    return base64.urlsafe_b64encode(msgspec.json.encode(known)).decode().rstrip("=")


def read_cursor(text: str) -> dict[str, int]:
    """Read a cursor back."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        positions = msgspec.json.decode(raw, type=dict[str, _Position])
        if len(positions) > MOST_GROUPS:
            raise ValueError("too many groups")
        return {thing_name(group, "group"): revision for group, revision in positions.items()}
    except (InvalidRequest, binascii.Error, msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise InvalidRequest("This is not a position of ours.", field="revision") from error


def _write(thing: Thing, notice: Notice[Instance]) -> bytes:
    group = thing.name.partition("/")[2]
    if isinstance(notice, Change):
        return _rendered(notice, group)
    return _render(notice, group, str(notice.revision))


@lru_cache(maxsize=4096)
def _rendered(change: Change, group: str) -> bytes:
    """Write a change once for all who watch, however late."""
    metrics.PUSH_SECONDS.observe(max(0.0, time() - change.revision / 1_000_000))
    return _render(change, group, str(change.revision))


def _render(notice: Notice[Instance], group: str, id_: str) -> bytes:
    revision = notice.revision
    match notice:
        case Change(kind="put"):
            return event("put", Put(revision, read_put(notice)), id_)
        case Change():
            reason, _ = read_removal(notice)
            return event("removed", Removed(revision, notice.member, group, reason), id_)
        case Snapshot():
            return b"".join(event("put", Put(revision, item)) for item in notice.items)
        case Bookmark():
            return event("bookmark", Mark(revision, group=group or None), id_)
        case Compacted():
            return event("compacted", Mark(revision, group=group))
        case Reset():
            return event("reset", Mark(revision, epoch=notice.epoch, group=group))
