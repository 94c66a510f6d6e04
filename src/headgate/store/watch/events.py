"""The events of a feed: the snapshot of a thing, its changes, bookmarks, and the loss of history."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, TypeAlias, TypeVar, cast

import msgspec

from headgate.store.client.link import Reply
from headgate.store.keys import Thing

Item = TypeVar("Item")


class FeedChange(msgspec.Struct, frozen=True):
    """One change: its kind, the member that changed, and the value after it."""

    revision: int
    kind: str
    member: str
    value: bytes


class Snapshot(msgspec.Struct, Generic[Item], frozen=True):
    """The whole state of a thing at one revision."""

    items: list[Item]
    revision: int
    epoch: str


class Bookmark(msgspec.Struct, frozen=True):
    """All changes up to this revision were sent; `epoch` is that of the history, None where it is of several things."""

    revision: int
    epoch: str | None = None


class Compacted(msgspec.Struct, frozen=True):
    """The changes after the subscriber's revision are no longer kept; a snapshot follows."""

    revision: int


class Reset(msgspec.Struct, frozen=True):
    """History may have been lost; a snapshot in the new epoch follows."""

    epoch: str
    revision: int


FeedEvent: TypeAlias = Snapshot[Item] | FeedChange | Bookmark | Compacted | Reset
ReadSnapshot: TypeAlias = Callable[[Thing], Awaitable[Snapshot[Item]]]
Encode: TypeAlias = Callable[[Thing, FeedEvent[Item]], bytes]
FeedEvents: TypeAlias = AsyncGenerator[FeedEvent[Item], None]
Filter: TypeAlias = Callable[[FeedEvents[Item]], FeedEvents[Item]]


class FeedPage(msgspec.Struct, frozen=True):
    """One page of a history: `outcome` is same, new, compacted, reset or uncertain."""

    outcome: str
    epoch: str
    revision: int
    changes: list[FeedChange]


def revision_after(position: int, event: FeedEvent[Item]) -> int:
    """Give a subscriber's revision after an event."""
    if isinstance(event, FeedChange | Snapshot):
        return event.revision
    return position


def read_page(reply: Reply) -> FeedPage:
    """Decode the reply of feed_read."""
    outcome, epoch, revision, entries = cast("tuple[bytes, bytes, bytes, list[list[Reply]]]", reply)
    changes = []
    for id_, fields in entries:
        _, kind, _, member, _, value, *_ = cast("list[bytes]", fields)
        changes.append(FeedChange(int(cast("bytes", id_).split(b"-")[0]), kind.decode(), member.decode(), value))
    return FeedPage(outcome.decode(), epoch.decode(), int(revision), changes)
