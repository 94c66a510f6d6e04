"""Watching a thing: ordered, unique, gap-free, resumable, bookmarked, and honest about what is gone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from headgate.registry.model import Instance, Record
from headgate.registry.registry import Registry
from headgate.registry.settings import RegistrySettings
from headgate.store import Store, StoreSettings, Thing, open_store
from headgate.store.watch.feed import Bookmark, FeedChange, FeedEvent, Snapshot
from tests.store.torn import writer_and_reader
from tests.topology import Standalone, eventually

pytestmark = pytest.mark.anyio


class Watcher:
    """Follows a service and checks every promise as it goes."""

    def __init__(self, registry: Registry, thing: Thing) -> None:
        self.registry, self.thing = registry, thing
        self.members: dict[str, int] = {}
        self.position: int | None = None
        self.seen: list[FeedChange] = []
        self.notices: list[FeedEvent[Instance]] = []
        self._task: asyncio.Task[None] | None = None

    async def follow(self) -> None:
        async for notice in self.registry.feed.watch(self.thing, self.position):
            self.notices.append(notice)
            match notice:
                case Snapshot():
                    self.members = {item.instance_id: 0 for item in notice.items}
                    self.position = notice.revision
                case FeedChange():
                    assert self.position is not None
                    assert notice.revision > self.position, "ordered and unique"
                    self.position = notice.revision
                    self.seen.append(notice)
                    if notice.kind == "put":
                        self.members[notice.member] = notice.revision
                    else:
                        assert notice.member in self.members, "nobody leaves who was never there"
                        del self.members[notice.member]
                case Bookmark():
                    assert notice.revision == self.position

    def start(self) -> None:
        self._task = asyncio.ensure_future(self.follow())

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def knows(self, *names: str) -> bool:
        """Tell whether exactly these are there, as far as was told; a promise that was broken meanwhile is raised."""
        assert self._task is not None
        if self._task.done():
            self._task.result()
        return set(self.members) == set(names)

    def kinds(self) -> list[str]:
        return [type(notice).__name__ for notice in self.notices]


async def put(registry: Registry, name: str, host: str = "h") -> None:
    await registry.register("default", Record(type="game", group="g", instance_id=name, hostname=host))


async def take(registry: Registry, name: str) -> None:
    await registry.remove("default", "game", "g", name)


@pytest.fixture
async def registry(store: Store) -> Registry:
    return Registry(store, RegistrySettings(history=100))


@pytest.fixture
async def watcher(registry: Registry) -> AsyncIterator[Watcher]:
    made = Watcher(registry, registry.service("default", "game", "g"))
    yield made
    if made._task is not None:
        await made.stop()


async def test_the_present_state_then_every_change(registry: Registry, watcher: Watcher) -> None:
    await put(registry, "a")
    watcher.start()
    await eventually(lambda: len(watcher.notices) == 2)
    assert watcher.kinds() == ["Snapshot", "Bookmark"]
    await put(registry, "b")
    await take(registry, "a")
    await eventually(lambda: len(watcher.seen) == 2)
    assert [(change.kind, change.member) for change in watcher.seen] == [("put", "b"), ("removed", "a")]


async def test_a_service_that_does_not_exist_yet_is_watched_without_a_reset(
    registry: Registry, watcher: Watcher
) -> None:
    watcher.start()
    await eventually(lambda: len(watcher.notices) == 2)
    await put(registry, "a")
    await eventually(lambda: len(watcher.seen) == 1)
    assert "Reset" not in watcher.kinds()


async def test_a_hundred_changes_while_cut_off_come_in_order_once(registry: Registry, watcher: Watcher) -> None:
    await put(registry, "a")
    watcher.start()
    await eventually(lambda: watcher.position is not None)
    await watcher.stop()
    for number in range(100):
        await put(registry, "a", f"h{number}")
    watcher.start()
    await eventually(lambda: len(watcher.seen) >= 100)
    hosts = [f'"hostname":"h{number}"'.encode() for number in range(100)]
    assert len(watcher.seen) == 100
    assert all(host in change.value for host, change in zip(hosts, watcher.seen, strict=True))
    assert not {"Compacted", "Reset"} & set(watcher.kinds())


async def test_cut_off_longer_than_the_history_says_compacted_and_ends_equal(
    registry: Registry, watcher: Watcher
) -> None:
    await put(registry, "gone")
    watcher.start()
    await eventually(lambda: watcher.position is not None)
    await watcher.stop()
    await take(registry, "gone")
    for number in range(1500):
        await put(registry, "a", f"h{number}")
    watcher.start()
    await eventually(lambda: "Compacted" in watcher.kinds())
    await eventually(lambda: set(watcher.members) == {"a"})
    assert watcher.kinds()[2:] == ["Compacted", "Snapshot", "Bookmark"]


async def test_a_removal_at_the_trim_boundary_is_never_skipped(registry: Registry, watcher: Watcher) -> None:
    """From any position that one resumes from, the outcome is the store's state: trimming hides no removal."""
    positions = []
    for number in range(400):
        await put(registry, f"i{number % 7}", f"h{number}")
        if number % 3 == 0:
            await take(registry, f"i{number % 7}")
        positions.append((await registry.discover("default", "game", "g")).revision)
    look = {each.instance_id for each in (await registry.discover("default", "game", "g")).instances}
    states: dict[int, set[str]] = {}
    members: set[str] = set()
    number = 0
    for number, position in enumerate(positions):
        members.add(f"i{number % 7}")
        if number % 3 == 0:
            members.discard(f"i{number % 7}")
        states[position] = set(members)
    for position in positions[::13]:
        page = await registry.feed.read(watcher.thing, position, 2000)
        if page.outcome == "compacted":
            continue
        known = set(states[position])
        for change in page.changes:
            (known.add if change.kind == "put" else known.discard)(change.member)
        assert known == look


