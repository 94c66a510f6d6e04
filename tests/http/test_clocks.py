"""Processes whose clock is wrong: what they sign says the store's time, and their probes and `doctor` tell of it."""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headgate.gateway.console import SESSION_SECONDS
from headgate.sdk import HeadgateSync, PolicyChange
from headgate.waiting_room.model import BEAT_SECONDS
from headgate.waiting_room.problems import TicketExpired
from headgate.waiting_room.signing import PLACE_SECONDS, SigningKeys, Ticket
from tests.processes import GatewayProcess
from tests.topology import FakeClock, Topology, eventually, free_port, reaper, wait_until

SECONDS = 600


def claims(token: str) -> dict[str, Any]:
    body = token.split(".")[1]
    said: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return said


def doctor(url: str, process: GatewayProcess, cwd: Path) -> list[dict[str, str]]:
    return doctor_of(url, {"HEADGATE_TOKEN": process.token, "HEADGATE_STORE_PREFIX": process.prefix}, cwd)


def doctor_of(url: str, environment: dict[str, str], cwd: Path) -> list[dict[str, str]]:
    done = subprocess.run(
        [sys.executable, "-m", "headgate", "doctor", "--url", url, "--json"],
        env={"PATH": "/usr/bin:/bin", **environment},
        cwd=cwd, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("ahead", "side"), [(SECONDS, "ahead of"), (-SECONDS, "behind")])
async def test_a_gateway_with_a_wrong_clock_signs_the_stores_time_and_says_so(
    server: Topology, fresh_gateway: Callable[..., GatewayProcess], tmp_path: Path, ahead: int, side: str
) -> None:
    wrong = fresh_gateway(server.url, environment=FakeClock(ahead).environment)
    async with httpx2.AsyncClient(base_url=wrong.url, headers={"X-API-Token": wrong.token}, timeout=20) as client:
        policy = {"capacity": 5, "ticketTtlSeconds": 60, "paths": ["/shop/**"]}
        assert (await client.put("/api/admin/queues/main", json=policy)).status_code == 201
        entry = (await client.post("/api/queue/entry", json={"nickname": "Ryan"})).json()
        assert abs(claims(entry["placeToken"])["exp"] - time.time() - PLACE_SECONDS) < 30
        assert (await client.post("/api/admin/queues/main/admit", json={"count": 1})).status_code == 200
        status = (await client.get("/api/queue/status", params={"userId": entry["userId"]})).json()
        assert status["status"] == "PROMOTED"
        assert 0 < claims(status["ticket"])["exp"] - time.time() <= 61

        async def guarded() -> bool:
            visit = await client.get("/gate/nginx", headers={"X-Original-URI": "/shop/a"})
            cookie = visit.headers.get("set-cookie", "")
            if not cookie:
                return False
            payload = cookie.partition("=")[2].split(".")[1]
            visitor = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
            (_, _, issued, expires), *_ = visitor[2]
            assert abs(issued - time.time()) < 30
            assert expires - time.time() <= 610
            return True

        await eventually(guarded, 5, "the gate knows of the queue")
        ready = await client.get(f"{wrong.ops_url}/readyz")
        assert ready.status_code == 200
        assert f"s {side} the store's" in ready.text

        def reported(url: str) -> bool:
            found = [each for each in doctor(url, wrong, tmp_path) if each["check"] == "clock of a process"]
            return bool(found) and side in found[0]["found"] and "NTP" in found[0]["advice"]

        wait_until(lambda: reported(server.url), 20, "doctor tells of it beside the store")
        assert reported(wrong.url), "doctor tells of it through the gateway"


