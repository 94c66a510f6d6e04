"""Locks over HTTP: the routes as another language uses them."""

from __future__ import annotations

import asyncio
from secrets import token_hex
from typing import Any

import httpx2
import msgspec
import pytest

from tests.processes import Gateway
from tests.topology import Stopwatch, eventually


@pytest.fixture
def name() -> str:
    return f"lock-{token_hex(4)}"


async def post(gateway: Gateway, path: str, **body: object) -> httpx2.Response:
    return await gateway.client.post(path, json=body, timeout=20)


async def acquire(gateway: Gateway, name: str, **body: object) -> dict[str, Any]:
    response = await post(gateway, f"/lock/v1/{name}/acquire", **{"ttlSeconds": 10, **body})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_acquire_renew_inspect_and_release(gateway: Gateway, name: str) -> None:
    made = await acquire(gateway, name, holder="me", label="a worker")
    assert made.keys() == {"holder", "fence", "ttlSeconds"}
    assert (await acquire(gateway, name, holder="me"))["fence"] == made["fence"]
    watch = Stopwatch()
    renewed = await post(gateway, f"/lock/v1/{name}/renew", holder="me")
    assert renewed.json() == {"holder": "me", "fence": made["fence"], "ttlSeconds": 10.0}
    shown = (await gateway.client.get(f"/lock/v1/{name}")).json()
    assert (shown["name"], shown["held"], shown["fence"], shown["waiting"]) == (name, True, made["fence"], 0)
    assert shown["ttlMs"] + watch.wall * 1000 > 9900
    assert shown["ttlMs"] <= 10_000
    assert "me" not in shown.values()  # the holder's name proves the holding and is nobody else's business
    refused = await post(gateway, f"/lock/v1/{name}/acquire", ttlSeconds=10)
    assert (refused.status_code, refused.json()["code"]) == (409, "lock_held")
    assert (await post(gateway, f"/lock/v1/{name}/release", holder="me")).status_code == 204
    again = await post(gateway, f"/lock/v1/{name}/release", holder="me")
    assert (again.status_code, again.json()["code"]) == (409, "not_holder")
    late = await post(gateway, f"/lock/v1/{name}/renew", holder="me")
    assert (late.status_code, late.json()["code"]) == (409, "not_holder")


async def test_an_unknown_lock_is_a_free_one(gateway: Gateway, name: str) -> None:
    shown = (await gateway.client.get(f"/lock/v1/{name}")).json()
    assert (shown["held"], shown["fence"], shown["waiting"], shown["ttlMs"]) == (False, 0, 0, 0)


@pytest.mark.topology("standalone")
async def test_a_lock_that_replicas_do_not_confirm_is_not_acquired(gateway: Gateway, name: str) -> None:
    answers: list[httpx2.Response] = []

    async def answered() -> bool:
        answers.append(await post(gateway, f"/lock/v1/{name}/acquire", holder="me", ttlSeconds=10, replicas=1))
        assert answers[-1].status_code == 503
        return bool(answers[-1].json()["code"] != "store_unavailable")  # which is all that one standing still says

    await eventually(answered)
    assert answers[-1].json()["code"] == "not_replicated"
    assert not (await gateway.client.get(f"/lock/v1/{name}")).json()["held"]
    refused = await post(gateway, f"/lock/v1/{name}/acquire", ttlSeconds=10, replicas=99)
    assert refused.status_code == 422


async def test_a_wait_ends_with_the_release(gateway: Gateway, name: str) -> None:
    await acquire(gateway, name, holder="me")
    waiting = asyncio.create_task(acquire(gateway, name, holder="you", waitSeconds=10))
    await eventually(lambda: _waiting(gateway, name, 1))
    watch = Stopwatch()
    await post(gateway, f"/lock/v1/{name}/release", holder="me")
    assert (await waiting)["holder"] == "you"
    assert watch.seconds < 1


async def test_a_wait_that_is_too_short_is_told_so(gateway: Gateway, name: str) -> None:
    await acquire(gateway, name)
    watch = Stopwatch()
    refused = await post(gateway, f"/lock/v1/{name}/acquire", ttlSeconds=10, waitSeconds=0.3)
    assert refused.status_code == 409
    assert watch.wall >= 0.3
    assert watch.seconds < 2