async def test_one_reader_whatever_the_number_of_watchers(registry: Registry) -> None:
    thing = registry.service("default", "game", "g")
    watchers = [Watcher(registry, thing) for _ in range(50)]
    for watcher in watchers:
        watcher.start()
    await eventually(lambda: all(watcher.position is not None for watcher in watchers))
    assert (registry.feed.subscribers, registry.feed.followers) == (50, 1)
    await put(registry, "a")
    await eventually(lambda: all(len(watcher.seen) == 1 for watcher in watchers))
    await asyncio.gather(*(watcher.stop() for watcher in watchers))
    assert (registry.feed.subscribers, registry.feed.followers) == (0, 0)


async def test_a_slow_watcher_delays_nobody_and_loses_nothing(store: Store, watcher: Watcher) -> None:
    registry = watcher.registry = Registry(store)
    slow = registry.feed.watch(watcher.thing)
    assert isinstance(await anext(slow), Snapshot)
    assert isinstance(await anext(slow), Bookmark)
    watcher.start()
    await eventually(lambda: watcher.position is not None)
    for turn in range(100):
        await asyncio.gather(*(put(registry, f"i{number}", f"h{turn}") for number in range(50)))
    await eventually(lambda: set(watcher.members) == {f"i{number}" for number in range(50)}, 20)
    await eventually(lambda: len(watcher.seen) == 5000, 20)
    seen = [await anext(slow) for _ in range(5000)]
    assert seen == watcher.seen
    await slow.aclose()


async def test_a_watcher_that_falls_behind_the_history_is_told_and_given_the_state(registry: Registry) -> None:
    """Slower than everything that is kept: it gets `Compacted`, the whole state, and the mark that ends it."""
    thing = registry.service("default", "game", "g")
    slow = registry.feed.watch(thing)
    assert isinstance(await anext(slow), Snapshot)
    assert isinstance(await anext(slow), Bookmark)
    for turn in range(60):
        await asyncio.gather(*(put(registry, f"i{number}", f"h{turn}") for number in range(100)))
    await eventually(lambda: registry.feed._followers[thing]._since > 0)
    kinds = []
    while "Compacted" not in kinds:
        kinds.append(type(await anext(slow)).__name__)
    state, mark = await anext(slow), await anext(slow)
    assert isinstance(state, Snapshot)
    assert isinstance(mark, Bookmark)
    assert (len(state.items), mark.revision) == (100, state.revision)
    await slow.aclose()


async def test_a_position_from_the_future_is_reset(registry: Registry, watcher: Watcher) -> None:
    await put(registry, "a")
    watcher.position = (await registry.discover("default", "game", "g")).revision + 10
    watcher.start()
    await eventually(lambda: set(watcher.members) == {"a"})
    assert watcher.kinds()[0] == "Reset"


async def test_a_flush_is_told_as_a_reset(registry: Registry, watcher: Watcher, store: Store) -> None:
    await put(registry, "a")
    await put(registry, "b")
    watcher.start()
    await eventually(lambda: watcher.position is not None)
    for key in ("meta", "records", "metadata", "metrics", "states", "deadlines", "changes"):
        await store.write(watcher.thing, "DEL", watcher.thing.key(key))
    await put(registry, "a")
    await eventually(lambda: set(watcher.members) == {"a"})
    assert "Reset" in watcher.kinds()


