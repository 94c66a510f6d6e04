"""Answers of 429: how long nobody sends, who goes first, and what becomes of the request that was refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headgate.relay.forwarder import RelayRequest
from headgate.relay.model import JobState, Limit, Order, Outcome, Per, Retry
from headgate.relay.relay import Relay
from headgate.relay.request_body import BufferedBody
from headgate.relay.wire import JobView
from headgate.store import StoreSettings, open_store
from tests.store.relay_world import OK, PATIENT_MS, Scripted, running, window
from tests.topology import FaultyProxy, Stopwatch, Topology, eventually

PAST = "Wed, 21 Oct 2015 07:28:00 GMT"


def refusal(retry_after: str = "0", body: bytes = b"no") -> bytes:
    return b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: %b\r\nContent-Length: 2\r\n\r\n%b" % (
        retry_after.encode(),
        body,
    )


@pytest.fixture
async def relay(server: Topology, prefix: str) -> AsyncIterator[Relay]:
    settings = StoreSettings(url=server.url, prefix=prefix, deadline_ms=PATIENT_MS)
    async with open_store(settings) as store, Relay(store) as made:
        await made.upstreams.note_new_store()
        yield made


async def send(relay: Relay, *, units: int = 1, seconds: float = 20.0, user: str = "u1", method: str = "POST") -> int:
    """Send one request through the relay and read its whole answer; give its status."""
    view = await relay.upstreams.get("a")
    request = RelayRequest(method, b"/x", [(b"x-user-id", user.encode())], BufferedBody(b"b"), user, units)
    deadline = asyncio.get_running_loop().time() + seconds
    async with relay.forwarder.forward(view, request, deadline=deadline) as answer:
        async for _ in answer.chunks:
            pass
        return answer.status


@pytest.mark.parametrize("per", list(Per))
async def test_requests_that_cost_more_than_one_permit_go_on_after_a_refusal(relay: Relay, per: Per) -> None:
    async with Scripted(lambda number: refusal() if number == 1 else OK).open() as upstream:
        await relay.upstreams.put(
            "a", window(1, 1, base_url=upstream.url, limits=(Limit(count=10, seconds=0.3, per=per),))
        )
        statuses = await asyncio.gather(*(send(relay, units=6, user=f"u{number % 2}") for number in range(8)))
    assert statuses == [200] * 8


async def test_one_request_goes_first_after_a_refusal_and_the_others_only_when_it_was_answered(relay: Relay) -> None:
    """Three are in flight when the first of them is refused: that the others are answered well ends no pause."""
    says = [refusal(), OK, OK, refusal(), OK]
    async with Scripted(lambda number: says[number - 1] if number <= len(says) else OK).open() as upstream:
        await relay.upstreams.put("a", window(3, 0.2, base_url=upstream.url))
        statuses = await asyncio.gather(*(send(relay, units=1) for _ in range(6)))
        assert statuses == [200] * 6
        # The fourth went first and was refused as well, which doubles the pause; the fifth went first and alone.
        _, _, third, fourth, fifth, *_ = upstream.arrivals
        assert fourth - third >= 0.5
        assert fifth - fourth >= 1.0


@pytest.mark.parametrize("retry_after", ["0", PAST])
async def test_a_refusal_that_asks_for_no_pause_is_followed_by_longer_and_longer_ones(
    relay: Relay, retry_after: str
) -> None:
    async with Scripted(lambda number: refusal(retry_after)).open() as upstream:
        await relay.upstreams.put("a", window(100, 0.1, base_url=upstream.url))
        assert await send(relay, seconds=4.5) == 429
        pauses = [later - sooner for sooner, later in zip(upstream.arrivals, upstream.arrivals[1:], strict=False)]
        assert 1 <= len(pauses) <= 3
        assert all(pause >= 0.5 * 2**number for number, pause in enumerate(pauses))


async def test_the_pause_is_short_again_after_an_answer(relay: Relay) -> None:
    await relay.upstreams.put("a", window(100, 0.1))
    pauses = []
    for outcome in (Outcome.REFUSED, Outcome.REFUSED, Outcome.ENDED, Outcome.REFUSED):
        policy = (await relay.upstreams.get("a")).policy
        permit = await relay.permits.acquire("a", policy, "u1", deadline=asyncio.get_running_loop().time() + 20)
        permit.sending()
        told = permit.settle(outcome)
        assert told is not None
        await told
        pauses.append(permit.paused_seconds)
    assert 0.5 <= pauses[0] <= 0.625
    assert 1.0 <= pauses[1] <= 1.25
    assert pauses[2] == 0.0
    assert 0.5 <= pauses[3] <= 0.625


@pytest.mark.parametrize("pause_seconds", [0.0, 8.0], ids=["of our own", "that the upstream asks for"])
async def test_users_who_were_refused_together_do_not_come_back_together(relay: Relay, pause_seconds: float) -> None:
    await relay.upstreams.put("a", window(100, 0.1))
    policy = (await relay.upstreams.get("a")).policy

    async def refused(user: str) -> float:
        permit = await relay.permits.acquire("a", policy, user, deadline=asyncio.get_running_loop().time() + 20)
        permit.sending()
        told = permit.settle(Outcome.REFUSED, pause_seconds=pause_seconds)
        assert told is not None
        await told
        return permit.paused_seconds

    pauses = sorted(await asyncio.gather(*(refused(f"u{number}") for number in range(40))))
    base = pause_seconds or 0.5
    assert base <= pauses[0] <= pauses[-1] <= base * 1.25
    assert len(set(pauses)) > 20
    assert pauses[-1] - pauses[0] > base / 8  # half of what it can be


CUT = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0\r\nContent-Length: 9\r\n\r\nno" + Scripted.CUT
BAD = b"HTTP/1.1 429 Too Many Requests\r\nTransfer-Encoding: chunked\r\nRetry-After: 0\r\n\r\n2\r\nnonsense"
STALLED = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0\r\nContent-Length: 9\r\n\r\nno"
BROKEN = pytest.mark.parametrize("words", [CUT, BAD, STALLED], ids=["cut", "bad chunk", "stalled"])


@BROKEN
async def test_a_refusal_whose_body_breaks_off_sends_the_request_back_to_its_line(relay: Relay, words: bytes) -> None:
    async with Scripted(lambda number: words if number == 1 else OK).open() as upstream:
        await relay.upstreams.put("a", window(5, 0.2, base_url=upstream.url))
        assert await send(relay) == 200
        assert len(upstream.arrivals) == 2


@pytest.mark.topology("standalone")
async def test_a_refusal_is_told_by_the_deadline_while_the_store_says_nothing(server: Topology, prefix: str) -> None:
    async with FaultyProxy(server.primaries()[0].port) as proxy:

        def say(number: int) -> bytes:
            proxy.hold()
            return refusal()

        settings = StoreSettings(url=proxy.url, prefix=prefix)
        async with open_store(settings) as store, Relay(store) as relay, Scripted(say).open() as upstream:
            await relay.upstreams.note_new_store()
            await relay.upstreams.put("a", window(5, 0.2, base_url=upstream.url, timeout_seconds=30))
            watch = Stopwatch()
            assert await send(relay, seconds=2) == 429
            assert watch.seconds < 4
            proxy.heal()


def order(wait_ms: int = 60_000) -> Order:
    return Order("POST", "/x", "", [("x-user-id", "u1")], b"b", "u1", 1, wait_ms)


async def job_ends(relay: Relay, id: str) -> JobView:
    async def over() -> bool:
        return (await relay.jobs.get(id)).state not in (JobState.WAITING, JobState.SENDING)

    await eventually(over, 30)
    return await relay.jobs.get(id)


@BROKEN
async def test_a_job_so_refused_is_done_at_its_next_turn(relay: Relay, words: bytes) -> None:
    async with Scripted(lambda number: words if number == 1 else OK).open() as upstream:
        await relay.upstreams.put("a", window(5, 0.2, base_url=upstream.url))
        async with running(relay.runner()):
            view = await job_ends(relay, await relay.jobs.submit("a", order()))
        assert (view.state, view.attempts, len(upstream.arrivals)) == (JobState.DONE, 1, 2)


@BROKEN
async def test_a_job_so_refused_that_is_not_sent_again_has_the_refusal_as_its_answer(
    relay: Relay, words: bytes
) -> None:
    async with Scripted(lambda number: words).open() as upstream:
        policy = window(5, 0.2, base_url=upstream.url, retry=Retry(refused=False))
        await relay.upstreams.put("a", policy)
        async with running(relay.runner()):
            view = await job_ends(relay, await relay.jobs.submit("a", order()))
        assert view.state is JobState.DONE
        assert view.response is not None
        assert (view.response.status, view.response.truncated) == (429, True)


async def test_a_refused_job_waits_again_and_goes_to_another_relay_at_once_when_its_own_stops(
    relay: Relay, server: Topology, prefix: str
) -> None:
    """It was refused, so it did nothing: whoever has it next sends it, although sending it twice might do harm."""
    settings = StoreSettings(url=server.url, prefix=prefix, deadline_ms=PATIENT_MS)
    async with (
        open_store(settings) as store,
        Relay(store) as other,
        Scripted(lambda number: refusal("3") if number == 1 else OK).open() as upstream,
    ):
        await relay.upstreams.put("a", window(5, 0.2, base_url=upstream.url))
        runner = relay.runner()
        async with running(runner) as run:
            id = await relay.jobs.submit("a", order())

            async def waits_again() -> bool:
                return bool(upstream.arrivals) and (await relay.jobs.get(id)).state is JobState.WAITING

            await eventually(waits_again)
            runner.finish()
            await run
        assert len(upstream.arrivals) == 1
        async with running(other.runner()):
            view = await job_ends(other, id)
        assert (view.state, len(upstream.arrivals)) == (JobState.DONE, 2)