async def test_whoever_hangs_up_leaves_the_line(gateway: Gateway, name: str) -> None:
    await acquire(gateway, name)
    waiting = asyncio.create_task(acquire(gateway, name, waitSeconds=60))
    await eventually(lambda: _waiting(gateway, name, 1))
    waiting.cancel()
    await asyncio.wait({waiting})
    await eventually(lambda: _waiting(gateway, name, 0))


async def test_a_second_request_in_the_same_name_keeps_the_place_when_the_first_hangs_up(
    gateway: Gateway, name: str
) -> None:
    """A client that heard nothing asks again; that its first request is noticed to be gone takes nothing from it."""
    await acquire(gateway, name, holder="me")
    first = asyncio.create_task(acquire(gateway, name, holder="you", waitSeconds=60))
    await eventually(lambda: _requests_waiting(gateway, 1))
    second = asyncio.create_task(acquire(gateway, name, holder="you", waitSeconds=60))
    await eventually(lambda: _requests_waiting(gateway, 2))
    first.cancel()
    await eventually(lambda: _requests_waiting(gateway, 1))
    await asyncio.sleep(0.3)  # what it leaves, it leaves a moment later
    assert await _waiting(gateway, name, 1)
    await post(gateway, f"/lock/v1/{name}/release", holder="me")
    got = await second
    renewed = await post(gateway, f"/lock/v1/{name}/renew", holder="you")
    assert renewed.json()["fence"] == got["fence"]


async def test_a_holder_without_a_label_is_shown_by_its_tokens_name(gateway: Gateway, name: str) -> None:
    await acquire(gateway, name, holder="me")
    shown = (await gateway.client.get(f"/lock/v1/{name}")).json()
    await post(gateway, f"/lock/v1/{name}/break")
    broken_by = (await gateway.client.get(f"/lock/v1/{name}/history")).json()["events"][0]["by"]
    assert shown["label"] == broken_by != ""


async def test_an_operator_breaks_a_lock_and_it_is_written_down(gateway: Gateway, name: str) -> None:
    made = await acquire(gateway, name, holder="me")
    other = await post(gateway, f"/lock/v1/{name}/break", fence=made["fence"] - 1)
    assert other.json() == {"fence": 0}
    broken = await post(gateway, f"/lock/v1/{name}/break", reason="the machine burned")
    assert broken.json() == {"fence": made["fence"]}
    assert (await post(gateway, f"/lock/v1/{name}/renew", holder="me")).status_code == 409
    events = (await gateway.client.get(f"/lock/v1/{name}/history")).json()["events"]
    assert [(one["kind"], one["fence"], one["reason"]) for one in events] == [
        ("broken", made["fence"], "the machine burned")
    ]
    assert events[0]["by"]


async def test_locks_are_listed_while_they_are_in_use(gateway: Gateway, name: str) -> None:
    await acquire(gateway, name, holder="me")
    assert name in [one["name"] for one in (await gateway.client.get("/lock/v1")).json()["locks"]]
    await post(gateway, f"/lock/v1/{name}/release", holder="me")
    assert name not in [one["name"] for one in (await gateway.client.get("/lock/v1")).json()["locks"]]


async def test_changes_are_streamed(gateway: Gateway) -> None:
    name = f"election:{token_hex(4)}"
    async with gateway.client.stream("GET", f"/lock/v1/{name}/watch", timeout=10) as response:
        events = aiter(httpx2.EventSource(response))

        async def next_state() -> dict[str, Any]:
            return msgspec.json.decode((await anext(events)).data, type=dict[str, Any])

        assert (await next_state())["held"] is False
        made = await acquire(gateway, name, holder="me", label="ann")
        state = await next_state()
        assert (state["held"], state["fence"], state["label"]) == (True, made["fence"], "ann")
        await post(gateway, f"/lock/v1/{name}/release", holder="me")
        assert (await next_state())["held"] is False