async def test_a_loss_after_which_revisions_are_lower_is_told_to_all_who_watch(
    registry: Registry, watcher: Watcher, store: Store
) -> None:
    """Revisions that had jumped ahead after a failover begin lower again when everything is lost soon after it."""
    store.step_clock(120_000)
    await put(registry, "a")
    watcher.start()
    written: list[str] = []

    def write(_: Thing, notice: FeedEvent[Instance]) -> bytes:
        written.append(type(notice).__name__)
        members = [item.instance_id for item in notice.items] if isinstance(notice, Snapshot) else []
        members += [notice.member] if isinstance(notice, FeedChange) else []
        return " ".join(members).encode()

    async def stream() -> None:
        async for chunk in registry.feed.broadcast(watcher.thing, None, write):
            chunks.append(chunk.decode())  # noqa: PERF401 -- it is looked at while more come

    chunks: list[str] = []
    streaming = asyncio.ensure_future(stream())
    await eventually(lambda: watcher.position is not None and chunks == ["a"])
    for key in ("meta", "records", "metadata", "metrics", "states", "deadlines", "changes"):
        await store.write(watcher.thing, "DEL", watcher.thing.key(key))
    store.step_clock(0)
    await put(registry, "b")
    await eventually(lambda: set(watcher.members) == {"b"})
    await put(registry, "c")
    await eventually(lambda: set(watcher.members) == {"b", "c"} and chunks[-1] == "c")
    streaming.cancel()
    await asyncio.gather(streaming, return_exceptions=True)
    assert "Reset" in watcher.kinds()
    assert "Reset" in written


@pytest.mark.topology("standalone")
async def test_a_restart_is_told_as_a_reset_and_nothing_is_missing(fresh_server: object) -> None:
    server = fresh_server()  # type: ignore[operator]
    assert isinstance(server, Standalone)
    # With everysec, a server whose disk is busy may lose the last two seconds when it is killed.
    server.node.command("CONFIG", "SET", "appendfsync", "always")
    async with open_store(StoreSettings(url=server.url, prefix="t", deadline_ms=10_000)) as store:
        registry = Registry(store)
        watcher = Watcher(registry, registry.service("default", "game", "g"))
        await put(registry, "a")
        watcher.start()
        await eventually(lambda: watcher.position is not None)
        await server.fail_over()
        await eventually(lambda: "Reset" in watcher.kinds(), 15)
        await put(registry, "b")
        await eventually(lambda: watcher.knows("a", "b"), 10)
        await watcher.stop()


@pytest.mark.topology("standalone")
@pytest.mark.parametrize("seed", range(4))
async def test_random_histories_keep_every_promise_under_faults(seed: int) -> None:
    """Writers, watchers that come and go, and a connection that is cut, delayed and silenced at random."""
    chance = random.Random(seed)
    async with writer_and_reader() as (writer, reader, proxy):
        thing = writer.service("default", "game", "g")
        watchers = [Watcher(reader, thing) for _ in range(8)]
        for watcher in watchers:
            watcher.start()
        await eventually(lambda: all(watcher.position is not None for watcher in watchers))
        for turn in range(300):
            name = f"i{chance.randrange(12)}"
            await (put(writer, name, f"h{turn}") if chance.random() < 0.6 else take(writer, name))
            if chance.random() < 0.05:
                watcher = chance.choice(watchers)
                await watcher.stop()
                watcher.start()
            if chance.random() < 0.03:
                proxy.cut()
            if chance.random() < 0.02:
                proxy.blackhole()
                await asyncio.sleep(chance.random() / 5)
                proxy.heal()
        truth = (await writer.feed.read(thing, 0, 10_000)).changes
        end = truth[-1].revision

        def settled() -> bool:
            for watcher in watchers:
                assert watcher._task is not None
                if watcher._task.done():  # the connection broke under it: it resumes from where it was
                    watcher._task.exception()
                    watcher.start()
            return all(watcher.position == end for watcher in watchers)

        await eventually(settled, 20)
        present = {each.instance_id for each in (await writer.discover("default", "game", "g")).instances}
        for watcher in watchers:
            assert watcher.seen == truth, "every change, in order, once, across all interruptions"
            assert set(watcher.members) == present
            await watcher.stop()
