"""The runner of jobs: one bad job harms no other, and nothing is called unknown that is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest

from headgate.http.client import Pool, RequestFailed
from headgate.http.routes import Message
from headgate.kit.life import run_jobs
from headgate.kit.problems import StoreUnavailable
from headgate.relay import job_queue as jobs_module
from headgate.relay.forwarder import RelayRequest
from headgate.relay.job_queue import JobQueue
from headgate.relay.jobs import jobs
from headgate.relay.model import JobState, Order, Upstream
from headgate.relay.proxy import Proxy
from headgate.relay.relay import Relay
from headgate.relay.request_body import RequestBody
from headgate.relay.settings import RelaySettings
from headgate.relay.wire import JobView
from headgate.store import StoreSettings, open_store
from tests.store.relay_world import PATIENT_MS, Patient, running, window
from tests.topology import FaultyProxy, Topology, eventually


@asynccontextmanager
async def relay_on(url: str, prefix: str, *, deadline_ms: int = PATIENT_MS) -> AsyncIterator[Relay]:
    """A relay with connections of its own."""
    settings = StoreSettings(url=url, prefix=prefix, deadline_ms=deadline_ms)
    async with open_store(settings) as store, Relay(store) as relay:
        await relay.upstreams.note_new_store()
        yield relay


@pytest.fixture
async def relay(server: Topology, prefix: str) -> AsyncIterator[Relay]:
    async with relay_on(server.url, prefix) as made:
        yield made


def order(method: str = "POST", user: str = "u1", **headers: str) -> Order:
    return Order(method, "/x", "", [("x-user-id", user), *headers.items()], b"b", user, 1, 60_000)


async def in_state(relay: Relay, id: str, state: JobState) -> bool:
    return (await relay.jobs.get(id)).state is state


async def ended(relay: Relay, id: str) -> None:
    async def there() -> bool:
        return (await relay.jobs.get(id)).state not in (JobState.WAITING, JobState.SENDING)

    await eventually(there, 30)


async def until(relay: Relay, id: str, state: JobState, seconds: float = 20) -> None:
    async def there() -> bool:
        return await in_state(relay, id, state)

    await eventually(there, seconds)


async def test_a_job_that_cannot_be_written_fails_and_harms_no_other(relay: Relay) -> None:
    async with Patient().open() as upstream:
        await relay.upstreams.put("a", window(10, 0.5, base_url=upstream.url, timeout_seconds=30))
        async with running(relay.runner()) as runner:
            good = await relay.jobs.submit("a", order())
            await eventually(lambda: upstream.arrived == 1)
            bad = await relay.jobs.submit("a", order(**{"x-name": "\u20ac"}))
            await until(relay, bad, JobState.FAILED)
            assert not runner.done()
            upstream.answer.set()
            await until(relay, good, JobState.DONE)
        assert "UnicodeEncodeError" in ((await relay.jobs.get(bad)).reason or "")
        assert upstream.arrived == 1


async def test_a_job_that_was_accepted_is_told_so_although_the_store_falls_silent_then(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that took this answer for a refusal would submit the job again, and it would be sent twice."""
    await relay.upstreams.put("a", window(10, 0.5))
    said: list[Message] = []

    async def silent(self: JobQueue, id: str) -> JobView:
        raise StoreUnavailable

    async def listen(message: Message) -> None:
        said.append(message)

    async def receive() -> Message:
        raise AssertionError("there is no body")

    proxy = Proxy(relay.upstreams, relay.forwarder, relay.jobs, RelaySettings())
    request = RelayRequest("POST", b"/x", [(b"x-user-id", b"u1")], RequestBody(receive, [], 65_536), "u1")
    with monkeypatch.context() as patched:
        patched.setattr(JobQueue, "get", silent)
        await proxy._accept(await relay.upstreams.get("a"), request, b"/x", b"", 60_000, listen)
    assert said[0]["status"] == 202
    view = msgspec.json.decode(said[1]["body"], type=JobView)
    assert (await relay.jobs.get(view.id)).state is view.state is JobState.WAITING