async def test_a_fenced_value_refuses_an_older_fence(gateway: Gateway, name: str) -> None:
    assert (await gateway.client.get(f"/fenced/v1/{name}")).status_code == 404
    assert (await gateway.client.put(f"/fenced/v1/{name}", json={"value": "a", "fence": 7})).status_code == 204
    refused = await gateway.client.put(f"/fenced/v1/{name}", json={"value": "b", "fence": 6})
    assert (refused.status_code, refused.json()["code"]) == (412, "fence_outdated")
    assert (await gateway.client.get(f"/fenced/v1/{name}")).json() == {"value": "a", "fence": 7}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "ttlSeconds"),
        ({"ttlSeconds": 0.5}, "ttlSeconds"),
        ({"ttlSeconds": 3601}, "ttlSeconds"),
        ({"ttlSeconds": "10"}, "ttlSeconds"),
        ({"ttlSeconds": 10, "waitSeconds": 301}, "waitSeconds"),
        ({"ttlSeconds": 10, "waitSeconds": -1}, "waitSeconds"),
        ({"ttlSeconds": 10, "holder": "a b"}, "holder"),
        ({"ttlSeconds": 10, "holder": ""}, "holder"),
        ({"ttlSeconds": 10, "label": "a\u202eb"}, "label"),
        ({"ttlSeconds": 10, "colour": "red"}, "colour"),
    ],
)
async def test_what_does_not_fit_is_refused(gateway: Gateway, name: str, body: dict[str, object], field: str) -> None:
    response = await post(gateway, f"/lock/v1/{name}/acquire", **body)
    assert (response.status_code, response.json()["code"]) == (422, "invalid_request")
    assert field in response.text


async def test_a_token_of_another_namespace_can_do_nothing_with_a_lock(gateway: Gateway, name: str) -> None:
    response = await post(gateway, "/api/admin/tokens", name=f"t-{name}", role="admin", namespace=f"ns-{name}")
    headers = {"X-API-Token": response.json()["token"]}
    await acquire(gateway, name, holder="me")
    async with httpx2.AsyncClient(base_url=gateway.url, headers=headers) as stranger:
        await eventually(lambda: _accepted(stranger), 2)
        elsewhere = {"namespace": "default"}
        for verb, body in (
            ("acquire", {"ttlSeconds": 10}),
            ("renew", {"holder": "me"}),
            ("release", {"holder": "me"}),
            ("break", {}),
        ):
            refused = await stranger.post(f"/lock/v1/{name}/{verb}", json=body, params=elsewhere)
            assert refused.status_code == 403, verb
        for path in (f"/lock/v1/{name}", "/lock/v1", f"/lock/v1/{name}/history", f"/lock/v1/{name}/watch"):
            assert (await stranger.get(path, params=elsewhere)).status_code == 403, path
        # At home it sees nothing of it and may take a lock of the same name.
        assert (await stranger.get("/lock/v1")).json() == {"locks": []}
        assert (await stranger.post(f"/lock/v1/{name}/acquire", json={"ttlSeconds": 10})).status_code == 200
    assert (await gateway.client.get(f"/lock/v1/{name}")).json()["held"]


async def test_each_verb_needs_its_role(gateway: Gateway, name: str) -> None:
    tokens = {}
    for role in ("read", "service"):
        made = await post(gateway, "/api/admin/tokens", name=f"{role}-{name}", role=role)
        tokens[role] = {"X-API-Token": made.json()["token"]}
    await acquire(gateway, name, holder="me")
    async with httpx2.AsyncClient(base_url=gateway.url) as client:
        assert (await client.get(f"/lock/v1/{name}")).status_code == 401
        for headers in tokens.values():
            await eventually(lambda headers=headers: _accepted(client, headers), 2)  # type: ignore[misc]
        assert (await client.get(f"/lock/v1/{name}", headers=tokens["read"])).status_code == 200
        for verb in ("acquire", "renew", "release", "break"):
            refused = await client.post(f"/lock/v1/{name}/{verb}", json={"holder": "me"}, headers=tokens["read"])
            assert refused.status_code == 403, verb
        refused = await client.post(f"/lock/v1/{name}/break", json={}, headers=tokens["service"])
        assert refused.status_code == 403


async def _accepted(client: httpx2.AsyncClient, headers: dict[str, str] | None = None) -> bool:
    """Tell whether the gateway knows a token that was just made."""
    return (await client.get("/lock/v1", headers=headers)).status_code == 200


async def _waiting(gateway: Gateway, name: str, count: int) -> bool:
    return bool((await gateway.client.get(f"/lock/v1/{name}")).json()["waiting"] == count)


async def _requests_waiting(gateway: Gateway, count: int) -> bool:
    """Tell whether so many requests stand in the lines of locks here, whatever their holders' names."""
    text = (await gateway.client.get("/metrics")).text
    return (
        sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("headgate_lock_waiting")) == count
    )
