"""A reply is lost after the call ran: nothing runs twice, and the caller hears the truth."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest

from headgate.kit.problems import OutcomeUnknown, StoreUnavailable
from headgate.store import Batch, Store, StoreSettings, Thing, open_store
from tests.faults.load import SLACK_SECONDS, Load, Outcome
from tests.store.scripts import NOTE, TALLY, TALLY_ALL
from tests.topology import FaultyProxy, Standalone, Stopwatch, eventually

pytestmark = pytest.mark.topology("standalone", "redis")
DEADLINE = 2.5  # longer than a busy machine stands still


@pytest.fixture
def server(fresh_server: Callable[..., Standalone]) -> Standalone:
    """A server of one's own."""
    return fresh_server()


@pytest.fixture
async def proxy(anyio_backend: str, server: Standalone) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy(server.node.port) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: FaultyProxy, prefix: str) -> AsyncIterator[Store]:
    """A store behind a proxy; the scripts are known to the server already."""
    settings = StoreSettings(url=proxy.url, prefix=prefix, deadline_ms=int(DEADLINE * 1000))
    async with open_store(settings) as store:
        other = store.thing("t", "default", "other")
        await store.run(TALLY, other, "a")
        await store.run(NOTE, other, "a", "text")
        await store.run(TALLY_ALL, other, "a")
        yield store


@pytest.fixture
def thing(store: Store) -> Thing:
    return store.thing("t", "default", "x")


def runs(server: Standalone, thing: Thing, identity: str = "id") -> int:
    """How often a call really ran."""
    return int(server.node.command("HGET", thing.key("runs"), identity) or 0)


@pytest.mark.parametrize("cut", [True, False], ids=["and the connection too", "and the connection stays"])
async def test_a_call_that_may_not_be_repeated_runs_once_and_is_unknown(
    server: Standalone, proxy: FaultyProxy, store: Store, thing: Thing, cut: bool
) -> None:
    proxy.drop_replies(cut=cut)
    with pytest.raises(OutcomeUnknown):
        await store.run(TALLY, thing, "id")
    proxy.heal()
    assert await store.run(NOTE, thing, "after", "text") == [b"after", b"text", 1]
    assert runs(server, thing) == 1


@pytest.mark.parametrize("cut", [True, False], ids=["and the connection too", "and the connection stays"])
async def test_a_batch_that_may_not_be_repeated_runs_once_and_is_unknown_to_all(
    server: Standalone, proxy: FaultyProxy, store: Store, thing: Thing, cut: bool
) -> None:
    batch = Batch(store, TALLY_ALL)
    proxy.drop_replies(cut=cut)
    ids = [f"id-{n}" for n in range(20)]
    outcomes = await asyncio.gather(*(batch.call(thing, identity) for identity in ids), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {OutcomeUnknown}
    proxy.heal()
    assert await store.run(NOTE, thing, "after", "text") == [b"after", b"text", 1]
    assert [runs(server, thing, identity) for identity in ids] == [1] * 20


async def test_a_call_that_may_be_repeated_is_and_gives_the_first_answer(
    server: Standalone, proxy: FaultyProxy, store: Store, thing: Thing
) -> None:
    proxy.drop_replies(cut=True)
    call = asyncio.create_task(store.run(NOTE, thing, "id", "text"))
    await eventually(lambda: runs(server, thing) == 1)
    proxy.heal()
    assert await call == [b"id", b"text", 2]


@pytest.mark.quiet
async def test_a_repeatable_call_without_any_answer_ends_at_its_deadline(
    server: Standalone, proxy: FaultyProxy, store: Store, thing: Thing
) -> None:
    """The reply is awaited to the end: sending it again on the same connection could help nobody."""
    proxy.drop_replies()
    watch = Stopwatch()
    with pytest.raises(StoreUnavailable):
        await store.run(NOTE, thing, "id", "text")
    assert watch.seconds < DEADLINE + SLACK_SECONDS
    assert runs(server, thing) == 1


async def test_what_was_never_sent_is_not_unknown(proxy: FaultyProxy, store: Store, thing: Thing) -> None:
    await proxy.refuse()
    await eventually(lambda: store.route.ready(0) is None)
    with pytest.raises(StoreUnavailable) as caught:
        await store.run(TALLY, thing, "id")
    assert not isinstance(caught.value, OutcomeUnknown)


async def test_a_late_reply_is_not_taken_for_the_next_callers(proxy: FaultyProxy, store: Store, thing: Thing) -> None:
    """The reply comes after its caller's deadline, on a connection that is still in use."""
    loop = asyncio.get_running_loop()
    proxy.hold()
    with pytest.raises(OutcomeUnknown):
        await store.run(TALLY, thing, "late", deadline=loop.time() + 0.2)
    waiting = asyncio.create_task(store.run(NOTE, thing, "next", "text"))
    await asyncio.sleep(0)
    links = set(proxy.links)
    proxy.heal()
    assert await waiting == [b"next", b"text", 1]
    assert links <= proxy.links


@pytest.mark.quiet
async def test_any_mixture_of_faults_tells_every_caller_the_truth(proxy: FaultyProxy, store: Store) -> None:
    """Refused means not run, ok means run, and nothing that may not be repeated ran twice."""
    dice = random.Random(11)
    things = [store.thing("t", "default", f"x{n}") for n in range(3)]
    faults: list[Callable[[], object]] = [
        proxy.drop_replies,
        lambda: proxy.drop_replies(cut=True),
        proxy.hold,
        proxy.blackhole,
        proxy.cut,
        lambda: proxy.slice(1),
        lambda: proxy.delay(0.05),
    ]
    async with Load(store, things, callers=30) as load:
        for _ in range(24):
            dice.choice(faults)()
            await asyncio.sleep(dice.uniform(0.02, 0.4))
            proxy.heal()
            await asyncio.sleep(dice.uniform(0, 0.2))
        await load.resumed(asyncio.get_running_loop().time(), 5)
    assert load.slowest() < DEADLINE + SLACK_SECONDS
    seen = load.outcomes()
    assert seen[Outcome.UNKNOWN] > 0
    assert seen[Outcome.OK] > 100
    await load.check(kept=True)