HOSTS = ["http://api..example/x", "http://.example/x", "https://.example/x", f"http://{'a' * 64}.example/"]


@pytest.mark.parametrize("url", HOSTS)
async def test_a_job_for_a_host_that_cannot_be_written_fails(
    relay: Relay, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was sent, so it is not unknown. Such an upstream may be in the store from before they were refused."""
    monkeypatch.setattr(Upstream, "check", lambda policy: None)
    await relay.upstreams.put("a", window(10, 0.5, base_url=url))
    async with running(relay.runner()):
        id = await relay.jobs.submit("a", order())
        await ended(relay, id)
    view = await relay.jobs.get(id)
    assert (view.state, view.response) == (JobState.FAILED, None)
    assert "No connection" in (view.reason or "")
    with pytest.raises(RequestFailed) as failed:
        await Pool(url, max_connections=1).acquire(5.0)
    assert failed.value.outcome == "unsent"


@pytest.mark.topology("standalone")
async def test_a_job_whose_mark_was_not_answered_is_sent_once_and_done(
    server: Topology, prefix: str, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store heard that it is being sent, and we did not hear of that: we know that we have sent nothing."""
    async with (
        Patient().open() as upstream,
        FaultyProxy(server.primaries()[0].port) as proxy,
        relay_on(proxy.url, prefix, deadline_ms=2000) as cut_off,
    ):
        upstream.answer.set()
        await relay.upstreams.put("a", window(10, 0.5, base_url=upstream.url, timeout_seconds=30))
        mark, marks = cut_off.jobs.mark_sending, []

        async def lost(id: str, holder: str, attempt: str) -> int:
            marks.append(attempt)
            if len(marks) != 2:  # the first has the server know the script
                return await mark(id, holder, attempt)
            proxy.drop_replies()
            try:
                return await mark(id, holder, attempt)
            finally:
                assert await in_state(relay, id, JobState.SENDING)
                proxy.heal()

        monkeypatch.setattr(cut_off.jobs, "mark_sending", lost)
        async with running(cut_off.runner()):
            for _ in range(2):
                id = await relay.jobs.submit("a", order())
                await ended(relay, id)
        view = await relay.jobs.get(id)
        assert (view.state, view.attempts, len(marks)) == (JobState.DONE, 1, 3)
        assert upstream.arrived == 2


async def test_a_job_that_another_relay_was_sending_is_unknown_although_we_know_it(relay: Relay) -> None:
    """It was ours, was taken from us and marked there; only our own mark tells nothing."""
    await relay.upstreams.put("a", window(10, 0.5, base_url="http://127.0.0.1:1"))
    id = await relay.jobs.submit("a", order())
    assert await relay.jobs.take(id, relay.permits.process) is not None
    assert await relay.jobs.take(id, "another") is not None
    await relay.jobs.mark_sending(id, "another", "theirs")
    async with running(relay.runner()):
        await ended(relay, id)
    assert await in_state(relay, id, JobState.UNKNOWN)


async def wrong_type(relay: Relay, server: Topology) -> str:
    """Break a key that is written with a grant, and with nothing else that a runner does."""
    thing = relay.upstreams.thing("a")
    await relay.store.write(thing, "DEL", thing.key("users"), again=True)
    await relay.store.write(thing, "SET", thing.key("users"), "broken", again=True)
    return server.url


async def no_right(relay: Relay, server: Topology) -> str:
    """Make a user of the store who may not touch that key."""
    return server.add_user("clumsy", "resetkeys ~*}:[a-tv-z]* ~*}:user/* &* +@all")


@pytest.mark.parametrize(("broken", "words"), [(wrong_type, "WRONGTYPE"), (no_right, "NOPERM")])
async def test_the_words_of_the_store_are_in_the_log_and_not_in_the_reason_of_a_job(
    server: Topology, prefix: str, relay: Relay, caplog: pytest.LogCaptureFixture,
    broken: Callable[[Relay, Topology], Awaitable[str]], words: str,
) -> None:  # fmt: skip
    await relay.upstreams.put("a", window(10, 0.5, base_url="http://127.0.0.1:1"))
    id = await relay.jobs.submit("a", order())
    async with relay_on(await broken(relay, server), prefix) as sending, running(sending.runner()):
        await ended(relay, id)
    view = await relay.jobs.get(id)
    assert view.state is JobState.FAILED
    assert words in caplog.text
    assert "the store" in (view.reason or "")
    assert words not in (view.reason or "")


async def test_a_look_that_fails_ends_no_job_that_is_being_sent(relay: Relay, caplog: pytest.LogCaptureFixture) -> None:
    async with Patient().open() as upstream:
        await relay.upstreams.put("a", window(10, 0.5, base_url=upstream.url, timeout_seconds=30))
        async with running(relay.runner()) as runner:
            id = await relay.jobs.submit("a", order())
            await eventually(lambda: upstream.arrived == 1)
            await relay.upstreams.put("b", window(10, 0.5))
            thing = relay.upstreams.thing("b")
            await relay.store.write(thing, "HSET", thing.key("policy"), "document", "not a policy", again=True)
            await eventually(lambda: "jobs could not be looked at" in caplog.text)
            assert not runner.done()
            upstream.answer.set()
            await until(relay, id, JobState.DONE)


async def test_a_runner_that_was_started_again_hears_of_jobs(relay: Relay) -> None:
    await relay.upstreams.put("a", window(10, 0.5, base_url="http://127.0.0.1:1"))
    runner, channel = relay.runner(), relay.upstreams.thing("a").key("events").encode()

    def listens() -> bool:
        return any(getattr(ear, "__self__", None) is runner for ear in relay.store.hints._listeners.get(channel, ()))

    for _ in range(2):
        async with running(runner):
            await eventually(listens)
        assert not listens()


async def test_a_stopping_relay_ends_what_it_sends_and_gives_back_what_waits(
    server: Topology, prefix: str, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "AGAIN_MS", 500)
    async with Patient().open() as upstream, relay_on(server.url, prefix) as stopping:
        await relay.upstreams.put("a", window(1, 1.0, base_url=upstream.url, timeout_seconds=30))
        quiet = asyncio.Event()
        run = asyncio.create_task(run_jobs(jobs(stopping), quiet))
        sending = await relay.jobs.submit("a", order())
        await eventually(lambda: upstream.arrived == 1)
        waiting = await relay.jobs.submit("a", order())
        await eventually(partial(in_line, relay, 1))
        quiet.set()
        await eventually(partial(in_line, relay, 0))  # it has left its line, and others may take it
        late = await relay.jobs.submit("a", order())
        async with running(relay.runner()):
            await eventually(partial(in_line, relay, 2))  # of another runner, which had nothing to wait for
            await asyncio.sleep(5)  # long after it would have missed us: it takes nothing from one that still sends
            assert not run.done()
            assert await in_state(relay, sending, JobState.SENDING)
            upstream.answer.set()
            await run
            assert await in_state(relay, sending, JobState.DONE)
            await until(relay, waiting, JobState.DONE)
            await until(relay, late, JobState.DONE)
        assert upstream.arrived == 3


async def test_a_stopping_relay_waits_no_longer_than_it_may(server: Topology, prefix: str) -> None:
    settings = RelaySettings(drain_seconds=0.1)
    async with (
        Patient().open() as upstream,
        open_store(StoreSettings(url=server.url, prefix=prefix, deadline_ms=PATIENT_MS)) as store,
        Relay(store, settings) as relay,
    ):
        await relay.upstreams.note_new_store()
        await relay.upstreams.put("a", window(1, 1.0, base_url=upstream.url, timeout_seconds=30))
        runner = relay.runner()
        async with running(runner) as run:
            id = await relay.jobs.submit("a", order())
            await eventually(lambda: upstream.arrived == 1)
            runner.finish()
            await run
        assert await in_state(relay, id, JobState.SENDING)


async def in_line(relay: Relay, count: int) -> bool:
    return (await relay.upstreams.figures("a", "u1"))[0].waiting == count
