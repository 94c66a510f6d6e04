"""Group commit: callers share calls, and nothing else."""

from __future__ import annotations

import asyncio
import gc
from typing import cast

import anyio
import pytest
import uvloop
from structlog.contextvars import bound_contextvars, get_contextvars

from headgate.kit.problems import Closed, HeadgateError, RateLimited, StoreUnavailable
from headgate.store import Batch, BatchedCall, Store, StoreSettings, Thing, open_store
from headgate.store.client.link import Reply
from headgate.store.errors import ScriptFailed
from tests.store.scripts import ECHO
from tests.topology import FaultyProxy, Standalone, Stopwatch, Topology

GREETING = "hello"


@pytest.fixture
async def batch(store: Store) -> Batch:
    return Batch(store, ECHO, shared=lambda thing: (GREETING,), most=10)


@pytest.fixture
def thing(store: Store) -> Thing:
    return store.thing("t", "default", "x")


async def sizes(store: Store, thing: Thing) -> list[int]:
    """How many items each call had, in order."""
    return [int(size) for size in cast("list[bytes]", await store.read(thing, "LRANGE", thing.key("calls"), 0, -1))]


async def test_a_lone_caller_waits_for_nobody(batch: Batch, store: Store, thing: Thing) -> None:
    assert await batch.call(thing, "one") == [b"hello", b"one"]
    assert await sizes(store, thing) == [1]


async def test_concurrent_callers_share_calls_of_bounded_size(batch: Batch, store: Store, thing: Thing) -> None:
    replies = await asyncio.gather(*(batch.call(thing, f"item-{n}") for n in range(95)))
    assert replies == [[b"hello", f"item-{n}".encode()] for n in range(95)]
    calls = await sizes(store, thing)
    assert sum(calls) == 95
    assert max(calls) == 10
    assert len(calls) <= 12


async def test_things_do_not_mix(batch: Batch, store: Store) -> None:
    things = [store.thing("t", "default", f"x{n}") for n in range(20)]
    await asyncio.gather(*(batch.call(thing, thing.name) for thing in things for _ in range(3)))
    for thing in things:
        assert await store.read(thing, "HGETALL", thing.key("items")) == [thing.name.encode(), b"3"]


def test_a_deadline_that_has_passed_troubles_nobody_else_on_another_kind_of_loop(server: Topology, prefix: str) -> None:
    """The timers of uvloop whose time has come already are of another kind."""

    async def work() -> Reply | BaseException:
        async with open_store(StoreSettings(url=server.url, prefix=prefix, deadline_ms=10_000)) as store:
            batch = Batch(store, ECHO, shared=lambda thing: (GREETING,), most=10)
            thing = store.thing("t", "default", "x")
            late = batch.call(thing, "late", deadline=asyncio.get_running_loop().time() - 1)
            _, one = await asyncio.gather(late, batch.call(thing, "one"), return_exceptions=True)
            return one

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(work()) == [b"hello", b"one"]


async def test_a_refused_item_is_its_callers_alone(batch: Batch, thing: Thing) -> None:
    one, refused, two = await asyncio.gather(
        *(batch.call(thing, item) for item in ("one", "refuse", "two")), return_exceptions=True
    )
    assert (one, two) == ([b"hello", b"one"], [b"hello", b"two"])
    assert isinstance(refused, RateLimited)
    assert refused.detail == "not this one"


async def test_an_item_that_breaks_the_call_breaks_it_for_its_caller_only(batch: Batch, thing: Thing) -> None:
    items = ("one", "break", "two", "break", "three")
    replies = await asyncio.gather(*(batch.call(thing, item) for item in items), return_exceptions=True)
    for item, reply in zip(items, replies, strict=True):
        if item == "break":
            assert isinstance(reply, ScriptFailed)
        else:
            assert reply == [b"hello", item.encode()]


async def test_an_argument_that_cannot_be_sent_is_its_callers_mistake_alone(batch: Batch, thing: Thing) -> None:
    async with asyncio.timeout(5):
        one, wrong, two = await asyncio.gather(
            *(batch.call(thing, item) for item in ("one", "\ud800", "two")), return_exceptions=True
        )
    assert (one, two) == ([b"hello", b"one"], [b"hello", b"two"])
    assert isinstance(wrong, UnicodeEncodeError)


