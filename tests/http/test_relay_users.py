"""Users' ids as other systems have them: e-mail addresses, paths, any script, up to 256 bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from secrets import token_hex
from typing import cast

import httpx2
import msgspec
import pytest

from headgate.kit.problems import InvalidRequest
from headgate.relay.model import JobState, Limit, Upstream, user_id
from headgate.relay.relay import Relay
from headgate.sdk import Headgate
from headgate.store import StoreSettings, open_store
from tests.http.echo import Echo
from tests.processes import Gateway
from tests.store.relay_world import running
from tests.topology import Topology, eventually

USERS = ["anna+x@example.com", "tenant/7", "tenant%2F7", "홍길동", "a:b*c?[d]{e}~'\"<f>", "가" * 85 + "b", "😀"]
REFUSED = ["", "a b", " a", "a\n", "a\x00", "a\x7f", "\u202eabc", "a\u2028", "가" * 86, "\ud800"]


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


def policy(url: str) -> Upstream:
    limits = (Limit(count=3, seconds=600),)
    plans: dict[str, tuple[Limit, ...]] = {"none": (Limit(count=1, seconds=600),)}
    return Upstream(
        base_url=url, limits=limits, forward_user=True, plans=plans, user_plans={"planned@example.com": "none"}
    )


@pytest.mark.parametrize("user", REFUSED)
def test_ids_that_cannot_be_seen_or_are_too_long_are_refused(user: str) -> None:
    with pytest.raises(InvalidRequest):
        user_id(user)


async def test_any_user_has_requests_permits_and_jobs(
    hg: Headgate, name: str, server: Topology, gateway: Gateway
) -> None:
    settings = StoreSettings(url=server.url, prefix=gateway.process.prefix)
    async with Echo().open() as echo, open_store(settings) as store, Relay(store) as relay, running(relay.runner()):
        await hg.relay.put_upstream(name, policy(echo.url))
        for user in USERS:
            answer = await hg.relay.request("GET", name, "/x", user=user)
            seen = {key.lower(): value for key, value in msgspec.json.decode(answer.content)["headers"]}
            assert seen["x-user-id"] == user
            async with hg.relay.permit(name, user):
                pass
            job = await hg.relay.submit("GET", name, "/x", user=user)

            async def done(id: str) -> bool:
                return (await hg.relay.job(id)).state is JobState.DONE

            await eventually(partial(done, job), 20)
        status = await hg.relay.status(name)
        assert {one.user for one in status.busiest} == set(USERS)
        assert [(one.cooling, one.room) for one in status.busiest] == [(3, 0)] * len(USERS)
        # In keys they are encoded, so that no id can lead to another's, or to another slot.
        found: list[bytes] = []
        for link in await store.route.primaries():
            reply = await link.send(("KEYS", f"{store.prefix}:upstream:{{default/{name}}}:*/*"), store.deadline())
            found += cast("list[bytes]", reply)
        suffixes = [key.split(b"}:", 1)[1] for key in found]
        assert suffixes
        assert all(suffix.count(b"/") == 1 and suffix.isascii() for suffix in suffixes)


async def test_a_plan_is_found_by_any_users_id(hg: Headgate, name: str) -> None:
    async with Echo().open() as echo:
        await hg.relay.put_upstream(name, policy(echo.url))
        await hg.relay.request("GET", name, "/x", user="planned@example.com")
        status = await hg.relay.status(name)
        assert [(one.user, one.room) for one in status.busiest] == [("planned@example.com", 0)]


@pytest.mark.parametrize("user", REFUSED)
async def test_the_sdk_refuses_what_no_user_is_called(hg: Headgate, name: str, user: str) -> None:
    await hg.relay.put_upstream(name, policy("http://127.0.0.1:1"))
    with pytest.raises(InvalidRequest):
        await hg.relay.request("GET", name, "/x", user=user)
    with pytest.raises(InvalidRequest):
        await hg.relay.submit("GET", name, "/x", user=user)
    with pytest.raises(InvalidRequest):
        async with hg.relay.permit(name, user):
            pass


async def test_bytes_that_are_no_utf_8_are_refused(gateway: Gateway, name: str) -> None:
    headers = {"X-API-Token": gateway.token}
    async with Echo().open() as echo, httpx2.AsyncClient(base_url=gateway.url, headers=headers) as client:
        body = msgspec.json.encode(policy(echo.url))
        await client.put(f"/api/admin/upstreams/{name}", content=body, headers={"Content-Type": "application/json"})
        for user in (b"\xff\xfe", "길동".encode("euc-kr"), b"\xc0\xaf"):
            answer = await client.get(f"/relay/{name}/x", headers=[(b"X-User-Id", user)])
            assert answer.status_code == 422, answer.text
        answer = await client.get(f"/relay/{name}/x", headers=[(b"X-User-Id", "홍길동".encode())])
        assert answer.status_code == 200
        assert echo.requests == 1
