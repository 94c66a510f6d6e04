"""Watching all groups of a type: one short cursor however many groups there are, nothing missed, nothing told twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, cast

import pytest

from headgate.kit.problems import InvalidRequest
from headgate.registry.model import Record
from headgate.registry.registry import Registry
from headgate.registry.service_state import ServiceState
from headgate.registry.settings import RegistrySettings
from headgate.registry.sweep import Sweeper
from headgate.registry.watch import Cursor, GroupNotice, follow_type, read_cursor, watch_type
from headgate.sdk.backends.registry import Listed, Marked, Put
from headgate.sdk.service_view import ServiceView
from headgate.store import Store, Thing
from headgate.store.watch.feed import Bookmark, Compacted, FeedChange, Reset, Snapshot
from tests.store.stopped_clock import StoppedClock
from tests.topology import eventually

pytestmark = pytest.mark.anyio
NS: Final = "default"


async def register(registry: Registry, group: str, name: str, **fields: object) -> None:
    record = Record(type="game", group=group, instance_id=name, hostname="h", **fields)  # type: ignore[arg-type]
    await registry.register(NS, record)


async def until_bookmark(found: AsyncGenerator[GroupNotice, None]) -> list[GroupNotice]:
    """Take what comes up to the next cursor of all groups."""
    seen = []
    async with asyncio.timeout(60):
        async for each in found:
            seen.append(each)
            if not each.group and isinstance(each.notice, Bookmark):
                return seen
    raise AssertionError("the watch ended")


def told(seen: list[GroupNotice]) -> list[tuple[str, str, str]]:
    return [(each.group, each.notice.kind, each.notice.member) for each in seen if isinstance(each.notice, FeedChange)]


async def test_a_watch_resumed_anywhere_tells_each_change_once(store: Store) -> None:
    registry = Registry(store)
    dice = random.Random(7)
    groups = [f"g{number}" for number in range(5)]
    await register(registry, "g0", "first")
    seen: list[GroupNotice] = []
    async with aclosing(follow_type(registry, NS, "game", None)) as found:
        await until_bookmark(found)
        for number in range(40):
            group = dice.choice(groups)
            await register(registry, group, f"i{number}")
            if dice.random() < 0.3:
                await registry.remove(NS, "game", group, f"i{number}")
        async with asyncio.timeout(30):
            while len({member for _, _, member in told(seen)}) < 40 or told(seen)[-1] != await last_change(
                registry, groups
            ):
                seen.append(await anext(found))
    events = [each for each in seen if isinstance(each.notice, FeedChange)]
    assert len({(each.group, cast("FeedChange", each.notice).revision) for each in events}) == len(events)
    for index in (0, 7, 20, len(events) - 2):
        cursor = events[index].cursor
        assert cursor is not None
        async with aclosing(follow_type(Registry(store), NS, "game", read_cursor(str(cursor)))) as again:
            rest: list[GroupNotice] = []
            while len(told(rest)) < len(events) - index - 1:
                rest += await until_bookmark(again)
            assert told(rest) == told(seen)[index + 1 :]


async def last_change(registry: Registry, groups: list[str]) -> tuple[str, str, str]:
    pages = [(group, (await registry.feed.read(registry.service(NS, "game", group), 0)).changes) for group in groups]
    group, change = max(
        ((group, changes[-1]) for group, changes in pages if changes), key=lambda each: each[1].revision
    )
    return group, change.kind, change.member


async def test_two_processes_that_watch_tell_the_same_in_the_same_order(store: Store) -> None:
    registries = [Registry(store) for _ in range(3)]
    seen: list[list[GroupNotice]] = [[] for _ in registries]

    async def follow(registry: Registry, into: list[GroupNotice]) -> None:
        found = follow_type(registry, NS, "game", None)
        while True:
            into.append(await anext(found))

    tasks = [asyncio.ensure_future(follow(*pair)) for pair in zip(registries, seen, strict=True)]
    await eventually(lambda: all(each and each[-1].cursor for each in seen))
    await asyncio.gather(*(register(registries[n % 3], f"g{n % 7}", f"i{n}") for n in range(100)))
    await eventually(lambda: all(len(told(each)) == 100 for each in seen))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert told(seen[0]) == told(seen[1]) == told(seen[2])
    assert len(set(told(seen[0]))) == 100


async def test_cursors_stay_short_and_a_bookmark_is_one_event_however_many_groups(store: Store) -> None:
    registry = Registry(store)
    await asyncio.gather(*(register(registry, f"group-{number}", "a") for number in range(400)))
    async with aclosing(watch_type(registry, NS, "game", None)) as chunks:
        size, position = 0, b""
        async with asyncio.timeout(60):
            async for chunk in chunks:
                size += len(chunk)
                if chunk.startswith(b"event: bookmark\nid: "):
                    position = chunk.split(b"\n")[1].removeprefix(b"id: ")
                    break
    assert size < 400 * 1200, "the state of each group once, and no cursor in it"
    assert len(position) <= 33
    await register(registry, "group-7", "b")
    async with aclosing(follow_type(Registry(store), NS, "game", read_cursor(position.decode()))) as found:
        rest = await until_bookmark(found)
        assert told(rest) == [("group-7", "put", "b")]
        assert len(rest) == 2


async def test_watchers_that_begin_together_share_one_read_and_get_the_state_in_few_pieces(store: Store) -> None:
    registry = Registry(store)
    groups, watchers = 200, 10
    await asyncio.gather(*(register(registry, f"group-{number}", "a") for number in range(groups)))
    read: list[str] = []
    read_service = registry.read_service

    async def counted(thing: Thing, **choice: object) -> ServiceState:
        read.append(thing.name)
        return await read_service(thing, **choice)  # type: ignore[arg-type]

    registry.read_service = counted  # type: ignore[method-assign]

    async def begin() -> int:
        pieces, state = 0, b""
        async with aclosing(watch_type(registry, NS, "game", None)) as chunks, asyncio.timeout(60):
            async for chunk in chunks:
                pieces, state = pieces + 1, state + chunk
                if b"event: bookmark\nid: " in chunk:
                    break
        assert state.count(b"event: put\n") == groups
        return pieces

    pieces = await asyncio.gather(*(begin() for _ in range(watchers)))
    assert max(pieces) < 10
    assert len(read) <= 3 * groups


async def test_groups_that_were_emptied_are_forgotten(store: Store) -> None:
    clock = StoppedClock(store)
    registry = Registry(store, RegistrySettings(history_seconds=10))
    await register(registry, "stays", "a", ttl_seconds=3600)
    await register(registry, "goes", "b")
    journal = registry.journals.thing(NS, "game")

    async def heads() -> list[bytes]:
        return sorted(cast("list[bytes]", await store.read(journal, "HKEYS", journal.key("heads"))))

    async def emptied() -> bool:
        await Sweeper(registry).step()
        return await heads() == [b"stays"]

    async with aclosing(follow_type(registry, NS, "game", None)) as found:
        await until_bookmark(found)
        assert await heads() == [b"goes", b"stays"]
        await registry.remove(NS, "game", "goes", "b")
        assert told([await anext(found)]) == [("goes", "removed", "b")]
        clock.set(120_000)
        await eventually(emptied)
        await register(registry, "goes", "c")
        assert told(await until_bookmark(found)) == [("goes", "put", "c")]


async def test_a_lost_journal_gives_the_state_of_all_groups_again(store: Store) -> None:
    registry = Registry(store)
    await register(registry, "g0", "a")
    await register(registry, "g1", "b")
    journal = registry.journals.thing(NS, "game")
    async with aclosing(follow_type(registry, NS, "game", None)) as found:
        await until_bookmark(found)
        await store.write(journal, "UNLINK", journal.key("meta"), journal.key("heads"), journal.key("changes"))
        seen = await until_bookmark(found)
        while not any(isinstance(each.notice, Reset) for each in seen):
            seen = await until_bookmark(found)
        state = [each for each in seen if isinstance(each.notice, Snapshot)]
        assert sorted(each.group for each in state) == ["g0", "g1"]
        await register(registry, "g1", "c")
        assert told(await until_bookmark(found) if not told(seen) else seen)[-1:] in ([("g1", "put", "c")], [])


async def test_a_groups_trimmed_history_gives_its_state_and_nobody_elses(store: Store) -> None:
    registry = Registry(store, RegistrySettings(history=100))
    await register(registry, "busy", "a")
    await register(registry, "quiet", "b")
    async with aclosing(follow_type(registry, NS, "game", None)) as found:
        cursor = (await until_bookmark(found))[-1].cursor
    assert cursor is not None
    for number in range(400):
        await register(registry, "busy", "a", port=number + 1)
    async with aclosing(follow_type(Registry(store), NS, "game", cursor)) as found:
        seen = await until_bookmark(found)
    assert [type(each.notice) for each in seen][:2] == [Compacted, Snapshot]
    assert {each.group for each in seen} == {"busy", ""}


@pytest.mark.parametrize("text", ["eyJnIjoxfQ", "", "1.2.3", "-1", "1 ", "١", "9" * 17, str(2**53), "1\n"])
def test_what_is_not_a_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        read_cursor(text)
    assert read_cursor(str(Cursor(12, 34))) == Cursor(12, 34)


async def test_a_refused_position_makes_a_client_list_anew() -> None:
    view = ServiceView("game@*", None, None)
    view.take(Marked("eyJnIjoxfQ"))
    assert view.refused(InvalidRequest()), "the position may be why"
    assert (view.position, view.refusal) == (None, None)
    assert not view.refused(InvalidRequest()), "it was not"


async def test_groups_that_the_whole_state_does_not_name_are_suspects_and_then_gone(store: Store) -> None:
    registry = Registry(store)
    await register(registry, "old", "a", ttl_seconds=1)
    (instance,) = (await registry.discover(NS, "game", "old")).instances
    view = ServiceView("game@*", None, None)
    view.take(Listed("old", [instance], 1, False))
    view.take(Marked("1", frozenset({"new"})))
    assert [each.suspect for each in view.instances()] == [True]
    await asyncio.sleep(1.1)  # its lease
    view.take(Marked("2", current=True))
    assert view.instances() == []


async def test_a_suspect_outlives_its_lease_until_a_bookmark_comes(store: Store) -> None:
    """A watcher that is cut off after a loss of data cannot hear that an instance has registered again."""
    registry = Registry(store)
    await register(registry, "g", "a", ttl_seconds=1)
    await register(registry, "g", "b", ttl_seconds=1)
    listing = await registry.discover(NS, "game", "g")
    view = ServiceView("game@g", "g", None)
    view.take(Listed("g", listing.instances, 1, False, "1"))
    view.take(Listed("g", [], 2, True, "2"))
    await asyncio.sleep(1.1)  # their lease, in which nothing was heard
    assert [each.suspect for each in view.instances()] == [True, True]
    # Comes back and hears what it has missed, one by one; only then it is known who is not there.
    view.take(Put(listing.instances[0], 3))
    view.take(Marked("3"))
    assert len(view.instances()) == 2
    view.take(Marked("3", epoch="2", current=True))
    assert [each.instance_id for each in view.instances()] == ["a"]


async def test_a_second_loss_gives_a_suspect_a_second_lease(store: Store) -> None:
    registry = Registry(store)
    await register(registry, "g", "a", ttl_seconds=1)
    listing = await registry.discover(NS, "game", "g")
    view = ServiceView("game@g", "g", None)
    view.take(Listed("g", listing.instances, 1, False, "1"))
    view.take(Listed("g", [], 2, True, "2"))
    await asyncio.sleep(1.1)  # its lease
    view.take(Listed("g", [], 3, False, "3"))
    assert [each.suspect for each in view.instances()] == [True]
    await asyncio.sleep(1.1)
    view.take(Listed("g", [], 4, False, "3"))
    assert view.instances() == []
