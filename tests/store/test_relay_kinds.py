"""A limit that becomes one of another kind while requests run: what was sent before counts, and no key is left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from headgate.relay import upstreams as upstreams_module
from headgate.relay.job_queue import JobQueue
from headgate.relay.jobs import RelaySweep
from headgate.relay.model import Kind, Limit, Outcome, Per
from headgate.relay.permits import BEAT, CANCEL, REPORT, Permit
from headgate.relay.problems import UpstreamUnknown
from headgate.relay.settings import RelaySettings
from headgate.relay.upstreams import GONE_MS, Upstreams
from tests.store.relay_world import PATIENT_MS, Node, nodes, window
from tests.topology import Topology, eventually

AT_ONCE = Limit(kind=Kind.CONCURRENT, count=4)
WINDOW = Limit(count=4, seconds=8.0)
BUCKET = Limit(kind=Kind.BUCKET, burst=4, count=4, seconds=8.0)


@pytest.fixture
async def one(server: Topology, prefix: str) -> AsyncIterator[Node]:
    async with nodes(server.url, prefix, 1, deadline_ms=PATIENT_MS) as started:
        yield started[0]


async def put(node: Node, *limits: Limit, timeout: float = 30.0) -> None:
    await node.upstreams.put("a", window(1, 1, limits=limits, timeout_seconds=timeout))


async def take(node: Node, user: str = "u1") -> Permit:
    policy = (await node.upstreams.get("a")).policy
    permit = await node.permits.acquire("a", policy, user, deadline=asyncio.get_running_loop().time() + 30)
    permit.sending()
    return permit


async def end(*permits: Permit) -> None:
    for permit in permits:
        told = permit.settle(Outcome.ENDED)
        assert told is not None
        await told


async def room(node: Node, user: str = "u1") -> int:
    return (await node.upstreams.figures("a", user))[0].room


async def keys_left(node: Node) -> list[bytes]:
    found: list[bytes] = []
    for link in await node.store.route.primaries():
        reply = await link.send(("KEYS", f"{node.store.prefix}:upstream:*"), node.store.deadline())
        found += cast("list[bytes]", reply)
    return sorted(key.rpartition(b":")[2] for key in found)


@pytest.mark.parametrize("per", list(Per))
async def test_no_key_of_a_user_is_left_by_a_limit_that_was_one_of_requests_at_once(one: Node, per: Per) -> None:
    await put(one, Limit(kind=Kind.CONCURRENT, count=4, per=per))
    permits = [await take(one, user) for user in ("u1", "u2")]
    reported = await take(one, "u3")  # one whose relay dies: only its lease ends it
    await put(one, WINDOW)
    await end(*permits)
    one.permits.hand_over(reported)
    sweep = RelaySweep(one.store, one.upstreams, JobQueue(one.store, one.upstreams, RelaySettings()))
    for seconds in range(5, 80, 5):  # as if we had waited, and a worker had looked every now and then
        one.store.advance_clock(seconds * 1000)
        await sweep.visit("a")
    assert set(await keys_left(one)) <= {b"meta", b"policy", b"relays"}


@pytest.mark.parametrize("before", [AT_ONCE, WINDOW, BUCKET], ids=lambda limit: f"from {limit.kind}")
@pytest.mark.parametrize("after", [AT_ONCE, WINDOW, BUCKET], ids=lambda limit: f"to {limit.kind}")
async def test_what_is_in_flight_counts_in_a_limit_of_any_kind(one: Node, before: Limit, after: Limit) -> None:
    await put(one, before)
    permits = [await take(one) for _ in range(3)]
    await put(one, after)
    assert await room(one) == 1
    await end(permits[0])
    assert await room(one) == (2 if after.kind is Kind.CONCURRENT else 1)


@pytest.mark.parametrize("before", [AT_ONCE, WINDOW, BUCKET], ids=lambda limit: f"from {limit.kind}")
@pytest.mark.parametrize("after", [WINDOW, BUCKET], ids=lambda limit: f"to {limit.kind}")
async def test_what_was_answered_counts_in_a_limit_of_another_kind(one: Node, before: Limit, after: Limit) -> None:
    await put(one, before)
    await end(*[await take(one) for _ in range(4)])
    if before is AT_ONCE:
        await end(*[await take(one) for _ in range(3)])
    await put(one, after)
    assert await room(one) == 0


@pytest.mark.parametrize("between", [AT_ONCE, WINDOW], ids=lambda limit: f"with {limit.kind} between")
async def test_a_bucket_that_comes_back_counts_what_was_answered_meanwhile(one: Node, between: Limit) -> None:
    bucket = Limit(kind=Kind.BUCKET, burst=4, count=4, seconds=800.0)
    await put(one, bucket)
    await end(await take(one))
    await put(one, between)
    await end(*[await take(one) for _ in range(3)])
    await put(one, bucket)
    assert await room(one) == 0


async def test_a_limit_that_users_share_begins_with_what_they_sent_each_for_themselves(one: Node) -> None:
    await put(one, WINDOW)
    await end(*[await take(one, user) for user in ("u1", "u2", "u3")])
    await put(one, Limit(count=4, seconds=8.0, per=Per.UPSTREAM))
    figures, _, wait_ms = await one.upstreams.figures("a", "u4")
    # The last of it may arrive until its lease ends, and counts for a window then.
    assert figures.held_ms > 8000 + 30_000
    assert wait_ms > 8000 + 30_000


async def test_a_shared_limit_that_comes_back_does_not_wait_for_those_who_waited_for_it_before(one: Node) -> None:
    shared = Limit(count=1, seconds=0.2, per=Per.UPSTREAM)
    await put(one, shared, timeout=0.5)
    first = await take(one, "u1")
    waiting = [asyncio.ensure_future(take(one, user)) for user in ("u2", "u3")]

    async def both_wait() -> bool:
        return sum([(await one.upstreams.figures("a", user))[0].waiting for user in ("u2", "u3")]) == 2

    await eventually(both_wait)
    await put(one, WINDOW, timeout=0.5)
    await end(first, *await asyncio.gather(*waiting))
    await put(one, shared, timeout=0.5)
    await end(await take(one, "u4"))


async def test_nothing_is_left_of_a_removed_upstream_but_a_note_that_ends(one: Node) -> None:
    await put(one, WINDOW)
    permits = [await take(one, user) for user in ("u1", "u2")]
    await end(permits[0])
    sweep = RelaySweep(one.store, one.upstreams, JobQueue(one.store, one.upstreams, RelaySettings()))
    await one.upstreams.remove("a")
    for seconds in (20, 40, 60, 80):
        one.store.advance_clock(seconds * 1000)
        gone = await sweep.visit("a")
    assert gone
    # What comes late finds that it is gone, and leaves nothing: not its end, not a sign of life, not a report.
    await end(permits[1])
    thing = one.upstreams.thing("a")
    await one.store.run(BEAT, thing, one.permits.process, "", "")
    await one.store.run(CANCEL, thing, "u3", "r1.1.1", 1000, user="u3")
    await one.store.run(REPORT, thing, "u4", 1000, "r1.2.1", user="u4")
    assert await keys_left(one) == [b"policy"]
    left_ms = cast("int", await one.store.read(thing, "PTTL", thing.key("policy")))
    assert 0 < left_ms <= GONE_MS
    assert (await one.upstreams.put("a", window(1, 1))).version == 2
    assert await one.store.read(thing, "PTTL", thing.key("policy")) == -1


async def test_a_relay_forgets_an_upstream_that_was_removed(one: Node) -> None:
    await put(one, WINDOW)
    await end(await take(one))
    await one.upstreams.remove("a")
    await eventually(lambda: not one.permits._states)


async def test_a_policy_that_was_not_seen_for_long_is_not_brought_back(
    one: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note that it was removed may have ended meanwhile."""
    await put(one, WINDOW)
    thing = one.upstreams.thing("a")
    monkeypatch.setattr(upstreams_module, "RESTORE_SECONDS", 0.0)
    await one.store.write(thing, "DEL", thing.key("policy"), again=True)
    with pytest.raises(UpstreamUnknown):
        await one.upstreams.get("a", fresh=True)


