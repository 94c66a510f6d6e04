"""Watches of a namespace: the current values, then every publish; a resumed watch skips old versions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import lru_cache, partial
from typing import Final

import msgspec

from headgate.config import metrics
from headgate.config.config import Config, decode_update
from headgate.config.model import Update, Value
from headgate.config.wire import ConfigBookmark, ValueEvent
from headgate.http.routes import event
from headgate.store import Thing
from headgate.store.watch.feed import Bookmark, Compacted, FeedChange, FeedEvent, FeedEvents, Reset, Snapshot


class _Keyed(msgspec.Struct, frozen=True):
    key: str


MOST_CACHED: Final = 128  # publishes whose encoding is cached for watchers that lag; contents may be large
Step = Snapshot[Value] | Update | Bookmark | Compacted | Reset
_raw_entries = msgspec.json.Decoder(list[msgspec.Raw])
_keys = msgspec.json.Decoder(list[_Keyed])


async def follow(config: Config, namespace: str, after: int | None) -> AsyncGenerator[Step, None]:
    """Follow a namespace; a resumed watch gets each changed key's latest value once, then every publish."""
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
    """Stream a namespace's events; `clear` shows secret contents, `keys` selects keys."""
    write = _write_clear if clear else _write_masked
    if keys is not None:
        write = partial(_write_some, clear=clear, keys=keys)
    return config.feed.broadcast(config.space(namespace), after, write, newest_of_each if after is not None else None)


async def newest_of_each(notices: FeedEvents[Value]) -> FeedEvents[Value]:
    """Reduce the missed changes, up to the first bookmark, to each key's newest version, in bounded memory."""
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
        missed.pop(entry.key, None)  # so that the newest comes last
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


@lru_cache(maxsize=MOST_CACHED)
def _rendered(change: FeedChange, *, clear: bool) -> bytes:
    """Encode a publish once for all watchers, also for those that lag."""
    return _write(change, None, clear=clear)


def _write(notice: FeedEvent[Value], keys: frozenset[str] | None, *, clear: bool) -> bytes:
    match notice:
        case FeedChange():
            return _render(notice.revision, _chosen(_read(notice).values, keys), clear=clear)
        case Snapshot():
            values = _chosen(notice.items, keys)
            return b"".join(event("put", _event_of(notice.revision, value, clear=clear)) for value in values)
        case Bookmark():
            return event("bookmark", ConfigBookmark(notice.revision), notice.revision)
        case Compacted():
            return event("compacted", ConfigBookmark(notice.revision))
        case Reset():
            return event("reset", ConfigBookmark(notice.revision, notice.epoch))


def _chosen(values: Sequence[Value], keys: frozenset[str] | None) -> Sequence[Value]:
    return values if keys is None else [value for value in values if value.key in keys]


@lru_cache(maxsize=MOST_CACHED)
def _read(change: FeedChange) -> Update:
    """Decode a publish once for all watchers."""
    return decode_update(change)


def _render(revision: int, values: Sequence[Value], *, clear: bool) -> bytes:
    """Encode a publish; only its last event has the id, so that nobody resumes in the middle of it."""
    last = len(values) - 1
    return b"".join(
        event(
            "put" if value.kind == "put" else "removed",
            _event_of(revision, value, clear=clear),
            revision if index == last else None,
        )
        for index, value in enumerate(values)
    )


def _event_of(revision: int, value: Value, *, clear: bool) -> ValueEvent:
    if value.kind != "put":
        return ValueEvent(revision, value.key, value.version)
    return ValueEvent(revision, value.key, value.version, value if clear else value.masked())
