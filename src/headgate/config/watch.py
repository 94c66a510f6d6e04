"""Watches of a namespace as they leave the house: the present values, then every publish; late-comers get the latest."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import lru_cache, partial
from typing import Final

import msgspec

from headgate.config import metrics
from headgate.config.config import Config, read_update
from headgate.config.model import Update, Value
from headgate.http.routes import event
from headgate.store import Thing
from headgate.store.watch.feed import Bookmark, Compacted, FeedChange, FeedEvent, FeedEvents, Reset, Snapshot


class ConfigBookmark(msgspec.Struct, frozen=True, omit_defaults=True):
    """A position: of a bookmark, of a compaction, or of a new epoch."""

    revision: int
    epoch: str | None = None


class Told(msgspec.Struct, frozen=True, rename="camel"):
    """A key's new version, or its end."""

    revision: int
    key: str
    version: int
    value: Value | None = None


class _Keyed(msgspec.Struct, frozen=True):
    key: str


LATELY: Final = 128  # publishes that are kept written, for whoever is a little behind; contents may be large
Step = Snapshot[Value] | Update | Bookmark | Compacted | Reset
_raw_entries = msgspec.json.Decoder(list[msgspec.Raw])
_keys = msgspec.json.Decoder(list[_Keyed])


async def follow(config: Config, namespace: str, after: int | None) -> AsyncGenerator[Step, None]:
    """Follow a namespace; whoever resumes gets each changed key's latest once, then every publish."""
    notices = config.feed.watch(config.space(namespace), after)
    if after is not None:
        notices = newest_of_each(notices)
    metrics.WATCHERS.inc()
    try:
        async with aclosing(notices):
            async for notice in notices:
                yield _read(notice) if isinstance(notice, FeedChange) else notice
    finally:
        metrics.WATCHERS.dec()


def events(
    config: Config, namespace: str, after: int | None, *, clear: bool, keys: frozenset[str] | None = None
) -> AsyncGenerator[bytes, None]:
    """Give a namespace's events; `clear` shows secret contents, `keys` leaves out all others."""
    write = _write_clear if clear else _write_masked
    if keys is not None:
        write = partial(_write_some, clear=clear, keys=keys)
    return config.feed.broadcast(config.space(namespace), after, write, newest_of_each if after is not None else None)


async def newest_of_each(notices: FeedEvents[Value]) -> FeedEvents[Value]:
    """Leave of what was missed, up to the first mark, only each key's newest version; no more than that is kept meanwhile."""
    missed: dict[str, tuple[FeedChange, bytes]] | None = {}
    async with aclosing(notices):
        async for notice in notices:
            if missed is not None:
                if isinstance(notice, FeedChange):
                    _keep_newest(missed, notice)
                    continue
                for change in _newest(missed):
                    yield change
                missed = None
            yield notice


def _keep_newest(missed: dict[str, tuple[FeedChange, bytes]], change: FeedChange) -> None:
    bare = msgspec.structs.replace(change, value=b"")
    for entry, raw in zip(_keys.decode(change.value), _raw_entries.decode(change.value), strict=True):
        missed.pop(entry.key, None)  # so that what is newest comes last
        missed[entry.key] = (bare, bytes(raw))


def _newest(missed: dict[str, tuple[FeedChange, bytes]]) -> list[FeedChange]:
    entries: dict[FeedChange, list[bytes]] = {}
    for change, raw in missed.values():
        entries.setdefault(change, []).append(raw)
    return [msgspec.structs.replace(change, value=b"[" + b",".join(raws) + b"]") for change, raws in entries.items()]


def _write_clear(thing: Thing, notice: FeedEvent[Value]) -> bytes:
    return _rendered(notice, clear=True) if isinstance(notice, FeedChange) else _write(notice, None, clear=True)


def _write_masked(thing: Thing, notice: FeedEvent[Value]) -> bytes:
    return _rendered(notice, clear=False) if isinstance(notice, FeedChange) else _write(notice, None, clear=False)


def _write_some(thing: Thing, notice: FeedEvent[Value], *, clear: bool, keys: frozenset[str]) -> bytes:
    return _write(notice, keys, clear=clear)


@lru_cache(maxsize=LATELY)
def _rendered(change: FeedChange, *, clear: bool) -> bytes:
    """Write a publish once for all who watch, however late."""
    return _write(change, None, clear=clear)


def _write(notice: FeedEvent[Value], keys: frozenset[str] | None, *, clear: bool) -> bytes:
    match notice:
        case FeedChange():
            return _render(notice.revision, _chosen(_read(notice).values, keys), clear=clear)
        case Snapshot():
            values = _chosen(notice.items, keys)
            return b"".join(event("put", _told(notice.revision, value, clear=clear)) for value in values)
        case Bookmark():
            return event("bookmark", ConfigBookmark(notice.revision), notice.revision)
        case Compacted():
            return event("compacted", ConfigBookmark(notice.revision))
        case Reset():
            return event("reset", ConfigBookmark(notice.revision, notice.epoch))


def _chosen(values: Sequence[Value], keys: frozenset[str] | None) -> Sequence[Value]:
    return values if keys is None else [value for value in values if value.key in keys]


@lru_cache(maxsize=LATELY)
def _read(change: FeedChange) -> Update:
    """Read a publish once for all who watch."""
    return read_update(change)


def _render(revision: int, values: Sequence[Value], *, clear: bool) -> bytes:
    """Write a publish; only its last event carries the id, so that nobody resumes in the middle of it."""
    last = len(values) - 1
    return b"".join(
        event(
            "put" if value.kind == "put" else "removed",
            _told(revision, value, clear=clear),
            revision if index == last else None,
        )
        for index, value in enumerate(values)
    )


def _told(revision: int, value: Value, *, clear: bool) -> Told:
    if value.kind != "put":
        return Told(revision, value.key, value.version)
    return Told(revision, value.key, value.version, value if clear else value.masked())
