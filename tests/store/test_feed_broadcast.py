"""Streams to many: a change is read and written once, whoever waits gets it, and nobody is skipped or held up."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator

import pytest

from headgate.kit.problems import Closed
from headgate.registry import metrics
from headgate.registry.model import Instance, Record
from headgate.registry.registry import Registry
from headgate.registry.settings import RegistrySettings
from headgate.store import Store, StoreSettings, Thing, open_store
from headgate.store.watch import follower
from headgate.store.watch.feed import READ, FeedChange, FeedEvent, Snapshot
from tests.store.torn import writer_and_reader
from tests.topology import FaultyProxy, Standalone, Stopwatch, eventually

pytestmark = pytest.mark.anyio


class Writing:
    """Writes notices as lines of words, and counts how often."""

    def __init__(self) -> None:
        self.written: Counter[int] = Counter()

    def __call__(self, thing: Thing, notice: FeedEvent[Instance]) -> bytes:
        match notice:
            case FeedChange():
                self.written[notice.revision] += 1
                return f"{notice.kind} {notice.member} {notice.revision}\n".encode()
            case Snapshot():
                return b"".join(f"state {item.instance_id} {notice.revision}\n".encode() for item in notice.items)
        return f"{type(notice).__name__.lower()} - {notice.revision}\n".encode()


class Client:
    """Reads one stream, in its own time."""

    def __init__(self, registry: Registry, write: Writing, after: int | None = None) -> None:
        self.lines: list[list[str]] = []
        self.position = after
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._registry, self._write = registry, write
        self.start()

    def start(self) -> None:
        thing = self._registry.service("default", "game", "g")
        stream = self._registry.feed.broadcast(thing, self.position, self._write)
        self.task = asyncio.ensure_future(self._read(stream))

    async def _read(self, stream: AsyncGenerator[bytes, None]) -> None:
        try:
            async for chunk in stream:
                for line in chunk.decode().splitlines():
                    self.lines.append(line.split())
                    if self.lines[-1][0] != "state":
                        self.position = int(self.lines[-1][2])
                await self.may_read.wait()
        finally:
            await stream.aclose()

    def changes(self) -> list[list[str]]:
        return [line for line in self.lines if line[0] in ("put", "removed")]

    def words(self) -> list[str]:
        return [line[0] for line in self.lines]

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def put(registry: Registry, name: str, host: str = "h") -> None:
    await registry.register("default", Record(type="game", group="g", instance_id=name, hostname=host))


@pytest.fixture
async def registry(store: Store) -> Registry:
    return Registry(store, RegistrySettings(history=10_000))


async def test_a_change_is_read_and_written_once_for_all_who_watch(
    registry: Registry, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Writing()
    clients = [Client(registry, write) for _ in range(200)]
    await eventually(lambda: all(client.words() == ["bookmark"] for client in clients))
    await put(registry, "first")
    await eventually(lambda: all(len(client.changes()) == 1 for client in clients))
    reads = 0
    run = store.run

    async def counted(script: object, *arguments: object, **names: object) -> object:
        nonlocal reads
        reads += script is READ
        return await run(script, *arguments, **names)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "run", counted)
    watch = Stopwatch()
    for number in range(5):
        await put(registry, f"i{number}")
        seen = number + 2
        await eventually(lambda: all(len(client.changes()) == seen for client in clients))  # noqa: B023  # awaited here
    by_its_timer = watch.wall / follower.TIMER_SECONDS
    assert reads <= 15 + by_its_timer, (
        "a reader looks once for each hint and now and then by its timer, not once for each watcher"
    )
    assert set(write.written.values()) == {1}
    assert all(client.changes() == clients[0].changes() for client in clients)
    assert (registry.feed.subscribers, registry.feed.followers) == (200, 1)
    await asyncio.gather(*(client.stop() for client in clients))
    assert (registry.feed.subscribers, registry.feed.followers) == (0, 0)


async def test_a_client_that_does_not_read_holds_up_nobody_and_misses_nothing(registry: Registry) -> None:
    slow, quick = Client(registry, Writing()), Client(registry, Writing())
    await eventually(lambda: slow.words() == quick.words() == ["bookmark"])
    slow.may_read.clear()
    for turn in range(100):
        await asyncio.gather(*(put(registry, f"i{number}", f"h{turn}") for number in range(50)))
    await eventually(lambda: len(quick.changes()) == 5000, 20)
    assert len(slow.changes()) < 5000
    slow.may_read.set()
    await eventually(lambda: len(slow.changes()) == 5000, 20)
    assert slow.changes() == quick.changes()
    assert not {"compacted", "reset"} & set(slow.words())
    await asyncio.gather(slow.stop(), quick.stop())


async def test_what_is_written_as_nothing_wakes_nobody(registry: Registry) -> None:
    """A watcher of some keys only is not woken for the others, and is at the head all the same."""

    def only_chosen(thing: Thing, notice: FeedEvent[Instance]) -> bytes:
        if isinstance(notice, FeedChange) and notice.member != "chosen":
            return b""
        return type(notice).__name__.encode()

    chunks: list[bytes] = []
    thing = registry.service("default", "game", "g")

    async def read() -> None:
        async for chunk in registry.feed.broadcast(thing, None, only_chosen):
            chunks.append(chunk)  # noqa: PERF401  # it is looked at while the stream goes on

    reading = asyncio.ensure_future(read())
    beside = Client(registry, Writing())
    await eventually(lambda: b"Bookmark" in chunks and beside.words() == ["bookmark"])
    before = len(chunks)
    for number in range(20):
        await put(registry, f"other{number}")
    await eventually(lambda: len(beside.changes()) == 20)
    await put(registry, "chosen")
    await eventually(lambda: len(chunks) > before)
    assert chunks[before:] == [b"FeedChange"]
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await beside.stop()


async def test_streams_are_marked_also_while_nothing_happens(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "BOOKMARK_SECONDS", 0.2)
    monkeypatch.setattr(follower, "TIMER_SECONDS", 0.1)
    await put(registry, "a")
    client = Client(registry, Writing())
    await eventually(lambda: client.words().count("bookmark") >= 4)
    assert {line[2] for line in client.lines} == {str(client.position)}
    await client.stop()


async def test_a_lost_history_is_told_with_the_state_after_it(registry: Registry, store: Store) -> None:
    await put(registry, "a")
    await put(registry, "b")
    client = Client(registry, Writing())
    await eventually(lambda: client.words() == ["state", "state", "bookmark"])
    thing = registry.service("default", "game", "g")
    for key in ("meta", "records", "metadata", "metrics", "states", "deadlines", "changes"):
        await store.write(thing, "DEL", thing.key(key))
    await put(registry, "c")
    await eventually(lambda: "c" in {line[1] for line in client.lines})
    words = client.words()[3:]
    assert words[0] == "reset"
    assert "bookmark" in words[1:]
    await put(registry, "d")
    await eventually(lambda: client.lines[-1][:2] == ["put", "d"])
    await client.stop()


async def test_the_lag_grows_while_the_store_is_silent() -> None:
    """Nobody is told anything then, so it must not wait for somebody to be told."""
    with Standalone() as server:
        async with (
            FaultyProxy(server.node.port) as proxy,
            open_store(StoreSettings(url=proxy.url, prefix="t", deadline_ms=10_000)) as store,
        ):
            registry = Registry(store)
            client = Client(registry, Writing())
            await eventually(lambda: client.words() == ["bookmark"])
            await eventually(lambda: metrics.WATCH_LAG._value.get() < 3, 20)
            proxy.blackhole()
            await eventually(lambda: metrics.WATCH_LAG._value.get() > 4, 20)
            proxy.heal()
            await eventually(lambda: metrics.WATCH_LAG._value.get() < 3, 20)
            await client.stop()


@pytest.mark.topology("standalone")
@pytest.mark.parametrize("seed", range(3))
async def test_random_streams_keep_every_promise_under_faults(seed: int) -> None:
    """Clients that come, go, stop reading and resume, while the store's connection is cut, delayed and silenced."""
    chance = random.Random(seed)
    async with writer_and_reader() as (writer, far, proxy):
        clients = [Client(far, Writing(), 0) for _ in range(8)]
        await eventually(lambda: all(client.lines for client in clients))
        for turn in range(300):
            name = f"i{chance.randrange(12)}"
            if chance.random() < 0.6:
                await put(writer, name, f"h{turn}")
            else:
                await writer.remove("default", "game", "g", name)
            client = chance.choice(clients)
            fate = chance.random()
            if fate < 0.04:
                await client.stop()
                client.start()
            elif fate < 0.1:
                client.may_read.clear()
            elif fate < 0.2:
                client.may_read.set()
            elif fate < 0.23:
                proxy.cut()
            elif fate < 0.25:
                proxy.blackhole()
                await asyncio.sleep(chance.random() / 5)
                proxy.heal()
        thing = writer.service("default", "game", "g")
        changes = (await writer.feed.read(thing, 0, 10_000)).changes
        truth = [[change.kind, change.member, str(change.revision)] for change in changes]

        def settled() -> bool:
            for client in clients:
                client.may_read.set()
                if client.task.done():  # the connection broke under it: it resumes from where it was
                    client.task.exception()
                    client.start()
            return all(client.position == changes[-1].revision for client in clients)

        await eventually(settled, 20)
        for client in clients:
            assert client.changes() == truth, "every change, in order, once, across all interruptions"
            marks = [line for line in client.lines if line[0] == "bookmark"]
            seen = {"0", *(line[2] for line in truth)}
            assert {line[2] for line in marks} <= seen
            await client.stop()


async def test_whoever_is_at_the_head_is_told_when_the_store_closes(server: Standalone, prefix: str) -> None:
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store:
        registry = Registry(store)
        await registry.register("default", Record(type="game", group="g", instance_id="a"))
        clients = [Client(registry, Writing()) for _ in range(3)]
        await eventually(lambda: all("bookmark" in client.words() for client in clients))
    for client in clients:
        with pytest.raises(Closed):
            await client.task
    assert not registry.feed.followers
