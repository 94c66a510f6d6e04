"""`hg.relay` beside the store and through a gateway: one suite for both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from secrets import token_hex
from typing import Any

import httpx2
import msgspec
import pytest

from headgate.cli.trial.strict_limits import SlidingLog
from headgate.cli.trial.strict_upstream import Delays, StrictUpstream
from headgate.kit.problems import DeadlineExceeded, InvalidRequest, Malformed
from headgate.relay.model import JobState, Limit, Upstream
from headgate.relay.problems import JobUnknown, UpstreamUnknown
from headgate.sdk import Headgate, HeadgateSync
from tests.http.echo import Echo
from tests.processes import Gateway, GatewayProcess
from tests.topology import Topology, eventually


@pytest.fixture
def name() -> str:
    return f"up-{token_hex(4)}"


@pytest.fixture(params=["store", "http"])
async def hg(request: pytest.FixtureRequest, server: Topology, gateway: Gateway) -> AsyncIterator[Headgate]:
    if request.param == "store":
        client = Headgate(server.url, prefix=gateway.process.prefix)
    else:
        client = Headgate(gateway.url, token=gateway.token)
    async with client:
        yield client


def policy(url: str, count: int = 4, seconds: float = 1.0) -> Upstream:
    limits = (Limit(count=count, seconds=seconds),)
    return Upstream(
        base_url=url, limits=limits, forward_user=True, timeout_seconds=2, delivery_seconds=0.2, deadline_seconds=30
    )


async def test_permits_around_ones_own_calls_keep_the_limit(hg: Headgate, name: str) -> None:
    async with StrictUpstream(lambda: SlidingLog(4, 1.0, strict=True), Delays(0.01, tail=0.2)).open() as upstream:
        await hg.relay.put_upstream(name, policy(upstream.url))
        async with httpx2.AsyncClient(base_url=upstream.url) as mine:

            async def one() -> int:
                async with hg.relay.permit(name, "u1") as held:
                    answer = await mine.get("/x", headers={"X-User-Id": "u1"})
                    held.answered()
                    return answer.status_code

            statuses = await asyncio.gather(*(one() for _ in range(12)))
        assert statuses == [200] * 12
        assert upstream.largest(1.0) <= 4


async def test_the_upstreams_own_header_names_the_user(hg: Headgate, name: str) -> None:
    """The user header may have any name, also when that changes; a refusal for it costs no permit and sends nothing."""
    async with Echo().open() as echo:
        for header in ("X-Customer", "X-User-Id", "X-Tenant"):
            named = msgspec.structs.replace(policy(echo.url, count=50), user_header=header)
            await hg.relay.put_upstream(name, named)
            answers = [await hg.relay.request("GET", name, "/x", user="u1") for _ in range(2)]
            for answer in answers:
                told = msgspec.json.decode(answer.content)
                seen = {key.lower(): value for key, value in told["headers"]}
                assert seen[header.lower()] == "u1"
                assert not {"x-customer", "x-user-id", "x-tenant"} - {header.lower()} & set(seen)
            job = await hg.relay.submit("GET", name, "/x", user="u1")
            assert (await hg.relay.job(job)).state is JobState.WAITING
            await hg.relay.cancel(job)
        assert echo.requests == 6


async def test_failed_block_counts_as_sent_and_unsent_one_does_not(hg: Headgate, name: str) -> None:
    await hg.relay.put_upstream(name, policy("http://127.0.0.1:1", count=2, seconds=30))
    with pytest.raises(ZeroDivisionError):
        async with hg.relay.permit(name, "u1"):
            raise ZeroDivisionError

    async def give_up() -> None:
        async with hg.relay.permit(name, "u1") as held:
            held.unsent()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await give_up()
    async with hg.relay.permit(name, "u1", wait=5):
        pass
    with pytest.raises(DeadlineExceeded):
        async with hg.relay.permit(name, "u1", wait=1):
            pass


async def test_transport_takes_a_permit_for_every_request(hg: Headgate, name: str) -> None:
    async with StrictUpstream(lambda: SlidingLog(4, 1.0, strict=True), Delays(0.01)).open() as upstream:
        await hg.relay.put_upstream(name, policy(upstream.url))
        transport = hg.relay.transport(name, "u1")
        async with httpx2.AsyncClient(base_url=upstream.url, transport=transport, timeout=20) as mine:
            answers = await asyncio.gather(*(mine.get("/x", headers={"X-User-Id": "u1"}) for _ in range(9)))
        assert [answer.status_code for answer in answers] == [200] * 9
        assert upstream.refused == 0


async def test_request_goes_through_the_relay(hg: Headgate, name: str) -> None:
    async with StrictUpstream(lambda: SlidingLog(4, 1.0, strict=True)).open() as upstream:
        await hg.relay.put_upstream(name, policy(upstream.url))
        answers = await asyncio.gather(
            *(hg.relay.request("POST", name, "/x", user="u1", content=b"b", deadline=20) for _ in range(9))
        )
        assert [answer.status for answer in answers] == [200] * 9
        assert max(answer.position for answer in answers) >= 1
        assert upstream.refused == 0
        assert answers[0].header("content-type") == "application/json"
        with pytest.raises(UpstreamUnknown):
            await hg.relay.request("GET", "nobody", "/x", user="u1")


async def test_job_is_left_seen_and_cancelled(hg: Headgate, name: str) -> None:
    await hg.relay.put_upstream(name, policy("http://127.0.0.1:1", count=1, seconds=3600))
    id = await hg.relay.submit("POST", name, "/x", user="u1", content=b"b")
    view = await hg.relay.job(id)
    assert (view.state, view.position) == (JobState.WAITING, 1)
    assert [job.id for job in await hg.relay.jobs(name)] == [id]
    await hg.relay.cancel(id)
    assert (await hg.relay.wait_for(id)).state is JobState.CANCELLED
    with pytest.raises(JobUnknown):
        await hg.relay.job(f"01ARZ3NDEKTSV4RRFFQ69G5FAV.{name}")


async def test_all_jobs_are_listed_however_many_pages_they_fill(hg: Headgate, name: str) -> None:
    await hg.relay.put_upstream(name, policy("http://127.0.0.1:1", count=1, seconds=3600))
    async with hg.relay.permit(name, "u1"):  # so that none of them is sent
        ids = [await hg.relay.submit("POST", name, "/x", user="u1") for _ in range(230)]
        for id in ids[:5]:
            await hg.relay.cancel(id)
        assert [job.id for job in await hg.relay.jobs(name, JobState.WAITING)] == ids[5:]
        assert [job.id for job in await hg.relay.jobs(name, JobState.CANCELLED)] == ids[4::-1]
        assert [job.id for job in await hg.relay.jobs(name)] == [*ids[5:], *ids[4::-1]]


UNWRITABLE: list[dict[str, Any]] = [
    {"headers": {"x-name": "\u20ac"}},
    {"headers": {"x-name": "a\r\nx-other: b"}},
    {"headers": {"x-name": "a\0b"}},
    {"headers": {"x name": "a"}},
    {"headers": {"": "a"}},
    {"headers": {"x-n\u00e4me": "a"}},
    {"method": "G\u20acT"},
    {"method": "GET /"},
]


@pytest.mark.parametrize("how", ["request", "submit"])
async def test_what_cannot_be_written_is_refused_before_it_is_kept_or_sent(hg: Headgate, name: str, how: str) -> None:
    async with StrictUpstream().open() as upstream:
        await hg.relay.put_upstream(name, policy(upstream.url))
        for wrong in UNWRITABLE:
            with pytest.raises(InvalidRequest):
                await getattr(hg.relay, how)(**{"method": "GET", "upstream": name, "path": "/x", "user": "u1", **wrong})
        for path in ("/\u20ac", "/\ud800"):
            if hg.direct:  # a client over HTTP writes the first in percents
                with pytest.raises(Malformed):
                    await getattr(hg.relay, how)("GET", name, path, user="u1")
        assert await hg.relay.jobs(name) == []
        assert upstream.count == 0


@pytest.mark.parametrize("how", ["request", "submit"])
async def test_a_path_cannot_leave_the_upstream(hg: Headgate, name: str, how: str) -> None:
    """Over HTTP neither: the HTTP client would resolve the dots and ask the gateway itself."""
    async with StrictUpstream().open() as upstream:
        await hg.relay.put_upstream(name, policy(upstream.url))
        for path in ("/../../api/admin/upstreams", "../x", "/a/./x", "/..;/x", "/%2e%2e/x", "/a/%252e%252e%253b/x"):
            with pytest.raises(Malformed):
                await getattr(hg.relay, how)("GET", name, path, user="u1")
        assert upstream.count == 0


async def test_a_call_that_could_not_connect_costs_no_permit(hg: Headgate, name: str) -> None:
    class Unreachable(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            raise httpx2.ConnectTimeout("it takes too long", request=request)

    await hg.relay.put_upstream(name, policy("http://127.0.0.1:1", count=1, seconds=60))
    async with httpx2.AsyncClient(transport=hg.relay.transport(name, "u1", Unreachable())) as mine:
        for _ in range(3):
            with pytest.raises(httpx2.ConnectTimeout):
                await mine.get("http://127.0.0.1:1/x")


async def test_the_user_is_whom_the_caller_names_and_nobody_whom_a_header_names(hg: Headgate, name: str) -> None:
    async with StrictUpstream().open() as upstream:
        await hg.relay.put_upstream(name, policy(upstream.url))
        await hg.relay.request("GET", name, "/x", user="u1", headers={"x-user-id": "u2"})
        assert list(upstream.arrivals) == ["u1"]


async def test_upstreams_are_listed_and_their_state_is_told(hg: Headgate, name: str) -> None:
    await hg.relay.put_upstream(name, policy("http://127.0.0.1:1", count=3, seconds=30))
    async with hg.relay.permit(name, "u1"):
        status = await hg.relay.status(name)
        assert (status.in_flight, status.waiting, status.cooling) == (1, 0, 0)

    async def cooling() -> bool:
        return (await hg.relay.status(name)).cooling == 1

    await eventually(cooling)
    assert name in [view.name for view in await hg.relay.upstreams()]
    await hg.relay.remove_upstream(name)
    assert name not in [view.name for view in await hg.relay.upstreams()]


@pytest.mark.parametrize("mode", ["store", "http"])
def test_threads_take_permits_too(server: Topology, gateway_process: GatewayProcess, name: str, mode: str) -> None:
    url = server.url if mode == "store" else gateway_process.url
    options = {"prefix": gateway_process.prefix} if mode == "store" else {"token": gateway_process.token}
    with HeadgateSync(url, **options) as hg:
        hg.relay.put_upstream(name, policy("http://127.0.0.1:1", count=2, seconds=30))
        with hg.relay.permit(name, "u1") as held:
            assert hg.relay.status(name).in_flight == 1
            held.answered()
        with hg.relay.permit(name, "u1", wait=5):
            pass
        with pytest.raises(DeadlineExceeded), hg.relay.permit(name, "u1", wait=1):
            pass
