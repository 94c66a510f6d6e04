"""The forwarding proxy, through a real relay process and a strict upstream on a real socket."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx2
import pytest

from headgate.cli.trial.strict_limits import SlidingLog
from headgate.cli.trial.strict_upstream import Delays, StrictUpstream
from tests.http.echo import Echo
from tests.http.relays import RelayProcess, client_of, put, raw
from tests.topology import Stopwatch, Topology, eventually

Put = Callable[..., Any]


@pytest.fixture(scope="module")
def relay(server: Topology) -> Iterator[RelayProcess]:
    secret = {"HEADGATE_RELAY_SECRETS": '{"KEY": "s3cr3t"}', "HEADGATE_RELAY_DRAIN_SECONDS": "3"}
    with RelayProcess(server.url, environment=secret) as process:
        yield process


@pytest.fixture
async def client(relay: RelayProcess) -> AsyncIterator[httpx2.AsyncClient]:
    async with client_of(relay) as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"up-{secrets.token_hex(4)}"


async def test_request_goes_through_and_is_told_what_waiting_cost(client: httpx2.AsyncClient, name: str) -> None:
    async with StrictUpstream(lambda: SlidingLog(5, 1.0)).open() as upstream:
        await put(client, name, upstream.url)
        watch = Stopwatch()
        response = await client.post(f"/relay/{name}/orders/7?x=1", headers={"X-User-Id": "u1"}, content=b"hello")
        stood_still = watch.stood_still
        assert response.status_code == 200
        assert response.json() == {"user": "u1"}
        assert response.headers["x-queue-position"] == "0"
        assert int(response.headers["x-queue-wait"]) / 1000 - stood_still < 1
        assert response.headers["ratelimit-policy"] == '"relay";q=5;w=1'
        assert response.headers["ratelimit"].startswith('"relay";r=4')
        assert upstream.bodies == [b"hello"]


async def test_answered_requests_leave_nothing_in_the_log(
    relay: RelayProcess, client: httpx2.AsyncClient, name: str
) -> None:
    """Neither one answered in a moment, nor one with a body, nor one whose client leaves with the last byte."""
    async with StrictUpstream(lambda: SlidingLog(500, 1.0)).open() as upstream:
        await put(client, name, upstream.url, {"count": 500, "seconds": 1})
        before = len(relay.log)
        for _ in range(20):
            await client.get(f"/relay/{name}/x", headers={"X-User-Id": "u1"})
            await client.post(f"/relay/{name}/x", headers={"X-User-Id": "u1"}, content=b"b" * 100_000)
            async with httpx2.AsyncClient(base_url=relay.url, headers=client.headers) as leaving:
                await leaving.get(f"/relay/{name}/x", headers={"X-User-Id": "u1", "Connection": "close"})
        assert "failed" not in relay.log[before:]


async def test_client_that_leaves_in_the_middle_of_an_answer_is_no_error(
    relay: RelayProcess, client: httpx2.AsyncClient, name: str
) -> None:
    async with Echo().open() as echo:
        await put(client, name, echo.url, {"count": 50, "seconds": 1})
        before = len(relay.log)
        for _ in range(5):
            path = f"/relay/{name}/download?bytes=20000000"
            async with client.stream("GET", path, headers={"X-User-Id": "u1"}) as answer:
                assert await anext(answer.aiter_bytes())
        await eventually(lambda: relay.log[before:].count("an answer broke off") == 5)
        assert "failed" not in relay.log[before:]


async def test_flood_is_accepted_and_never_trips_the_limit(client: httpx2.AsyncClient, name: str) -> None:
    delays = Delays(0.01, tail=0.3)
    async with StrictUpstream(lambda: SlidingLog(5, 1.0, strict=True), delays).open() as upstream:
        await put(client, name, upstream.url)
        watch = Stopwatch()
        answers = await asyncio.gather(
            *(client.get(f"/relay/{name}/x", headers={"X-User-Id": "u1"}) for _ in range(30))
        )
        assert {answer.status_code for answer in answers} == {200}
        assert upstream.refused == 0
        assert upstream.largest(1.0) == 5
        assert watch.seconds < 5 * 1.1 + 1.5
        assert max(int(answer.headers["x-queue-position"]) for answer in answers) >= 20


async def test_user_is_needed_and_checked(client: httpx2.AsyncClient, name: str) -> None:
    async with StrictUpstream().open() as upstream:
        await put(client, name, upstream.url)
        missing = await client.get(f"/relay/{name}/x")
        assert (missing.status_code, missing.json()["code"]) == (400, "user_missing")
        bad = await client.get(f"/relay/{name}/x", headers={"X-User-Id": "a b"})
        assert (bad.status_code, bad.json()["code"]) == (422, "invalid_request")
        unknown = await client.get("/relay/nobody/x", headers={"X-User-Id": "u1"})
        assert (unknown.status_code, unknown.json()["code"]) == (404, "upstream_unknown")
        assert upstream.count == 0


async def test_only_our_token_opens_and_authorization_belongs_to_the_upstream(
    relay: RelayProcess, client: httpx2.AsyncClient, name: str
) -> None:
    async with Echo().open() as echo:
        await put(client, name, echo.url, headers={"X-Key": "{secret:KEY}"}, forwardUser=False)
        async with httpx2.AsyncClient(base_url=relay.url) as stranger:
            refused = await stranger.get(
                f"/relay/{name}/x", headers={"Authorization": f"Bearer {relay.token}", "X-User-Id": "u1"}
            )
        assert refused.status_code == 401
        sent = {
            "X-User-Id": "u1", "Authorization": "Bearer theirs", "X-Forwarded-For": "1.2.3.4", "X-Key": "forged",
            "TE": "trailers", "X-Custom": "kept",
        }  # fmt: skip
        answer = await client.get(f"/relay/{name}/x", headers=sent)
        seen = {name.lower(): value for name, value in answer.json()["headers"]}
        assert seen["authorization"] == "Bearer theirs"
        assert seen["x-key"] == "s3cr3t"
        assert seen["x-custom"] == "kept"
        assert seen["host"] == f"127.0.0.1:{echo.port}"
        assert not {"x-api-token", "x-user-id", "x-forwarded-for", "te", "connection"} & set(seen)


async def test_deadline_that_cannot_be_kept_is_told_at_once(client: httpx2.AsyncClient, name: str) -> None:
    async with StrictUpstream().open() as upstream:
        await put(client, name, upstream.url, {"count": 1, "seconds": 60})
        await client.get(f"/relay/{name}/x", headers={"X-User-Id": "u1"})
        watch = Stopwatch()
        late = await client.get(f"/relay/{name}/x", headers={"X-User-Id": "u1", "X-Deadline-Ms": "2000"})
        assert (late.status_code, late.json()["code"]) == (503, "deadline_exceeded")
        assert 55 <= int(late.headers["retry-after"]) <= 61
        assert watch.seconds < 1


async def test_deadline_holds_also_where_all_connections_are_in_use(client: httpx2.AsyncClient, name: str) -> None:
    async with Echo().open() as upstream:
        await put(client, name, upstream.url, {"count": 100, "seconds": 1}, maxConnections=1, timeoutSeconds=20)
        user = {"X-User-Id": "u1"}
        slow = asyncio.ensure_future(client.get(f"/relay/{name}/hang", headers=user))
        await eventually(lambda: upstream.requests == 1)
        watch = Stopwatch()
        late = await client.get(f"/relay/{name}/x", headers=user | {"X-Deadline-Ms": "1000"})
        assert (late.status_code, late.json()["code"]) == (503, "deadline_exceeded")
        assert watch.wall >= 1
        assert watch.seconds < 5
        slow.cancel()
        await asyncio.wait((slow,))
        assert (await client.get(f"/relay/{name}/x", headers=user)).status_code == 200


async def test_full_line_is_refused(client: httpx2.AsyncClient, name: str) -> None:
    async with StrictUpstream().open() as upstream:
        await put(client, name, upstream.url, {"count": 1, "seconds": 60}, maxWaiting=1)
        await client.get(f"/relay/{name}/x", headers={"X-User-Id": "u1"})
        waiting = asyncio.ensure_future(client.get(f"/relay/{name}/x", headers={"X-User-Id": "u1"}))
        await eventually(lambda: _waiting(client, name, 1))
        full = await client.get(f"/relay/{name}/x", headers={"X-User-Id": "u1"})
        assert (full.status_code, full.json()["code"]) == (429, "line_full")
        assert "retry-after" in full.headers
        waiting.cancel()
        await asyncio.wait((waiting,))


async def test_client_that_leaves_gives_its_turn_back(client: httpx2.AsyncClient, name: str) -> None:
    async with StrictUpstream().open() as upstream:
        await put(client, name, upstream.url, {"count": 1, "seconds": 60}, deadlineSeconds=80_000)
        await client.get(f"/relay/{name}/x", headers={"X-User-Id": "u1"})
        waiting = [
            asyncio.ensure_future(client.get(f"/relay/{name}/x", headers={"X-User-Id": "u1"})) for _ in range(20)
        ]
        await eventually(lambda: _waiting(client, name, 20))
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await eventually(lambda: _waiting(client, name, 0))
        assert upstream.count == 1


async def _waiting(client: httpx2.AsyncClient, name: str, count: int) -> bool:
    return bool((await client.get(f"/api/admin/upstreams/{name}/status")).json()["waiting"] == count)


async def test_refusal_by_the_upstream_is_waited_out_by_one_probe(client: httpx2.AsyncClient, name: str) -> None:
    """Somebody else uses the quota too: our requests go back to the head of the line and pause."""
    limiter = SlidingLog(3, 4.0)
    async with StrictUpstream(lambda: limiter).open() as upstream:
        await put(client, name, upstream.url, {"count": 3, "seconds": 4})
        for _ in range(3):
            limiter.arrive(asyncio.get_running_loop().time())
        answers = await asyncio.gather(
            *(client.post(f"/relay/{name}/x", headers={"X-User-Id": "u1"}, content=b"b") for _ in range(3))
        )
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        assert 1 <= upstream.refused <= 3


async def test_long_bodies_stream_both_ways(client: httpx2.AsyncClient, name: str) -> None:
    async with Echo().open() as echo:
        await put(client, name, echo.url)

        async def body() -> AsyncIterator[bytes]:
            for number in range(64):
                yield bytes([number]) * 65536

        answer = await client.post(f"/relay/{name}/big", headers={"X-User-Id": "u1"}, content=body())
        assert answer.status_code == 200
        assert answer.json()["received"] == 64 * 65536
        big = await client.get(f"/relay/{name}/download?bytes=5000000", headers={"X-User-Id": "u1"})
        assert len(big.content) == 5_000_000


async def test_failures_say_what_became_of_the_request(client: httpx2.AsyncClient, name: str) -> None:
    async with Echo().open() as echo:
        await put(client, name, echo.url, timeoutSeconds=0.5, retry={"attempts": 0})
        hung = await client.post(f"/relay/{name}/hang", headers={"X-User-Id": "u1"}, content=b"x")
        assert (hung.status_code, hung.json()["code"], hung.json()["outcome"]) == (504, "upstream_timeout", "unknown")
        await put(client, name, echo.url, retry={"attempts": 0})
        cut = await client.post(f"/relay/{name}/cut", headers={"X-User-Id": "u2"}, content=b"x")
        assert (cut.status_code, cut.json()["code"], cut.json()["outcome"]) == (502, "upstream_failed", "unknown")
        junk = await client.post(f"/relay/{name}/junk", headers={"X-User-Id": "u3"}, content=b"x")
        assert (junk.status_code, junk.json()["outcome"]) == (502, "answered")
    nobody = await client.get(f"/relay/{name}/x", headers={"X-User-Id": "u5"})
    assert (nobody.status_code, nobody.json()["code"], nobody.json()["outcome"]) == (502, "upstream_failed", "unsent")


async def test_only_harmless_requests_are_sent_again(client: httpx2.AsyncClient, name: str) -> None:
    async with Echo().open() as echo:
        await put(client, name, echo.url, {"count": 50, "seconds": 1})
        await client.get(f"/relay/{name}/cut", headers={"X-User-Id": "u1"})
        assert echo.requests == 2
        await client.post(f"/relay/{name}/cut", headers={"X-User-Id": "u1"}, content=b"x")
        assert echo.requests == 3
        key = {"X-User-Id": "u1", "Idempotency-Key": "k1"}
        await client.post(f"/relay/{name}/cut", headers=key, content=b"x")
        assert echo.requests == 5


@pytest.mark.parametrize(
    "path",
    [
        "/../admin",
        "/%2e%2e/admin",
        "/%252e%252e/admin",
        "//evil.test/",
        "/a/%2e%2e%2f%2e%2e/x",
        "/..%5cadmin",
        "/..;/admin",
        "/%2e%2e;/admin",
        "/..%3b/admin",
        "/a/..;x=1/..;y",
        "/.;/admin",
        "/%252e%252e%253badmin",
        "/..%00/x",
        "/..%3fx",
        "/..%20/admin",
        "/%25252e%25252e/admin",
        f"/%{'25' * 6}2e./admin",
    ],
)
async def test_path_cannot_leave_the_upstream(relay: RelayProcess, client: httpx2.AsyncClient, name: str, path: str) -> None:  # fmt: skip
    async with Echo().open() as echo:
        await put(client, name, echo.url + "/base")
        request = f"GET /relay/{name}{path} HTTP/1.1\r\nHost: x\r\nX-API-Token: {relay.token}\r\nX-User-Id: u1\r\nConnection: close\r\n\r\n"
        answer = await raw(relay.port, request.encode())
        assert answer.split(b" ")[1] in (b"400", b"404"), answer[:200]
        assert echo.requests == 0


async def test_redirects_are_the_clients_and_metadata_addresses_are_refused(
    client: httpx2.AsyncClient, name: str
) -> None:
    async with Echo().open() as echo:
        await put(client, name, echo.url)
        moved = await client.get(f"/relay/{name}/redirect", headers={"X-User-Id": "u1"}, follow_redirects=False)
        assert moved.status_code == 302
        assert moved.headers["location"] == "http://169.254.169.254/latest"
        assert echo.requests == 1
    for url in ("http://169.254.169.254/", "http://[::ffff:169.254.169.254]/", "http://0.0.0.0/"):
        await put(client, name, url)
        refused = await client.get(f"/relay/{name}/x", headers={"X-User-Id": "u1"})
        assert (refused.status_code, refused.json()["outcome"]) == (502, "unsent")
    for url in (
        "gopher://x/", "file:///etc/passwd", "http://user:pw@host/", "http://@host/", "http://host/?q", "nonsense",
        "http://api..example/x", "http://.example/x", f"http://{'a' * 64}.example/", f"http://{'a.' * 127}example/",
        "http://[x]/", "http://host/한글",
    ):  # fmt: skip
        response = await client.put(
            f"/api/admin/upstreams/{name}", json={"baseUrl": url, "limits": [{"count": 1, "seconds": 1}]}
        )
        assert response.status_code == 422, url


async def test_policy_is_validated_versioned_and_listed(client: httpx2.AsyncClient, name: str) -> None:
    await put(client, name, "http://127.0.0.1:1")
    got = await client.get(f"/api/admin/upstreams/{name}")
    assert (got.json()["version"], got.headers["etag"]) == (1, '"1"')
    body = got.json()["policy"]
    conflict = await client.put(f"/api/admin/upstreams/{name}", json=body, headers={"If-Match": '"7"'})
    assert (conflict.status_code, conflict.json()["code"]) == (412, "version_conflict")
    again = await client.put(f"/api/admin/upstreams/{name}", json=body, headers={"If-Match": '"1"'})
    assert again.json()["version"] == 2
    odd = await client.put(f"/api/admin/upstreams/{name}", json=body, headers={b"If-Match": b'"\xb2"'})
    assert odd.status_code == 422
    exists = await client.put(f"/api/admin/upstreams/{name}", json=body, headers={"If-None-Match": "*"})
    assert exists.status_code == 412
    mistakes: tuple[dict[str, object], ...] = (
        {"limits": []},
        {"limits": [{"kind": "bucket", "count": 1}]},
        {"limits": [{"count": 0, "seconds": 1}]},
        {"nonsense": 1},
        {"userPlans": {"u": "none"}},
    )
    no_users = [{"userHeader": name} for name in ("X-API-Token", "authorization", "Cookie", "Host", "TE", "a b", "")]
    for wrong in (*mistakes, *no_users):
        response = await client.put(f"/api/admin/upstreams/{name}", json=body | wrong)
        assert response.status_code == 422, wrong
    names = [each["name"] for each in (await client.get("/api/admin/upstreams")).json()["upstreams"]]
    assert name in names
    reserved = await client.put("/api/admin/upstreams/jobs", json=body)
    assert reserved.status_code == 422
    assert (await client.delete(f"/api/admin/upstreams/{name}")).status_code == 204
    assert (await client.get(f"/api/admin/upstreams/{name}")).status_code == 404