CHECK = """
import asyncio, sys
from headgate.sdk import Headgate
from headgate.waiting_room.problems import TicketExpired

async def main(url, *tickets):
    async with Headgate(url) as hg:
        for ticket in tickets:
            try:
                print((await hg.queue.check_ticket(ticket)).jti)
            except TicketExpired:
                print("expired")

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("ahead", [SECONDS, -SECONDS])
def test_a_client_of_a_gateway_checks_tickets_by_the_stores_clock(
    server: Topology, fresh_gateway: Callable[..., GatewayProcess], ahead: int
) -> None:
    """The clocks of the client and of its gateway are wrong; the store's is right."""
    keys = SigningKeys.generate()
    clock = FakeClock(ahead).environment
    gateway = fresh_gateway(server.url, environment={**clock, "HEADGATE_SIGNING_KEYS": keys})
    now = int(time.time())
    tickets = [
        SigningKeys.read(keys).sign_ticket(Ticket(jti=jti, sub="u", aud="main", gen=1, exp=now + seconds))
        for jti, seconds in (("good", 60), ("old", -60))
    ]
    done = subprocess.run(
        [sys.executable, "-c", CHECK, gateway.url, *tickets],
        env={"PATH": "/usr/bin:/bin", **clock}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["good", "expired"]


@pytest.mark.parametrize("ahead", [SECONDS, -SECONDS])
async def test_sessions_and_opening_times_go_by_the_stores_clock(
    server: Topology, fresh_gateway: Callable[..., GatewayProcess], ahead: int
) -> None:
    wrong = fresh_gateway(server.url, environment=FakeClock(ahead).environment)
    async with httpx2.AsyncClient(base_url=wrong.url, headers={"X-API-Token": wrong.token}, timeout=20) as client:
        page = {"X-Headgate-Console": "1", "Origin": wrong.url}
        signed_in = await client.post("/console/session", json={"token": wrong.token}, headers=page)
        payload = signed_in.headers["set-cookie"].partition("=")[2].partition(".")[0]
        _, expires = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        assert abs(expires - time.time() - SESSION_SECONDS) < 30

        opens = {"soon": 300, "open": -300}
        for queue, seconds in opens.items():
            moment = datetime.fromtimestamp(time.time() + seconds, UTC).isoformat()
            policy = {"capacity": 5, "paths": [f"/{queue}/**"], "opensAt": moment}
            assert (await client.put(f"/api/admin/queues/{queue}", json=policy)).status_code == 201

        async def announced(queue: str) -> bool:
            return " UTC" in (await client.get(f"/wait/{queue}", params={"lang": "en"})).text

        await eventually(lambda: announced("soon"), 5, "the page says when the line opens")
        assert not await announced("open")


def test_a_gateway_whose_clock_is_right_says_nothing(gateway_process: GatewayProcess, tmp_path: Path) -> None:
    assert httpx2.get(f"{gateway_process.ops_url}/readyz").text == "ready\n"
    findings = doctor(gateway_process.url, gateway_process, tmp_path)
    assert "clock of a process" not in [each["check"] for each in findings]


def make_queue(url: str, prefix: str) -> None:
    with HeadgateSync(url, prefix=prefix) as hg:
        hg.queues.configure("main", PolicyChange())


@pytest.mark.parametrize("process", ["worker", "arena"])
def test_other_processes_report_a_wrong_clock_too(server: Topology, process: str) -> None:
    port, log = free_port(), reaper().directory("clock") / "log"
    prefix = {"HEADGATE_STORE_PREFIX": f"t{secrets.token_hex(4)}"}
    if process == "arena":  # it offers its seats, and so registers, once its queue is there
        make_queue(server.url, prefix["HEADGATE_STORE_PREFIX"])
    command = [sys.executable, "-m", "headgate", "serve", process, "--store", server.url, "--ops-port", str(port)]
    command += ["--port", str(free_port())] if process == "arena" else []
    with log.open("ab") as output:
        started = reaper().spawn(command, output, {**FakeClock(-SECONDS).environment, **prefix})
    try:

        def told() -> bool:
            try:
                answer = httpx2.get(f"http://127.0.0.1:{port}/readyz")
            except httpx2.RequestError:
                return False
            return answer.status_code == 200 and "600.0 s behind the store's" in answer.text

        def doctor_says() -> bool:
            found = {
                each["check"]: each["found"] for each in doctor_of(server.url, prefix, reaper().directory("doctor"))
            }
            assert "clock of a process" not in found or found["clocks of processes"].startswith(
                "1 of 1 process reports"
            )
            return found.get("clock of a process", "").endswith("is 600 s behind the store")

        wait_until(told, 60, "it is ready, and says so")
        wait_until(doctor_says, 30, "doctor tells of it")
        time.sleep(BEAT_SECONDS * 1.5)
        assert doctor_says(), "its heartbeats go on reporting it"
    finally:
        started.terminate()
        started.wait(20)


def test_a_ticket_is_checked_by_the_stores_time_where_that_is_known() -> None:
    keys = SigningKeys.read(SigningKeys.generate())
    signed = keys.sign_ticket(Ticket(jti="t", sub="u", aud="main", gen=1, exp=1_000_060))
    assert keys.public().check_ticket(signed, queue="main", now=1_000_000.0).jti == "t"
    with pytest.raises(TicketExpired):
        keys.public().check_ticket(signed, queue="main", now=1_000_100.0)
