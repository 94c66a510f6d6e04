"""Watches of a namespace as they leave the house: the present values, then every publish; late-comers get the latest."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import lru_cache

import msgspec

from headgate.config import metrics
from headgate.config.model import Update, Value
from headgate.config.values import Config, read_update
from headgate.kit.http import event
from headgate.store.feed import Bookmark, Change, Compacted, Notice, Reset, Snapshot


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """A position: of a bookmark, of a compaction, or of a new epoch."""

    revision: int
    epoch: str | None = None


class Told(msgspec.Struct, frozen=True, rename="camel"):
    """A key's new version, or its end."""

    revision: int
    key: str
    version: int
    value: Value | None = None


Step = Snapshot[Value] | Update | Bookmark | Compacted | Reset


async def follow(config: Config, namespace: str, after: int | None) -> AsyncGenerator[Step, None]:
    """Follow a namespace; whoever resumes gets each changed key's latest once, then every publish."""
    missed: list[Update] | None = None if after is None else []
    metrics.WATCHERS.inc()
    try:
        async with aclosing(config.feed.watch(config.space(namespace), after)) as notices:
            async for notice in notices:
                if isinstance(notice, Change):
                    update = _read(notice)
                    if missed is None:
                        yield update
                    else:
                        missed.append(update)
                    continue
                metrics.WATCH_LAG.set(config.feed.silent_seconds)
                if missed is not None:
                    for update in latest(missed):
                        yield update
                    missed = None
                yield _plain(notice)
    finally:
        metrics.WATCHERS.dec()


def latest(updates: Sequence[Update]) -> list[Update]:
    """Leave of each key only its newest version, in order."""
    newest = {value.key: update.revision for update in updates for value in update.values}
    kept = []
    for update in updates:
        values = [value for value in update.values if newest[value.key] == update.revision]
        if values:
            kept.append(Update(update.revision, values))
    return kept


async def events(
    config: Config, namespace: str, after: int | None, *, clear: bool, keys: frozenset[str] | None = None
) -> AsyncGenerator[bytes, None]:
    """Give a namespace's events; `clear` shows secret contents, `keys` leaves out all others."""
    async with aclosing(follow(config, namespace, after)) as steps:
        async for step in steps:
            match step:
                case Update():
                    if keys is None:
                        yield _rendered(_Hashed(step), clear)
                    elif chosen := [value for value in step.values if value.key in keys]:
                        yield _render(Update(step.revision, chosen), clear)
                case Snapshot():
                    values = [value for value in step.items if keys is None or value.key in keys]
                    if values:
                        yield b"".join(event("put", _told(step.revision, value, clear)) for value in values)
                case Bookmark():
                    yield event("bookmark", Mark(step.revision), step.revision)
                case Compacted():
                    yield event("compacted", Mark(step.revision))
                case Reset():
                    yield event("reset", Mark(step.revision, step.epoch))


class _Hashed:
    """An update as a key of a cache: by its place in history, not by its contents."""

    __slots__ = ("update",)

    def __init__(self, update: Update) -> None:
        self.update = update

    def __hash__(self) -> int:
        return self.update.revision

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashed) and other.update is self.update


@lru_cache(maxsize=1024)
def _read(change: Change) -> Update:
    """Read a publish once for all who watch."""
    return read_update(change)


@lru_cache(maxsize=1024)
def _rendered(hashed: _Hashed, clear: bool) -> bytes:
    return _render(hashed.update, clear)


def _render(update: Update, clear: bool) -> bytes:
    """Write a publish; only its last event carries the id, so that nobody resumes in the middle of it."""
    last = len(update.values) - 1
    return b"".join(
        event(
            "put" if value.kind == "put" else "removed",
            _told(update.revision, value, clear),
            update.revision if index == last else None,
        )
        for index, value in enumerate(update.values)
    )


def _told(revision: int, value: Value, clear: bool) -> Told:
    if value.kind != "put":
        return Told(revision, value.key, value.version)
    return Told(revision, value.key, value.version, value if clear else value.masked())


def _plain(notice: Notice[Value]) -> Step:
    assert not isinstance(notice, Change)
    return notice
