"""The waiting room over HTTP: what people, servers and operators see."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2
import msgspec
import pytest
from joserfc import jws
from joserfc.jwk import OctKey

from headgate.store import StoreSettings, open_store
from headgate.waiting_room.signing import PublicKeys, SigningKeys
from headgate.waiting_room.waiting_room import WaitingRoom
from tests.processes import Gateway, GatewayProcess
from tests.topology import Topology, eventually

pytestmark = pytest.mark.anyio


@dataclass
class Scene:
    """A namespace of one's own behind the shared gateway, and a hand that does a worker's visits."""

    namespace: str
    admin: httpx2.AsyncClient
    anyone: httpx2.AsyncClient
    room: WaitingRoom

    async def create(self, queue: str = "main", **policy: object) -> dict[str, Any]:
        answer = await self.admin.put(f"/api/admin/queues/{queue}", params=self.where(), json=policy)
        assert answer.is_success, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def enter(self, nickname: str = "Ryan", **body: object) -> dict[str, Any]:
        answer = await self.anyone.post("/api/queue/entry", params=self.where(), json={"nickname": nickname, **body})
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def status(self, user: str, **more: str) -> httpx2.Response:
        return await self.anyone.get("/api/queue/status", params=self.where(userId=user, **more))

    async def visit(self, queue: str = "main") -> None:
        await self.room.promotion.visit(self.room.queues.thing(self.namespace, queue))

    def where(self, **more: str) -> dict[str, str]:
        return {"namespace": self.namespace, **more}


@pytest.fixture
async def scene(gateway: Gateway, server: Topology) -> AsyncIterator[Scene]:
    settings = StoreSettings(url=server.url, prefix=gateway.process.prefix, deadline_ms=10_000)
    async with open_store(settings) as store, httpx2.AsyncClient(base_url=gateway.url, timeout=20) as anyone:
        yield Scene(f"n{secrets.token_hex(4)}", gateway.client, anyone, WaitingRoom(store))


async def test_entry_and_status_are_the_seeds(scene: Scene) -> None:
    await scene.create(capacity=1)
    entry = await scene.enter("라이언")
    assert (entry["status"], entry["rank"], entry["queue"]) == ("WAITING", 1, "main")
    assert entry["eta"] is None
    assert entry["placeToken"].count(".") == 2
    assert isinstance(entry["place"], int)
    status = (await scene.status(entry["userId"])).json()
    assert (status["status"], status["rank"]) == ("WAITING", 1)
    assert "ticketId" not in status
    assert 500 <= status["pollAfterMs"] <= 30_000
    await scene.visit()
    answer = await scene.status(entry["userId"])
    status = answer.json()
    assert (status["status"], status["rank"]) == ("PROMOTED", 0)
    assert len(status["ticketId"]) == 36
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"nickname": ""}, "nickname"),
        ({"nickname": "x" * 65}, "nickname"),
        ({"nickname": "a\u202eb"}, "nickname"),
        ({"nickname": "   "}, "nickname"),
        ({"nickname": "\u200b\u3164 "}, "nickname"),
        ({"nickname": "Ryan", "queue": "no spaces"}, "queue"),
        ({"nickname": "Ryan", "userId": "tickets!"}, "userId"),
        ({"nickname": "Ryan", "rank": 1}, "rank"),
        ({}, "nickname"),
    ],
)
async def test_an_entry_that_makes_no_sense_is_refused(scene: Scene, body: dict[str, str], field: str) -> None:
    await scene.create(capacity=1)
    answer = await scene.anyone.post("/api/queue/entry", params=scene.where(), json=body)
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid_request"
    assert field in answer.text


async def test_problems_have_their_codes(scene: Scene) -> None:
    answer = await scene.anyone.post("/api/queue/entry", params=scene.where(), json={"nickname": "Ryan"})
    assert (answer.status_code, answer.json()["code"]) == (404, "queue_unknown")
    await scene.create(capacity=0, maxLength=1)
    answer = await scene.status("nobody")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_in_line")
    await scene.enter()
    answer = await scene.anyone.post("/api/queue/entry", params=scene.where(), json={"nickname": "Ryan"})
    assert (answer.status_code, answer.json()["code"]) == (429, "queue_full")
    await scene.create(maxLength=None)
    await scene.admin.post("/api/admin/queues/main/drain", params=scene.where())
    answer = await scene.anyone.post("/api/queue/entry", params=scene.where(), json={"nickname": "Ryan"})
    assert (answer.status_code, answer.json()["code"]) == (409, "queue_closed")


async def test_leaving_twice_is_204(scene: Scene) -> None:
    await scene.create(capacity=0)
    entry = await scene.enter()
    for _ in range(2):
        answer = await scene.anyone.delete("/api/queue/entry", params=scene.where(userId=entry["userId"]))
        assert answer.status_code == 204
    assert (await scene.status(entry["userId"])).json()["status"] == "LEFT"


async def test_a_stranger_cannot_take_an_accounts_place(scene: Scene) -> None:
    await scene.create(capacity=1)
    account = await scene.admin.post(
        "/api/queue/entry", params=scene.where(), json={"nickname": "Ryan", "userId": "ryan"}
    )
    token = account.json()["placeToken"]
    await scene.visit()
    assert (await scene.status("ryan")).status_code == 403
    assert (await scene.anyone.delete("/api/queue/entry", params=scene.where(userId="ryan"))).status_code == 403
    stream = await scene.anyone.get("/api/queue/stream", params=scene.where(userId="ryan"))
    assert stream.status_code == 403
    by_query = await scene.status("ryan", placeToken=token)
    assert by_query.json()["status"] == "PROMOTED"
    by_header = await scene.anyone.get(
        "/api/queue/status", params=scene.where(userId="ryan"), headers={"X-Place-Token": token}
    )
    assert by_header.json()["ticketId"] == by_query.json()["ticketId"]
    forged = token[:-4] + ("AAAA" if token[-4:] != "AAAA" else "BBBB")
    assert (await scene.status("ryan", placeToken=forged)).status_code == 403


async def test_the_sites_proof_is_as_good_as_a_token(server: Topology, fresh_gateway: Any, scene: Scene) -> None:
    process: GatewayProcess = fresh_gateway(
        server.url, environment={"HEADGATE_WAITING_ROOM_PROOF_SECRET": "a-secret-of-the-shop-that-is-long-enough"}
    )
    key = OctKey.import_key("a-secret-of-the-shop-that-is-long-enough")

    def proof(**claims: object) -> str:
        said = {"sub": "ryan", "aud": "main", "exp": 4_000_000_000, **claims}
        return jws.serialize_compact({"alg": "HS256"}, msgspec.json.encode(said), key)

    admin = httpx2.AsyncClient(base_url=process.url, headers={"X-API-Token": process.token})
    async with admin, httpx2.AsyncClient(base_url=process.url) as anyone:
        await admin.put("/api/admin/queues/main", json={"capacity": 0})

        async def enter(proof: str) -> httpx2.Response:
            body = {"nickname": "Ryan", "userId": "ryan", "proof": proof}
            return await anyone.post("/api/queue/entry", json=body)

        places = {(await enter(proof())).json()["place"] for _ in range(2)}
        assert len(places) == 1
        none = proof().split(".")[1]
        for bad in (
            proof(sub="apeach"),
            proof(aud="other"),
            proof(exp=1),
            proof()[:-6] + "AAAAAA",
            f"eyJhbGciOiJub25lIn0.{none}.",
        ):
            answer = await enter(bad)
            assert answer.status_code == 403, bad


async def test_a_stream_tells_each_change(scene: Scene) -> None:
    await scene.create(capacity=0)
    await scene.enter("first")
    entry = await scene.enter()
    seen: list[dict[str, Any]] = []

    async def follow() -> None:
        params = scene.where(userId=entry["userId"])
        async with scene.anyone.stream("GET", "/api/queue/stream", params=params, timeout=20) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            async for event in httpx2.EventSource(response):
                assert event.event == "status"
                seen.append(msgspec.json.decode(event.data))
                if seen[-1]["status"] == "LEFT":
                    return

    following = asyncio.ensure_future(follow())
    await eventually(lambda: seen)
    await scene.create(capacity=5)
    await scene.visit()
    await eventually(lambda: seen[-1]["status"] == "PROMOTED", 3, "the call arrives by hint")
    await scene.anyone.delete("/api/queue/entry", params=scene.where(userId=entry["userId"]))
    await asyncio.wait_for(following, 10)
    assert [status["status"] for status in seen] == ["WAITING", "PROMOTED", "LEFT"]


async def test_a_board_is_the_same_for_everybody_and_cacheable(scene: Scene) -> None:
    await scene.create(capacity=0)
    entry = await scene.enter()
    answer = await scene.anyone.get("/api/queue/board", params=scene.where())
    assert answer.headers["cache-control"] == "public, max-age=1"
    board = answer.json()
    assert set(board) == {"queue", "epoch", "generation", "serving", "waiting", "ratePerSecond", "marks", "at"}
    assert (board["waiting"], board["marks"]) == (1, [[entry["place"], 1]])


async def test_servers_offer_redeem_and_end(scene: Scene) -> None:
    await scene.create()
    entry = await scene.enter()
    beat = {"capacity": 1, "maxCapacity": 2, "address": "ws://arena", "sessions": [], "asOf": 0}
    answer = await scene.admin.put("/api/queue/servers/s1", params=scene.where(), json=beat)
    assert answer.json() == {"drain": False, "report": False, "seq": 0, "leaseMs": 10_000}
    await scene.visit()
    status = (await scene.status(entry["userId"])).json()
    assert status["server"] == {"instanceId": "s1", "address": "ws://arena"}
    redeem = f"/api/queue/tickets/{status['ticketId']}/redeem"
    wrong = await scene.admin.post(redeem, params=scene.where(), json={"sessionId": "x1", "instanceId": "s2"})
    assert (wrong.status_code, wrong.json()["code"]) == (403, "ticket_invalid")
    first = await scene.admin.post(redeem, params=scene.where(), json={"sessionId": "x1", "instanceId": "s1"})
    assert first.json()["user"] == {"userId": entry["userId"], "nickname": "Ryan"}
    again = await scene.admin.post(redeem, params=scene.where(), json={"sessionId": "x1", "instanceId": "s1"})
    assert again.json() == first.json()
    used = await scene.admin.post(redeem, params=scene.where(), json={"sessionId": "x2", "instanceId": "s1"})
    assert (used.status_code, used.json()["code"]) == (409, "ticket_used")
    [server] = (await scene.admin.get("/api/queue/servers", params=scene.where())).json()["servers"]
    assert (server["sessions"], server["holds"], server["capacity"], server["maxCapacity"]) == (1, 0, 1, 2)
    for _ in range(2):
        ended = await scene.admin.post("/api/queue/sessions/x1/end", params=scene.where())
        assert ended.status_code == 204
    assert (await scene.status(entry["userId"])).json()["status"] == "FINISHED"
    gone = await scene.admin.delete("/api/queue/servers/s1", params=scene.where(drain="true"))
    assert gone.status_code == 204
    answer = await scene.admin.put("/api/queue/servers/s1", params=scene.where(), json={"capacity": 1})
    assert answer.json()["drain"] is True


async def test_servers_routes_need_a_token(scene: Scene) -> None:
    for method, path in (
        ("PUT", "/api/queue/servers/s1"),
        ("DELETE", "/api/queue/servers/s1"),
        ("POST", "/api/queue/tickets/t/redeem"),
        ("POST", "/api/queue/sessions/s/end"),
        ("GET", "/api/queue/servers"),
        ("GET", "/api/admin/queues"),
        ("PUT", "/api/admin/queues/main"),
    ):
        answer = await scene.anyone.request(method, path, params=scene.where())
        assert answer.status_code == 401, path


async def test_a_signed_ticket_is_checked_with_the_published_keys(scene: Scene) -> None:
    await scene.create(capacity=1)
    entry = await scene.enter()
    await scene.visit()
    status = (await scene.status(entry["userId"])).json()
    published = await scene.anyone.get("/.well-known/jwks.json")
    assert "d" not in published.json()["keys"][0]
    keys = PublicKeys.read(published.content)
    ticket = keys.check_ticket(status["ticket"], queue="main", namespace=scene.namespace)
    assert (ticket.jti, ticket.sub, ticket.gen) == (status["ticketId"], entry["userId"], 1)


async def test_operators_change_policies_with_if_match(scene: Scene) -> None:
    created = await scene.admin.put("/api/admin/queues/shop", params=scene.where(), json={"capacity": 3})
    assert (created.status_code, created.headers["etag"], created.json()["version"]) == (201, '"1"', 1)
    assert (created.json()["seats"], created.json()["batch"], created.json()["failMode"]) == ("fixed", 100, "closed")
    headers = {"If-Match": '"1"'}
    changed = await scene.admin.put(
        "/api/admin/queues/shop", params=scene.where(), json={"ratePerSecond": 5}, headers=headers
    )
    assert (changed.status_code, changed.json()["capacity"], changed.json()["ratePerSecond"]) == (200, 3, 5)
    stale = await scene.admin.put("/api/admin/queues/shop", params=scene.where(), json={"batch": 1}, headers=headers)
    assert (stale.status_code, stale.json()["code"]) == (412, "version_conflict")
    only_new = {"If-None-Match": "*"}
    taken = await scene.admin.put("/api/admin/queues/shop", params=scene.where(), json={}, headers=only_new)
    assert taken.status_code == 412
    paused = await scene.admin.post("/api/admin/queues/shop/pause", params=scene.where())
    assert (paused.json()["paused"], paused.headers["etag"]) == (True, '"3"')
    figures = (await scene.admin.get("/api/admin/queues/shop", params=scene.where())).json()["figures"]
    assert {"waiting", "away", "holds", "sessions", "capacity", "admittedTotal", "ratePerSecond"} <= set(figures)
    records = (await scene.admin.get("/api/admin/queues/shop/audit", params=scene.where())).json()["records"]
    assert [record["action"] for record in records] == ["pause", "configure", "configure"]
    assert records[0]["who"]
    assert (records[0]["old"]["paused"], records[0]["new"]["paused"]) == (False, True)
    assert (records[1]["old"]["ratePerSecond"], records[1]["new"]["ratePerSecond"]) == (None, 5)
    listed = (await scene.admin.get("/api/admin/queues", params=scene.where())).json()["queues"]
    assert [queue["queue"] for queue in listed] == ["shop"]
    assert (await scene.admin.delete("/api/admin/queues/shop", params=scene.where())).status_code == 204
    assert (await scene.admin.get("/api/admin/queues/shop", params=scene.where())).status_code == 404


async def test_if_match_star_changes_only_a_queue_that_exists(scene: Scene) -> None:
    path, star = "/api/admin/queues/shop", {"If-Match": "*"}

    async def put(capacity: int) -> httpx2.Response:
        return await scene.admin.put(path, params=scene.where(), json={"capacity": capacity}, headers=star)

    refused = await put(3)
    assert (refused.status_code, refused.json()["code"], refused.json()["version"]) == (412, "version_conflict", 0)
    assert (await scene.admin.get(path, params=scene.where())).status_code == 404
    missing = await scene.admin.post(f"{path}/pause", params=scene.where(), headers=star)
    assert (missing.status_code, missing.json()["code"]) == (404, "queue_unknown")

    await scene.admin.put(path, params=scene.where(), json={"capacity": 3})
    changed = await put(4)
    assert (changed.status_code, changed.json()["version"], changed.json()["capacity"]) == (200, 2, 4)
    paused = await scene.admin.post(f"{path}/pause", params=scene.where(), headers=star)
    assert paused.json()["paused"] is True
    assert {answer.status_code for answer in await asyncio.gather(*(put(seats) for seats in range(5, 8)))} == {200}
    assert (await scene.admin.delete(path, params=scene.where(), headers=star)).status_code == 204
    assert (await put(5)).status_code == 412, "a queue that was deleted is not there"


@pytest.mark.parametrize(
    "policy",
    [
        {"batch": 0},
        {"tickMs": 1},
        {"seats": "some"},
        {"capacity": -1},
        {"softCap": 1},
        {"seats": "fixed"},
        {"opensAt": "tomorrow"},
        {"message": "a\u0000b"},
    ],
)
async def test_a_policy_that_makes_no_sense_is_refused(scene: Scene, policy: dict[str, object]) -> None:
    answer = await scene.admin.put("/api/admin/queues/main", params=scene.where(), json=policy)
    assert answer.status_code == 422, answer.text


@pytest.mark.parametrize("field", ["capacity", "maxCapacity"])
async def test_a_server_with_too_many_seats_is_told_how_many_it_may_have(scene: Scene, field: str) -> None:
    await scene.create(seats="servers")
    where = "/api/queue/servers/s1"
    most = await scene.admin.put(where, params=scene.where(), json={field: 10_000, "sessions": []})
    assert most.status_code == 200, most.text
    refused = await scene.admin.put(where, params=scene.where(), json={field: 10_001, "sessions": []})
    assert refused.status_code == 422
    assert (
        refused.json()["detail"] == f"{field} must be a whole number from 0 to 10000; for more seats run more servers."
    )
    assert refused.json()["field"] == field


async def test_admit_and_reset(scene: Scene) -> None:
    await scene.create(capacity=10, ratePerSecond=0)
    entries = [await scene.enter(f"n{number}") for number in range(3)]
    view = (await scene.admin.post("/api/admin/queues/main/admit", params=scene.where(), json={"count": 2})).json()
    assert (view["holds"], view["waiting"], view["admittedTotal"]) == (2, 1, 2)
    reset = (await scene.admin.post("/api/admin/queues/main/reset", params=scene.where())).json()
    assert (reset["generation"], reset["waiting"], reset["holds"]) == (2, 0, 0)
    answer = await scene.status(entries[2]["userId"])
    assert (answer.status_code, answer.json()["code"]) == (410, "queue_reset")
    stale = await scene.anyone.post(
        "/api/queue/entry",
        params=scene.where(),
        json={"nickname": "n2", "userId": entries[2]["userId"]},
        headers={"X-Place-Token": entries[2]["placeToken"]},
    )
    assert (stale.status_code, stale.json()["code"]) == (410, "queue_reset")


async def test_the_store_away_is_a_503_at_once(fresh_server: Any, fresh_gateway: Any) -> None:
    topology: Topology = fresh_server()
    process: GatewayProcess = fresh_gateway(topology.url)
    admin = httpx2.AsyncClient(base_url=process.url, headers={"X-API-Token": process.token}, timeout=10)
    async with admin:
        await admin.put("/api/admin/queues/main", json={"capacity": 1})
        entry = (await admin.post("/api/queue/entry", json={"nickname": "Ryan"})).json()
        for node in topology.nodes:
            node.stop()
        for answer in (
            await admin.post("/api/queue/entry", json={"nickname": "Ryan"}),
            await admin.get("/api/queue/status", params={"userId": entry["userId"]}),
        ):
            assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
            assert int(answer.headers["retry-after"]) >= 1


async def test_a_gateway_without_any_worker_shows_who_waits_at_its_operations_port(
    server: Topology, fresh_gateway: Any
) -> None:
    process: GatewayProcess = fresh_gateway(server.url)
    async with httpx2.AsyncClient(base_url=process.url, headers={"X-API-Token": process.token}) as admin:
        await admin.put("/api/admin/queues/main", json={"capacity": 0})
        for number in range(3):
            await admin.post("/api/queue/entry", json={"nickname": f"n{number}"})

        async def shown() -> bool:
            text = (await admin.get(f"{process.ops_url}/metrics")).text
            return 'headgate_queue_waiting{queue="main"} 3.0' in text and 'process="gateway"' in text

        await eventually(shown, 20)


async def test_the_gateway_shows_the_seeds_counters_at_the_first_look(server: Topology, fresh_gateway: Any) -> None:
    process: GatewayProcess = fresh_gateway(server.url)
    async with httpx2.AsyncClient(base_url=process.url, headers={"X-API-Token": process.token}) as admin:
        await admin.put("/api/admin/queues/main", json={"capacity": 5, "ratePerSecond": 0})
        for number in range(3):
            await admin.post("/api/queue/entry", json={"nickname": f"n{number}"})
        await admin.post("/api/admin/queues/main/admit", json={"count": 2})
        text = (await admin.get("/metrics")).text
    assert 'ticket_issued_count{queue="main"} 2.0' in text
    assert 'ticket_expired_count{queue="main"} 0.0' in text
    assert 'headgate_queue_waiting{queue="main"} 1.0' in text
    assert 'headgate_queue_wait_seconds_count{queue="main"} 2.0' in text


async def test_configured_keys_sign_and_rotate(server: Topology, fresh_gateway: Any) -> None:
    old, new = SigningKeys.generate(), SigningKeys.generate()
    both = msgspec.json.encode({"keys": msgspec.json.decode(new)["keys"] + msgspec.json.decode(old)["keys"]}).decode()
    process: GatewayProcess = fresh_gateway(server.url, environment={"HEADGATE_SIGNING_KEYS": both})
    async with httpx2.AsyncClient(base_url=process.url) as client:
        keys = (await client.get("/.well-known/jwks.json")).json()["keys"]
    assert [key["x"] for key in keys] == [
        msgspec.json.decode(new)["keys"][0]["x"],
        msgspec.json.decode(old)["keys"][0]["x"],
    ]


async def test_a_stranger_cannot_use_up_the_limit_of_an_account(server: Topology, fresh_gateway: Any) -> None:
    trusting = {"HEADGATE_GATEWAY_TRUSTED_PROXIES": '["127.0.0.1"]'}
    process: GatewayProcess = fresh_gateway(server.url, environment=trusting)
    admin = httpx2.AsyncClient(base_url=process.url, headers={"X-API-Token": process.token})
    async with admin, httpx2.AsyncClient(base_url=process.url) as anyone:
        await admin.put("/api/admin/queues/main", json={"capacity": 0})
        own = (await admin.post("/api/queue/entry", json={"nickname": "Ryan", "userId": "ryan"})).json()

        async def ask(address: str, **headers: str) -> int:
            headers["X-Forwarded-For"] = address
            return (await anyone.get("/api/queue/status", params={"userId": "ryan"}, headers=headers)).status_code

        assert set(await asyncio.gather(*(ask("198.51.100.9") for _ in range(30)))) == {403, 429}
        assert await ask("203.0.113.7", **{"X-Place-Token": own["placeToken"]}) == 200