@pytest.mark.parametrize("anew", [False, True], ids=["brought back", "written anew"])
@pytest.mark.parametrize("after", [WINDOW, BUCKET], ids=["window", "bucket"])
async def test_a_loss_counts_as_a_full_window_of_a_limit_that_came_after_it(
    one: Node, after: Limit, anew: bool
) -> None:
    await put(one, AT_ONCE)
    await end(await take(one))
    for link in await one.store.route.primaries():
        for key in cast("list[bytes]", await link.send(("KEYS", f"{one.store.prefix}:*"), one.store.deadline())):
            await link.send(("DEL", key), one.store.deadline())
    if anew:  # by an operator whose process does not remember it
        await Upstreams(one.store).put("a", (await one.upstreams.get("a")).policy)
    await one.upstreams.get("a", fresh=True)  # this relay remembers the policy and brings it back
    await put(one, after)
    figures = (await one.upstreams.figures("a", "u1"))[0]
    assert figures.held_ms > 5000
    one.store.advance_clock(9000)
    assert (await one.upstreams.figures("a", "u1"))[0].held_ms == 0


PACED = Limit(kind=Kind.PACED, every_ms=2000)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (WINDOW, PACED),
        (Limit(count=4, seconds=8.0, per=Per.UPSTREAM), PACED),
        (
            Limit(count=4, seconds=8.0, per=Per.UPSTREAM),
            Limit(kind=Kind.PACED, every_ms=2000, per=Per.UPSTREAM),
        ),
    ],
    ids=["user", "shared to user", "shared"],
)
async def test_a_window_that_becomes_a_pace_counts_until_it_has_forgotten(
    one: Node, before: Limit, after: Limit
) -> None:
    """Ten a minute that become one in six seconds: nobody may get ten at once and the next six seconds later."""
    await put(one, before)
    await end(*[await take(one) for _ in range(4)])
    await put(one, after)
    await put(one, after)  # written again, it is not forgotten
    _, _, wait_ms = await one.upstreams.figures("a", "u1")
    assert wait_ms > 6000


async def test_a_limit_that_is_raised_is_in_force_at_once(one: Node) -> None:
    await put(one, WINDOW)
    await end(*[await take(one) for _ in range(4)])
    await put(one, Limit(count=6, seconds=8.0))
    assert await room(one) == 2
    await put(one, Limit(count=4, seconds=8.0))
    await put(one, Limit(kind=Kind.CONCURRENT, count=4))
    assert await room(one) == 4


async def test_a_policy_that_is_written_again_and_again_keeps_a_bounded_number_of_old_windows(one: Node) -> None:
    for number in range(30):
        await put(one, Limit(count=4, seconds=600.0 + number))
    await put(one, Limit(kind=Kind.PACED, every_ms=600_000))
    thing = one.upstreams.thing("a")
    kept = cast("bytes", await one.store.read(thing, "HGET", thing.key("policy"), "outgoing"))
    assert 0 < kept.count(b";") <= 8