async def test_a_script_that_does_not_fit_is_told_to_its_callers(store: Store, thing: Thing) -> None:
    batch = Batch(store, ECHO)  # without its shared argument each item is taken for it
    async with asyncio.timeout(5):
        with pytest.raises(ScriptFailed, match="one reply for each item"):
            await batch.call(thing, "one")


async def test_a_cancelled_caller_takes_nobody_along(batch: Batch, store: Store, thing: Thing) -> None:
    """Cancel each of the callers in turn, before departure and in flight: the others get their own answers."""
    for turns in range(4):
        tasks = [batch.call(thing, f"{turns}-{n}") for n in range(30)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        replies = await asyncio.gather(*tasks, return_exceptions=True)
        for n, reply in enumerate(replies):
            if n % 3 == 0 and isinstance(reply, asyncio.CancelledError):
                continue
            assert reply == [b"hello", f"{turns}-{n}".encode()]
    assert await batch.call(thing, "last") == [b"hello", b"last"]


async def test_who_is_cancelled_before_departure_is_not_sent(batch: Batch, store: Store, thing: Thing) -> None:
    gone = batch.call(thing, "gone")
    here = batch.call(thing, "here")
    await asyncio.sleep(0)
    gone.cancel()
    assert await here == [b"hello", b"here"]
    assert await store.read(thing, "HKEYS", thing.key("items")) in ([b"here"], [b"gone", b"here"])


@pytest.mark.topology("standalone")
async def test_every_caller_is_told_within_its_own_deadline(server: Standalone, prefix: str) -> None:
    """Callers keep coming while the store is silent; none waits for a later one's deadline."""
    async with FaultyProxy(server.node.port) as proxy:
        async with open_store(StoreSettings(url=proxy.url, prefix=prefix, deadline_ms=10_000)) as store:
            store.deadline_seconds = 0.8
            batch = Batch(store, ECHO, shared=lambda thing: (GREETING,), most=10)
            thing = store.thing("t", "default", "x")
            await batch.call(thing, "first", deadline=anyio.current_time() + 10)
            proxy.hold()
            late: list[float] = []

            async def call(n: int) -> None:
                watch = Stopwatch()
                with pytest.raises(StoreUnavailable):
                    await batch.call(thing, f"item-{n}")
                late.append(watch.seconds)

            async with anyio.create_task_group() as callers:
                for n in range(150):
                    callers.start_soon(call, n)
                    await anyio.sleep(0.01)
            assert len(late) == 150
            assert max(late) < 0.8 + 0.3
            proxy.heal()
            after = await batch.call(thing, "after", deadline=anyio.current_time() + 10)
            assert after == [b"hello", b"after"]


@pytest.mark.topology("standalone")
async def test_an_impatient_caller_does_not_hurry_the_others(server: Standalone, prefix: str) -> None:
    async with FaultyProxy(server.node.port) as proxy:
        async with open_store(StoreSettings(url=proxy.url, prefix=prefix, deadline_ms=10_000)) as store:
            batch = Batch(store, ECHO, shared=lambda thing: (GREETING,))
            thing = store.thing("t", "default", "x")
            await batch.call(thing, "first")
            proxy.delay(0.3)
            loop = asyncio.get_running_loop()
            patient = batch.call(thing, "patient")
            with pytest.raises(StoreUnavailable):
                await batch.call(thing, "hasty", deadline=loop.time() + 0.1)
            assert await patient == [b"hello", b"patient"]


async def test_nothing_is_kept_for_things_that_nobody_calls(batch: Batch, store: Store) -> None:
    async def call(n: int) -> None:
        await batch.call(store.thing("t", "default", f"x{n}"), "refuse" if n % 2 else "item")

    await asyncio.gather(*(call(n) for n in range(100)), return_exceptions=True)
    await asyncio.sleep(0)
    assert batch._states == {}


async def test_a_reply_is_handed_out_in_the_moment_it_is_there_and_without_a_task(
    batch: Batch, store: Store, thing: Thing
) -> None:
    await batch.call(thing, "first")
    seat = batch.call(thing, "one")
    inside: list[bool] = []
    seat.callback = lambda done: inside.append(asyncio.current_task() is None and done.result() == [b"hello", b"one"])
    tasks = asyncio.all_tasks()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == tasks
    await seat
    assert inside == [True]
    assert seat.callback is None


async def test_who_is_handed_a_reply_may_call_again_at_once(batch: Batch, thing: Thing) -> None:
    await batch.call(thing, "first")
    more: list[BatchedCall] = []
    seats = [batch.call(thing, f"{n}") for n in range(25)]
    for seat in seats:
        seat.callback = lambda _: more.append(batch.call(thing, "again"))
    await asyncio.gather(*seats)
    assert await asyncio.gather(*more) == [[b"hello", b"again"]] * 25


@pytest.mark.topology("standalone")
async def test_a_call_that_was_sent_before_its_script_was_forgotten_is_sent_again(
    server: Standalone, batch: Batch, store: Store, thing: Thing
) -> None:
    await batch.call(thing, "first")
    server.node.command("SCRIPT", "FLUSH")
    assert await asyncio.gather(*(batch.call(thing, f"{n}") for n in range(5))) == [
        [b"hello", f"{n}".encode()] for n in range(5)
    ]
    assert await store.read(thing, "HGETALL", thing.key("items")) == [
        part for item in (b"first", b"0", b"1", b"2", b"3", b"4") for part in (item, b"1")
    ]


async def test_a_mistake_of_ours_before_departure_is_told_and_keeps_nobody_from_going(
    store: Store, thing: Thing
) -> None:
    mistaken = False

    def shared(thing: Thing) -> tuple[str, ...]:
        if mistaken:
            raise IndexError("not there")
        return (GREETING,)

    batch = Batch(store, ECHO, shared=shared, most=2)
    await batch.call(thing, "first")
    for flying in (False, True):
        seats = [batch.call(thing, "one") for _ in range(8)]
        if flying:
            await asyncio.sleep(0)
        mistaken = True
        async with asyncio.timeout(5):
            told = await asyncio.gather(*seats, return_exceptions=True)
        assert isinstance(told[-1], IndexError)
        mistaken = False
        assert await batch.call(thing, "after") == [b"hello", b"after"]


async def test_what_a_script_says_to_all_is_read_once_and_found_by_each(store: Store, thing: Thing) -> None:
    read: list[Reply] = []

    def preface(_: Thing, said: Reply) -> int:
        read.append(said)
        return len(read)

    # The first item's reply stands for the preface here: the script sees one more than there are callers.
    batch = Batch(store, ECHO, shared=lambda thing: (GREETING, "all"), preface=preface)
    for turn in (1, 2):
        seats = [batch.call(thing, f"{n}") for n in range(3)]
        assert await asyncio.gather(*seats) == [[b"hello", f"{n}".encode()] for n in range(3)]
        assert [seat.preface for seat in seats] == [turn] * 3
    assert read == [[b"hello", b"all"]] * 2


@pytest.mark.topology("standalone")
async def test_whoever_waits_when_the_store_is_closed_is_told(server: Standalone, prefix: str) -> None:
    async with FaultyProxy(server.node.port) as proxy:
        async with open_store(StoreSettings(url=proxy.url, prefix=prefix, deadline_ms=10_000)) as store:
            batch = Batch(store, ECHO, shared=lambda thing: (GREETING,), most=2)
            thing = store.thing("t", "default", "x")
            await batch.call(thing, "first")
            proxy.hold()
            seats = [batch.call(thing, f"{n}") for n in range(10)]
            told: list[bool] = []
            for seat in seats:
                seat.callback = lambda done: told.append(isinstance(done.exception(), Closed))
            await asyncio.sleep(0.01)
        assert told == [True] * 10
        assert not store.tasks._tasks
        assert batch._states == {}


async def test_replies_are_handed_out_in_nobodys_context(batch: Batch, store: Store, thing: Thing) -> None:
    """A link outlives the request for which it was opened, and so must not name it in the log lines of others."""
    await batch.call(thing, "first")
    for link in store.route._links.values():
        link.close()
    with bound_contextvars(trace_id="of who opened the link"):
        await batch.call(thing, "second")
    seen: list[dict[str, object]] = []
    seat = batch.call(thing, "third")
    seat.callback = lambda _: seen.append(get_contextvars())
    await seat
    assert seen == [{}]


async def test_calls_leave_nothing_to_the_garbage_collector(batch: Batch, thing: Thing) -> None:
    await batch.call(thing, "first")
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            await asyncio.gather(*(batch.call(thing, f"{n}") for n in range(20)))
        assert gc.collect() < 20
    finally:
        gc.enable()


def test_problems_can_be_copied_with_all_they_say() -> None:
    """The batch gives each caller an exception of its own, so every problem must take what it gives out."""
    for problem in HeadgateError.__subclasses__():
        assert problem("words", retry_after=1, field="x").document()["detail"] == "words"
