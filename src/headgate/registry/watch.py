"""Watches as event streams: of one service, or of all groups of a type with one cursor."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import lru_cache
from itertools import islice
from time import time
from typing import Final

import msgspec

from headgate.http.routes import event
from headgate.kit.problems import InvalidRequest
from headgate.registry import metrics
from headgate.registry.model import Instance
from headgate.registry.registry import Registry
from headgate.registry.service_state import ServiceState, decode_put, decode_removal
from headgate.registry.wire import InstancePut, InstanceRemoved, RegistryBookmark
from headgate.store import Thing
from headgate.store.watch.feed import Bookmark, Compacted, FeedChange, FeedEvent, Reset, Snapshot

GROUPS_AT_ONCE: Final = 64
_CURSOR: Final = re.compile(r"([0-9]{1,16})(?:\.([0-9]{1,16}))?\Z")


class Cursor(msgspec.Struct, frozen=True):
    """A position in the journal of a type; `within` is the revision reached inside the next entry's group."""

    journal: int
    within: int = 0

    def __str__(self) -> str:
        return f"{self.journal}.{self.within}" if self.within else str(self.journal)


class GroupNotice(msgspec.Struct, frozen=True):
    """A notice of one group ("" means all groups), and the cursor after it if a watch can be resumed there."""

    group: str
    notice: FeedEvent[Instance]
    cursor: Cursor | None = None


def watch_service(registry: Registry, thing: Thing, after: int | None) -> AsyncGenerator[bytes, None]:
    """Stream the events of one service."""
    return registry.feed.broadcast(thing, after, _write)


async def watch_type(
    registry: Registry, namespace: str, type_: str, after: Cursor | None
) -> AsyncGenerator[bytes, None]:
    """Stream the events of all groups of a type, later ones included; event ids are cursors over all groups."""
    metrics.WATCHERS.inc()
    try:
        async with aclosing(_follow_type(registry, namespace, type_, after)) as notices:
            async for together in notices:
                # One write per batch, because the state of many groups is many events.
                if chunk := b"".join(map(_render_found, together)):
                    yield chunk
    finally:
        metrics.WATCHERS.dec()


async def follow_type(
    registry: Registry, namespace: str, type_: str, after: Cursor | None
) -> AsyncGenerator[GroupNotice, None]:
    """Follow all groups of a type in the order of its journal; without a position, their state comes first."""
    async with aclosing(_follow_type(registry, namespace, type_, after)) as notices:
        async for together in notices:
            for found in together:
                yield found


async def _follow_type(
    registry: Registry, namespace: str, type_: str, after: Cursor | None
) -> AsyncGenerator[Sequence[GroupNotice], None]:
    position, within = (after.journal, after.within) if after else (0, 0)
    ahead: dict[str, int] = {}  # revisions of groups whose state was sent and that the journal has not reached yet
    complete_at = 0
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(registry.journals.open(namespace, type_))
        if after is not None:
            await journal.catch_up()
        feed = registry.journals.feed
        notices = await stack.enter_async_context(aclosing(feed.watch(journal.thing, after.journal if after else None)))
        async for notice in notices:
            match notice:
                case Compacted() | Reset():
                    yield (GroupNotice("", notice),)
                case Snapshot():
                    position, within = notice.revision, 0
                    state = await journal.state()
                    complete_at = state.complete_at
                    ahead = {group: state.revision for group, state in state.states.items()}
                    groups = iter(state.states.items())
                    while some := list(islice(groups, GROUPS_AT_ONCE)):
                        yield [found for group, state in some for found in _state_of(group, state)]
                case FeedChange():
                    start, until = (int(word) for word in notice.value.split(b" "))
                    start = max(start, ahead.get(notice.member, 0), within)
                    notices_of_group = await journal.read(notice.member, start, until) if start < until else []
                    for each in notices_of_group:
                        if isinstance(each, Snapshot):
                            ahead[notice.member] = each.revision
                            complete_at = await journal.record({notice.member: each.revision})
                        last = each is notices_of_group[-1]
                        cursor = Cursor(notice.revision) if last else Cursor(position, each.revision)
                        resumable = isinstance(each, FeedChange) and notice.revision >= complete_at
                        found = GroupNotice(notice.member, each, cursor if resumable else None)
                        if isinstance(each, Snapshot):
                            yield found, GroupNotice(notice.member, Bookmark(each.revision, each.epoch))
                        else:
                            yield (found,)
                    position, within = notice.revision, 0
                case Bookmark():
                    pass
            # A bookmark marks the end of the state of all groups, and of a new group.
            ends_state = isinstance(notice, FeedChange) and (bool(ahead) or notice.value.startswith(b"0 "))
            if position >= complete_at and (isinstance(notice, Bookmark) or ends_state):
                ahead = {}
                yield (GroupNotice("", Bookmark(position), Cursor(position)),)


def _state_of(group: str, state: ServiceState) -> tuple[GroupNotice, GroupNotice]:
    """Give the notices for the state of a group: a snapshot and its bookmark."""
    snapshot = Snapshot(state.instances, state.revision, state.epoch)
    return GroupNotice(group, snapshot), GroupNotice(group, Bookmark(state.revision, state.epoch))


def read_cursor(text: str) -> Cursor:
    """Parse a cursor; raises InvalidRequest."""
    found = _CURSOR.match(text)
    if found is None or max(int(part or 0) for part in found.groups()) >= 2**53:
        raise InvalidRequest("This is not a position of ours.", field="revision")
    return Cursor(int(found[1]), int(found[2] or 0))


def _write(thing: Thing, notice: FeedEvent[Instance]) -> bytes:
    group = thing.name.partition("/")[2]
    if isinstance(notice, FeedChange):
        return _rendered(notice, group, str(notice.revision))
    return _render(notice, group, str(notice.revision))


def _render_found(found: GroupNotice) -> bytes:
    id_ = None if found.cursor is None else str(found.cursor)
    if isinstance(found.notice, FeedChange):
        return _rendered(found.notice, found.group, id_)
    return _render(found.notice, found.group, id_)


@lru_cache(maxsize=4096)
def _rendered(change: FeedChange, group: str, id_: str | None) -> bytes:
    """Encode a change once for all watchers, also for those that lag."""
    metrics.PUSH_SECONDS.observe(max(0.0, time() - change.revision / 1_000_000))
    return _render(change, group, id_)


def _render(notice: FeedEvent[Instance], group: str, id_: str | None) -> bytes:
    revision = notice.revision
    match notice:
        case FeedChange(kind="put"):
            return event("put", InstancePut(revision, decode_put(notice)), id_)
        case FeedChange():
            reason, _ = decode_removal(notice)
            return event("removed", InstanceRemoved(revision, notice.member, group, reason), id_)
        case Snapshot():
            return b"".join(event("put", InstancePut(revision, item)) for item in notice.items)
        case Bookmark():
            return event("bookmark", RegistryBookmark(revision, epoch=notice.epoch, group=group or None), id_)
        case Compacted():
            return event("compacted", RegistryBookmark(revision, group=group or None))
        case Reset():
            return event("reset", RegistryBookmark(revision, epoch=notice.epoch, group=group or None))
