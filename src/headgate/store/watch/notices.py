"""What a watcher is told of a thing: its state, each change, marks, and that history is gone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, TypeAlias, TypeVar, cast

import msgspec

from headgate.store.client.link import Reply
from headgate.store.keys import Thing

Item = TypeVar("Item")


class FeedChange(msgspec.Struct, frozen=True):
    """One change: what happened to which member, with the value after it."""

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
    """Everything up to this revision has been given; `epoch` is that of the thing's history, where it is of one thing."""

    revision: int
    epoch: str | None = None


class Compacted(msgspec.Struct, frozen=True):
    """The changes after the watcher's position are no longer kept; the present state follows."""

    revision: int


class Reset(msgspec.Struct, frozen=True):
    """History may have been lost; the state in the new epoch follows."""

    epoch: str
    revision: int


Notice: TypeAlias = Snapshot[Item] | FeedChange | Bookmark | Compacted | Reset
Lister: TypeAlias = Callable[[Thing], Awaitable[Snapshot[Item]]]
Writer: TypeAlias = Callable[[Thing, Notice[Item]], bytes]
Notices: TypeAlias = AsyncGenerator[Notice[Item], None]
Opening: TypeAlias = Callable[[Notices[Item]], Notices[Item]]


class FeedPage(msgspec.Struct, frozen=True):
    """What the store said to a reader."""

    what: str
    epoch: str
    revision: int
    changes: list[FeedChange]


def position_after(position: int, notice: Notice[Item]) -> int:
    """Give the position of whoever was told this."""
    if isinstance(notice, FeedChange | Snapshot):
        return notice.revision
    return position


def read_page(reply: Reply) -> FeedPage:
    """Read the store's answer to a reader."""
    what, epoch, revision, entries = cast("tuple[bytes, bytes, bytes, list[list[Reply]]]", reply)
    changes = []
    for id_, fields in entries:
        _, kind, _, member, _, value, *_ = cast("list[bytes]", fields)
        changes.append(FeedChange(int(cast("bytes", id_).split(b"-")[0]), kind.decode(), member.decode(), value))
    return FeedPage(what.decode(), epoch.decode(), int(revision), changes)
