"""The registry's routes: what comes back, what is refused, and watches over Server-Sent Events."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import pytest

from tests.processes import Gateway
from tests.topology import eventually, free_port

pytestmark = pytest.mark.anyio


@pytest.fixture
def namespace() -> str:
    return f"n{secrets.token_hex(4)}"


@pytest.fixture
async def client(gateway: Gateway, namespace: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(
        base_url=gateway.url, headers={"X-API-Token": gateway.token}, params={"namespace": namespace}, timeout=20
    ) as made:
        yield made


async def register(client: httpx2.AsyncClient, id_: str = "", **fields: Any) -> Any:
    record = {"type": "game", "group": "kr-1", "hostname": "h", **({"instanceId": id_} if id_ else {}), **fields}
    response = await client.post("/sd/v1/instances", json=record)
    assert response.status_code == 200, response.text
    return response.json()


async def found(client: httpx2.AsyncClient, **query: Any) -> list[str]:
    response = await client.get("/sd/v1/instances", params={"type": "game", **query})
    assert response.status_code == 200, response.text
    return sorted(each["instanceId"] for each in response.json()["instances"])


@asynccontextmanager
async def watching(client: httpx2.AsyncClient, **query: Any) -> AsyncIterator[list[httpx2.ServerSentEvent]]:
    seen: list[httpx2.ServerSentEvent] = []
    headers = {"Last-Event-ID": str(query.pop("after"))} if "after" in query else {}

    async def follow() -> None:
        async with client.stream("GET", "/sd/v1/watch", params={"type": "game", **query}, headers=headers) as response:
            assert response.status_code == 200
            async for event in httpx2.EventSource(response):
                seen.append(event)  # noqa: PERF401  # one by one, as they come

    task = asyncio.ensure_future(follow())
    try:
        await eventually(lambda: task.done() or any(event.event == "bookmark" for event in seen))
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_seeds_flow(client: httpx2.AsyncClient) -> None:
    made = await register(
        client, hostname="game-01", publicIp="123.45.67.89", privateIp="10.0.0.5", systemInfo={"cpu": 16},
        performance={"tps": 1200, "latency": "5ms"},
    )  # fmt: skip
    assert {"instanceId", "revision"} <= set(made)
    id_ = made["instanceId"]
    beat = await client.post(f"/sd/v1/instances/{id_}/heartbeat", json={"performance": {"tps": 5}})
    assert beat.status_code == 200
    assert (await client.post(f"/sd/v1/instances/{id_}/heartbeat")).status_code == 200
    listing = (await client.get("/sd/v1/instances", params={"type": "game", "group": "kr-1"})).json()
    (instance,) = listing["instances"]
    assert instance["performance"] == instance["metrics"] == {"tps": 5}
    assert listing["stale"] is False
    query = {"type": "game", "group": "kr-1"}
    assert (await client.delete(f"/sd/v1/instances/{id_}", params=query)).status_code == 204
    assert (await client.delete(f"/sd/v1/instances/{id_}", params=query)).status_code == 204
    late = await client.post(f"/sd/v1/instances/{id_}/heartbeat", json=query)
    assert (late.status_code, late.json()["code"]) == (404, "unknown_instance")


async def test_many_heartbeats_at_once_tell_who_is_unknown(client: httpx2.AsyncClient) -> None:
    for name in ("a", "b"):
        await register(client, name)
    beats = [{"instanceId": name, "type": "game", "group": "kr-1"} for name in ("a", "x", "b")]
    answer = await client.post("/sd/v1/heartbeats", json={"heartbeats": beats})
    assert answer.json() == {"renewed": 2, "unknown": ["x"], "superseded": []}


async def test_discovery_is_conditional_by_revision(client: httpx2.AsyncClient) -> None:
    await register(client, "a")
    query = {"type": "game", "group": "kr-1"}
    first = await client.get("/sd/v1/instances", params=query)
    tag = first.headers["etag"]
    again = await client.get("/sd/v1/instances", params=query, headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    await register(client, "b")
    third = await client.get("/sd/v1/instances", params=query, headers={"If-None-Match": tag})
    assert third.status_code == 200


async def test_what_comes_and_goes_without_a_revision_has_a_tag_of_its_own(client: httpx2.AsyncClient) -> None:
    await register(client, "a", metrics={"load": 0.2})
    await register(client, "b", metrics={"load": 0.3})
    query = {"type": "game", "group": "kr-1", "filter": "metrics.load<0.5"}
    tag = (await client.get("/sd/v1/instances", params=query)).headers["etag"]
    path = "/sd/v1/instances/a/heartbeat"
    await client.post(path, json={"type": "game", "group": "kr-1", "metrics": {"load": 0.3}})
    assert (await client.get("/sd/v1/instances", params=query, headers={"If-None-Match": tag})).status_code == 304
    await client.post(path, json={"type": "game", "group": "kr-1", "metrics": {"load": 0.9}})
    changed = await client.get("/sd/v1/instances", params=query, headers={"If-None-Match": f"W/{tag}"})
    assert [each["instanceId"] for each in changed.json()["instances"]] == ["b"]
    assert changed.headers["cache-control"] == "private, no-cache"


async def test_filters_health_and_groups_choose(client: httpx2.AsyncClient) -> None:
    await register(client, "a", metadata={"version": "1.2"}, metrics={"load": 0.2})
    await register(client, "b", metadata={"version": "1.3"}, healthy=False)
    await register(client, "c", group="us-1", metadata={"version": "1.2"})
    assert await found(client) == ["a", "b", "c"]
    assert await found(client, group="kr-1", healthy="true") == ["a"]
    assert await found(client, filter=["metadata.version==1.2", "metrics.load<1"]) == ["a"]
    refused = await client.get("/sd/v1/instances", params={"type": "game", "filter": "nonsense"})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")


async def test_a_real_probe_only_filters(client: httpx2.AsyncClient) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await register(client, "up", privateIp="127.0.0.1", port=port)
    await register(client, "down", privateIp="127.0.0.1", port=free_port())
    await register(client, "outside", publicIp="203.0.113.7", port=80)
    assert await found(client, check="true") == ["up"]
    assert await found(client) == ["down", "outside", "up"]
    server.close()


@pytest.mark.parametrize(
    "record",
    [
        {"type": "a b"}, {"type": ""}, {"type": "x" * 129}, {"type": "{a}"}, {"type": "게임"}, {"instanceId": "a:b"},
        {"instanceId": "x" * 65}, {"unknown": 1}, {"port": 70_000}, {"port": "80"}, {"weight": -1}, {"ttlSeconds": 0},
        {"metadata": []}, {"hostname": "a\u202eb"}, {"check": {"kind": "icmp"}}, {"check": {"kind": "tcp", "rise": 0}},
        {"check": {"kind": "http", "url": "http://a:99999/"}}, {"check": {"kind": "http", "url": "http://[::1"}},
        {"check": {"kind": "http", "url": "ws://a/"}}, {"check": {"kind": "websocket", "url": "http://a/"}},
        {"check": {"kind": "http", "url": "/a b"}}, {"check": {"kind": "http", "url": "/\x00"}},
        {"check": {"kind": "http", "url": "x"}}, {"check": {"kind": "http", "url": ""}},
        {"check": {"kind": "http", "url": "/" + "x" * 2000}}, {"check": {"kind": "tcp", "url": "/"}},
    ],
)  # fmt: skip
async def test_bad_records_are_refused_with_422(client: httpx2.AsyncClient, record: dict[str, object]) -> None:
    response = await client.post("/sd/v1/instances", json={"type": "game", "group": "kr-1", "hostname": "h", **record})
    assert (response.status_code, response.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize("name", ["a:b.c-d_e", "x" * 128, "A", "0"])
async def test_names_with_signs_and_of_full_length_round_trip(client: httpx2.AsyncClient, name: str) -> None:
    await register(client, "a", type=name, group=name)
    response = await client.get("/sd/v1/instances", params={"type": name, "group": name})
    assert [(each["type"], each["group"]) for each in response.json()["instances"]] == [(name, name)]


async def test_texts_of_any_language_round_trip(client: httpx2.AsyncClient) -> None:
    labels = {"이름": "값 with spaces: ünï", "👍": ["x", {"y": None}], "": 0.1}
    await register(client, "a", metadata=labels, hostname="호스트")
    (instance,) = (await client.get("/sd/v1/instances", params={"type": "game"})).json()["instances"]
    assert (instance["metadata"], instance["hostname"]) == (labels, "호스트")


async def test_overrides_evictions_and_protection_over_http(client: httpx2.AsyncClient) -> None:
    await register(client, "a")
    query = {"type": "game", "group": "kr-1"}
    changed = await client.patch("/sd/v1/instances/a", params=query, json={"drain": True, "weight": 3})
    assert (changed.json()["draining"], changed.json()["weight"]) == (True, 3)
    assert await found(client, healthy="true") == []
    assert (await client.patch("/sd/v1/instances/x", params=query, json={})).status_code == 404
    assert (await client.post("/sd/v1/instances/a/evict", params=query, json={"forSeconds": 60})).status_code == 204
    again = await client.post("/sd/v1/instances", json={**query, "instanceId": "a", "hostname": "h"})
    assert (again.status_code, again.json()["code"]) == (409, "evicted")
    assert (await client.patch("/sd/v1/services", params=query, json={"protection": "off"})).status_code == 204
    assert (await client.patch("/sd/v1/services", params=query, json={"protection": "x"})).status_code == 422


async def test_a_heartbeat_with_a_record_takes_what_stands_beside_it(client: httpx2.AsyncClient) -> None:
    record = {"type": "game", "group": "kr-1", "hostname": "h", "metadata": {"v": 1}, "performance": {"tps": 1}}
    path = "/sd/v1/instances/a/heartbeat"
    beat = {"record": record, "metrics": {"tps": 2}, "healthy": False}
    assert (await client.post(path, json=beat)).status_code == 200
    (seen,) = (await client.get("/sd/v1/instances", params={"type": "game"})).json()["instances"]
    assert (seen["metrics"], seen["metadata"], seen["healthy"]) == ({"tps": 2}, {"v": 1}, False)
    for other in ({"type": "chat"}, {"group": "us-1"}, {"record": {**record, "instanceId": "b"}}):
        refused = await client.post(path, json={**beat, **other})
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request"), other


async def test_an_older_registration_is_superseded(client: httpx2.AsyncClient) -> None:
    old = (await register(client, "a"))["registration"]
    await register(client, "a")
    beat = await client.post("/sd/v1/instances/a/heartbeat", json={"registration": old})
    gone = await client.delete("/sd/v1/instances/a", params={"registration": old})
    assert [beat.status_code, beat.json()["code"], gone.status_code] == [409, "superseded", 409]
    assert await found(client) == ["a"]


async def test_a_watch_brings_the_state_then_changes_and_resumes(client: httpx2.AsyncClient) -> None:
    await register(client, "a")
    async with watching(client, group="kr-1") as seen:
        assert [event.event for event in seen] == ["put", "bookmark"]
        position = seen[-1].id
        await register(client, "b")
        await client.delete("/sd/v1/instances/a", params={"type": "game", "group": "kr-1"})
        await eventually(lambda: len(seen) == 4)
        removed = msgspec.json.decode(seen[3].data)
        assert (seen[3].event, removed["instanceId"], removed["reason"]) == ("removed", "a", "removed")
        assert int(seen[3].id) == removed["revision"] > int(seen[2].id)
    await register(client, "c")
    async with watching(client, group="kr-1", after=position) as resumed:
        events = [(event.event, msgspec.json.decode(event.data)) for event in resumed]
    assert [kind for kind, _ in events] == ["put", "removed", "put", "bookmark"]
    assert [resumed[0].id, resumed[1].id] == [seen[2].id, seen[3].id]


async def test_a_watch_from_the_future_or_long_ago_is_reset(client: httpx2.AsyncClient) -> None:
    await register(client, "a")
    for position in ("1", str(2**52)):
        async with watching(client, group="kr-1", revision=position) as seen:
            assert [event.event for event in seen] == ["reset", "put", "bookmark"]
            assert msgspec.json.decode(seen[0].data)["epoch"]
    refused = await client.get("/sd/v1/watch", params={"type": "game", "group": "kr-1", "revision": "soon"})
    assert refused.status_code == 422


@pytest.mark.parametrize(
    "positions",
    [{"a b": 1}, {"": 1}, {"a": -1}, {"a": 2**60}, {"a": "x"}, [], {f"g{number}": 1 for number in range(5001)}],
)
async def test_a_cursor_that_is_not_ours_is_refused(client: httpx2.AsyncClient, positions: object) -> None:
    cursor = base64.urlsafe_b64encode(msgspec.json.encode(positions)).decode().rstrip("=")
    headers = {"Last-Event-ID": cursor}
    refused = await client.get("/sd/v1/watch", params={"type": "game"}, headers=headers)
    assert refused.status_code in (422, 431), refused.text
    assert refused.json()["code"]


async def test_all_groups_are_watched_under_one_cursor(client: httpx2.AsyncClient) -> None:
    await register(client, "a")
    async with watching(client) as seen:
        await register(client, "b", group="us-1")
        await eventually(lambda: any('"b"' in event.data for event in seen))
        await eventually(lambda: seen[-1].event == "bookmark")
        cursor = seen[-1].id
    await register(client, "c", group="us-1")
    await register(client, "d")
    async with watching(client, revision=cursor) as seen:
        await eventually(lambda: len([event for event in seen if event.event == "put"]) == 2)
        names = {msgspec.json.decode(event.data)["instance"]["instanceId"] for event in seen if event.event == "put"}
        assert names == {"c", "d"}


async def test_an_instance_without_any_address_is_refused(client: httpx2.AsyncClient) -> None:
    record = {"type": "game", "group": "kr-1", "instanceId": "a", "port": 7000}
    for path, body in (("", record), ("/a/heartbeat", {"record": record})):
        refused = await client.post(f"/sd/v1/instances{path}", json=body)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request"), refused.text
        assert "publicIp" in refused.json()["detail"]
    for address in ({"hostname": "h"}, {"publicIp": "203.0.113.7"}, {"privateIp": "10.0.0.7"}):
        assert (await client.post("/sd/v1/instances", json=record | address)).status_code == 200


async def test_the_last_heartbeat_in_a_registration_is_ignored(client: httpx2.AsyncClient) -> None:
    for said in ("2001-01-01T00:00:00Z", 978307200000, None):
        await register(client, "a", lastHeartbeat=said)
        (instance,) = (await client.get("/sd/v1/instances", params={"type": "game"})).json()["instances"]
        assert instance["lastHeartbeat"] > "2020"


@pytest.mark.parametrize("group", [None, "kr-1"])
async def test_a_list_of_instances_has_pages(client: httpx2.AsyncClient, group: str | None) -> None:
    names = [f"i{number:02}" for number in range(7)]
    for name in names:
        await register(client, name)
    if group is None:
        for other in ("kr", "kr-1.a", "kr-10"):
            await register(client, "x", group=other)
    expected = sorted(
        [*([("kr", "x"), ("kr-1.a", "x"), ("kr-10", "x")] if group is None else []), *(("kr-1", n) for n in names)]
    )
    query = {"type": "game", "limit": "3"} | ({"group": group} if group else {})
    seen: list[tuple[str, str]] = []
    while True:
        answer = (await client.get("/sd/v1/instances", params=query)).json()
        seen += [(each["group"], each["instanceId"]) for each in answer["instances"]]
        if answer["nextPage"] is None:
            break
        assert len(answer["instances"]) == 3
        query["page"] = answer["nextPage"]
    assert seen == expected
    whole = await client.get("/sd/v1/instances", params={"type": "game", "group": "kr-1"})
    assert whole.json()["nextPage"] is None, whole.text
    assert (await client.get("/sd/v1/instances", params={"type": "game", "limit": 0})).json()["field"] == "limit"


async def test_a_list_of_services_has_pages(client: httpx2.AsyncClient) -> None:
    for number in range(5):
        await register(client, "a", group=f"g{number}")
    first = (await client.get("/sd/v1/services", params={"limit": 3})).json()
    second = (await client.get("/sd/v1/services", params={"limit": 3, "page": first["nextPage"]})).json()
    assert [each["group"] for each in first["services"]] == ["g0", "g1", "g2"]
    assert ([each["group"] for each in second["services"]], second["nextPage"]) == (["g3", "g4"], None)


async def test_services_prometheus_and_exposition(client: httpx2.AsyncClient) -> None:
    await register(client, "a", privateIp="10.0.0.1", port=9000, performance={"tps": 12.5, "note": "x", "on": True})
    (service,) = (await client.get("/sd/v1/services")).json()["services"]
    assert (service["type"], service["group"], service["instances"]) == ("game", "kr-1", 1)
    (target,) = (await client.get("/sd/v1/prometheus")).json()
    assert target["targets"] == ["10.0.0.1:9000"]
    text = (await client.get("/sd/v1/metrics")).text
    assert 'instance_id="a",name="tps"} 12.5' in text
    assert "note" not in text
    assert 'name="on"' not in text


async def test_without_a_token_nothing(gateway: Gateway) -> None:
    async with httpx2.AsyncClient(base_url=gateway.url) as nobody:
        for method, path in (
            ("GET", "/sd/v1/instances?type=game"), ("POST", "/sd/v1/instances"), ("GET", "/sd/v1/watch?type=game"),
            ("GET", "/sd/v1/services"), ("DELETE", "/sd/v1/instances/a"), ("GET", "/sd/v1/metrics"),
        ):  # fmt: skip
            assert (await nobody.request(method, path)).status_code == 401, path


async def test_a_token_of_one_namespace_has_nothing_to_do_with_another(
    client: httpx2.AsyncClient, gateway: Gateway, namespace: str
) -> None:
    await register(client, "a")
    body = {"name": f"t{secrets.token_hex(4)}", "role": "service", "namespace": "elsewhere"}
    token = (await gateway.client.post("/api/admin/tokens", json=body)).json()["token"]
    async with httpx2.AsyncClient(base_url=gateway.url, headers={"X-API-Token": token}) as stranger:

        async def accepted() -> bool:
            return (await stranger.get("/sd/v1/services")).status_code == 200

        await eventually(accepted)
        record = {"type": "game", "group": "kr-1", "instanceId": "a", "hostname": "h"}
        for method, path, sent in (
            ("GET", "/sd/v1/instances?type=game", None), ("GET", "/sd/v1/watch?type=game&group=kr-1", None),
            ("POST", "/sd/v1/instances", record), ("POST", "/sd/v1/instances/a/heartbeat", {}),
            ("DELETE", "/sd/v1/instances/a?type=game&group=kr-1", None), ("GET", "/sd/v1/services", None),
            ("POST", "/sd/v1/heartbeats", {"heartbeats": []}), ("GET", "/sd/v1/metrics", None),
        ):  # fmt: skip
            theirs = f"{path}{'&' if '?' in path else '?'}namespace={namespace}"
            answer = await stranger.request(method, theirs, json=sent)
            assert answer.status_code == 403, path
        assert (await stranger.get("/sd/v1/instances?type=game")).json()["instances"] == []
        assert (
            await stranger.post("/sd/v1/instances/a/evict?type=game&group=kr-1", json={"forSeconds": 1})
        ).status_code == 403


async def test_our_own_processes_are_registered(gateway: Gateway) -> None:
    async def there() -> bool:
        answer = await gateway.client.get("/sd/v1/instances", params={"type": "headgate-gateway"})
        return [each["port"] for each in answer.json()["instances"]] == [gateway.process.port]

    await eventually(there)
