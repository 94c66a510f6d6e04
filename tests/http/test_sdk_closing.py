"""A client that closes while somebody still uses it, in either mode: everybody is told at once, and nothing goes on behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

import pytest

from headgate.kit.problems import HeadgateError
from headgate.sdk import Closed, Headgate, HeadgateSync, Marked, Registry
from headgate.sdk.backends.registry import RegistryEvent
from headgate.waiting_room.policy import PolicyChange
from tests.http.two_modes import Make
from tests.processes import GatewayProcess
from tests.topology import Topology, eventually

BEATS = 40  # of the loop: from before a question is sent until long after its answer
LONG_TTL = 60.0

CALLS: dict[str, Callable[[Headgate], Awaitable[object]]] = {
    "entry": lambda hg: hg.queue.entry("ann"),
    "status": lambda hg: hg.queue.status("nobody"),
    "redeem": lambda hg: hg.queue.redeem("0" * 26, session_id="s"),
    "register": lambda hg: hg.registry.register(type="t", group="g", instance_id="i", port=1, private_ip="10.0.0.1"),
    "discover": lambda hg: hg.registry.discover("t", "g"),
    "show": lambda hg: hg.locks.show("a"),
    "list": lambda hg: hg.config.list("a"),
    "upstreams": lambda hg: hg.relay.upstreams(),
}

FOLLOWS: dict[str, Callable[[Headgate], AsyncIterator[object]]] = {
    "service": lambda hg: hg.registry.watch("t", "g"),
    "type": lambda hg: hg.registry.watch("t"),
    "config": lambda hg: hg.config.watch("a"),
    "lock": lambda hg: hg.locks.watch("a"),
    "leader": lambda hg: hg.election("a").observe(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_call_on_its_way_is_answered_or_told(make: Make, call: Callable[[Headgate], Awaitable[object]]) -> None:
    for beats in range(0, BEATS, 3):
        before = asyncio.all_tasks()
        async with make() as hg:
            await hg.locks.show("warm")
            asking = asyncio.ensure_future(call(hg))
            for _ in range(beats):
                await asyncio.sleep(0)
        # Nobody cancelled the caller: it hears a reason, and may be in a group that must not end in silence.
        error = (await asyncio.gather(asking, return_exceptions=True))[0]
        assert not isinstance(error, BaseException) or isinstance(error, HeadgateError), repr(error)
        await eventually(lambda before=before: asyncio.all_tasks() <= before)  # type: ignore[misc]
        with pytest.raises(Closed):
            await call(hg)


@pytest.mark.parametrize("follow", FOLLOWS.values(), ids=FOLLOWS)
async def test_whoever_follows_is_told(make: Make, follow: Callable[[Headgate], AsyncIterator[object]]) -> None:
    for wait in (0.0, 0.3):  # before and after the first answer
        before = asyncio.all_tasks()
        async with make() as hg:

            async def read(hg: Headgate = hg) -> None:
                async for _ in follow(hg):
                    pass

            reading = asyncio.create_task(read())
            await asyncio.sleep(wait)
        await eventually(reading.done)
        with pytest.raises(Closed):
            await reading
        await eventually(lambda before=before: asyncio.all_tasks() <= before)  # type: ignore[misc]


async def test_whoever_waits_in_line_is_told(make: Make, hg: Headgate) -> None:
    await hg.queues.configure("slow", PolicyChange(capacity=0))
    entry = await hg.queue.entry("ann", queue="slow")
    async with make() as other:

        async def wait() -> None:
            async for _ in other.queue.wait(entry.user_id, queue="slow", place_token=entry.place_token):
                seen.set()

        seen = asyncio.Event()
        waiting = asyncio.create_task(wait())
        await seen.wait()
    await eventually(waiting.done)
    with pytest.raises(Closed):
        await waiting


@pytest.mark.parametrize("wait", [None, 0])
async def test_a_lock_that_is_asked_for_is_not_kept(make: Make, hg: Headgate, wait: float | None) -> None:
    for number in range(25):
        async with make() as closing:
            await closing.locks.show("warm")
            asking = asyncio.ensure_future(closing.lock(f"lock-{number}", ttl=LONG_TTL, wait=wait).acquire())
            for _ in range(3):
                await asyncio.sleep(0)
            await asyncio.sleep(number * 0.0002)
        await asyncio.gather(asking, return_exceptions=True)

    async def free() -> bool:
        return not any(state.held for state in await hg.locks.list())

    await eventually(free)


async def test_a_lock_that_is_being_released_is_free(make: Make, hg: Headgate) -> None:
    for beats in range(0, BEATS, 2):
        async with make() as closing:
            held = await closing.lock("a", ttl=LONG_TTL).acquire()
            releasing = asyncio.ensure_future(held.release())
            for _ in range(beats):
                await asyncio.sleep(0)
        await asyncio.gather(releasing, return_exceptions=True)
        async with hg.lock("a", ttl=LONG_TTL, wait=10):
            pass


@pytest.fixture(params=["store", "http"])
def sync(request: pytest.FixtureRequest, server: Topology, gateway_process: GatewayProcess) -> HeadgateSync:
    if request.param == "store":
        return HeadgateSync(server.url, prefix=gateway_process.prefix)
    return HeadgateSync(gateway_process.url, token=gateway_process.token)


USES: dict[str, Callable[[HeadgateSync], object]] = {
    "calls": lambda hg: [hg.config.list("a") for _ in iter(int, 1)],
    "watch": lambda hg: list(hg.config.watch("a")),
    "observe": lambda hg: list(hg.election("a").observe()),
    "acquire": lambda hg: hg.lock("held", ttl=LONG_TTL).acquire(),
    "view": lambda hg: list(hg.locks.watch("a")),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_threads_that_use_it_are_told(sync: HeadgateSync, use: Callable[[HeadgateSync], object]) -> None:
    told: list[BaseException] = []

    def work() -> None:
        try:
            use(sync)
        except BaseException as error:  # noqa: BLE001 -- whatever it is, the test looks at it
            told.append(error)

    with sync:
        sync.lock("held", ttl=LONG_TTL).acquire()
        threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        threads[0].join(0.3)
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert len(told) == 3
    assert all(isinstance(error, Closed) for error in told), told
    with pytest.raises(Closed):
        sync.config.list("a")


async def test_the_registry_starts_nothing_after_its_stop(make: Make) -> None:
    for beats in range(0, BEATS, 3):
        before = asyncio.all_tasks()
        async with make() as hg:
            await hg.registry.register(hostname="h", type="t", group="g", instance_id="i")
            asking = [
                asyncio.ensure_future(hg.registry.subscribe("t/g", lambda _: None)),
                asyncio.ensure_future(hg.registry.cached("t")),
                asyncio.ensure_future(_present(hg)),
            ]
            for _ in range(beats):
                await asyncio.sleep(0)
            registry = hg.registry
        for error in await asyncio.gather(*asking, return_exceptions=True):
            assert not isinstance(error, BaseException) or isinstance(error, Closed), repr(error)
        await eventually(lambda before=before: asyncio.all_tasks() <= before)  # type: ignore[misc]
        for late in (registry.subscribe("t/g", lambda _: None), registry.cached("t", "g"), _present_in(registry)):
            with pytest.raises(Closed):
                await late
        with pytest.raises(Closed):
            registry.start_auto_heartbeat("i")
        assert asyncio.all_tasks() <= before


async def test_whoever_waits_for_a_first_answer_is_told_of_the_stop(make: Make) -> None:
    async with make() as hg:
        hg.registry._backend.watch = _silent  # type: ignore[method-assign]
        asking = asyncio.ensure_future(hg.registry.cached("t", "g"))
        await eventually(lambda: hg.registry._following)
    with pytest.raises(Closed):
        await asking


async def test_an_offer_whose_client_was_closed_ends_its_beats_and_is_left_in_peace(make: Make, hg: Headgate) -> None:
    await hg.queues.configure("q", PolicyChange())
    async with make() as other:
        offer = other.queue.offer_seats(capacity=1, address="ws://here", queue="q")
        await offer.__aenter__()
    offer.beat_soon()
    beating = offer._beating
    assert beating is not None
    await eventually(beating.done)
    assert offer.draining.is_set()
    beating.result()  # in peace
    await offer.__aexit__(None, None, None)


async def _present(hg: Headgate) -> None:
    await _present_in(hg.registry)


async def _present_in(registry: Registry) -> None:
    made = await registry.register(hostname="h", type="t", group="g")
    registry.start_auto_heartbeat(made.instance_id)


async def _silent(type: str, group: str | None, position: str | None) -> AsyncGenerator[RegistryEvent, None]:
    await asyncio.Event().wait()
    yield Marked("never")
