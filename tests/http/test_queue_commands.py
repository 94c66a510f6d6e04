"""`headgate queue …` and `headgate server …` as a person at a terminal or a script runs them, on a gateway and on a store."""

from __future__ import annotations

import os
import pty
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from headgate.cli.commands.queue_policy_text import read_policy
from headgate.kit.problems import InvalidRequest
from tests.processes import GatewayProcess
from tests.topology import Topology


class Shell:
    """Runs commands in a namespace of its own."""

    def __init__(self, process: GatewayProcess, url: str, home: Path) -> None:
        self.namespace = f"n{secrets.token_hex(4)}"
        self.environment = {
            **os.environ, "HEADGATE_URL": url, "HEADGATE_TOKEN": process.token, "HOME": str(home),
            "HEADGATE_STORE_PREFIX": process.prefix,
        }  # fmt: skip
        self.http = httpx2.Client(
            base_url=process.url,
            headers={"X-API-Token": process.token},
            params={"namespace": self.namespace},
            timeout=20,
        )

    def command(self, noun: str, verb: str, *rest: str) -> list[str]:
        return [sys.executable, "-m", "headgate", noun, verb, "--namespace", self.namespace, *rest]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), env=self.environment, capture_output=True, text=True, timeout=60)

    def json(self, *words: str) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return msgspec.json.decode(done.stdout)


@pytest.fixture(params=["gateway", "store"])
def shell(
    request: pytest.FixtureRequest, server: Topology, gateway_process: GatewayProcess, tmp_path: Path
) -> Iterator[Shell]:
    made = Shell(gateway_process, gateway_process.url if request.param == "gateway" else server.url, tmp_path)
    with made.http:
        yield made


def test_a_queue_from_creation_to_deletion(shell: Shell) -> None:
    made = shell.json("queue", "create", "main", "capacity=2", "rate-per-second=5", "message=Welcome, all")
    assert (made["capacity"], made["ratePerSecond"], made["message"], made["seats"]) == (2, 5, "Welcome, all", "fixed")
    twice = shell.run("queue", "create", "main")
    assert twice.returncode == 1
    assert twice.stderr == "headgate: There is a queue main already; `headgate queue set main …` changes it.\n"
    assert shell.json("queue", "set", "main", "ratePerSecond=null")["ratePerSecond"] is None
    assert shell.run("queue", "pause", "main").returncode == 0
    for number in range(3):
        shell.http.post("/api/queue/entry", json={"nickname": f"n{number}"}).raise_for_status()
    told = shell.run("queue", "admit", "main", "1")
    assert "1 called" in told.stderr, told.stderr
    assert told.stdout == ""
    assert shell.run("queue", "list").stdout.split("\t")[:3] == ["main", "paused", "2"]
    assert shell.run("queue", "resume", "main").returncode == 0
    assert shell.run("queue", "drain", "main").returncode == 0
    shown = shell.run("queue", "show", "main").stdout
    assert "draining" in shown
    rows = dict(line.split("\t") for line in shown.splitlines())
    assert (rows["ratePerSecond"], rows["now.ratePerSecond"][0].isdigit()) == ("no limit", True)
    assert len(rows) == len(shown.splitlines()), "no name means two things"
    refused = shell.run("queue", "reset", "main")
    assert (refused.returncode, "--yes" in refused.stderr) == (1, True)
    assert shell.run("queue", "reset", "main", "--yes").returncode == 0
    assert shell.json("queue", "show", "main")["generation"] == 2
    actions = [record["action"] for record in shell.json("queue", "audit", "main")["records"]]
    assert actions == ["reset", "drain", "resume", "admit", "pause", "configure", "configure"]
    changed = [line.split("\t")[3] for line in shell.run("queue", "audit", "main").stdout.splitlines()]
    assert changed[-2:] == [
        "ratePerSecond 5 → no limit",
        'seats fixed, capacity 2, ratePerSecond 5, message "Welcome, all"',
    ]
    assert shell.json("queue", "history", "main") == {"queue": "main", "minutes": []}
    assert shell.run("queue", "delete", "main", "--yes").returncode == 0
    gone = shell.run("queue", "show", "main")
    assert gone.returncode == 1
    assert gone.stderr.startswith("headgate: There is no queue main; ")
    assert "headgate queue create main" in gone.stderr
    assert "Traceback" not in gone.stderr


@pytest.mark.parametrize("word", ["capacity", "capacity=many", "colour=red", "batch=0"])
def test_a_field_that_makes_no_sense_is_refused(word: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_policy((word,))
    assert word.split("=")[0] in refused.value.detail
    assert "$" not in refused.value.detail


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("placement=foo", "placement must be most-free or packed."),
        ("fail-mode=foo", "failMode must be open or closed."),
        ("opensAt=tomorrow", "such as 2026-12-24T18:00:00Z"),
        ("ratePerSecond=", "ratePerSecond has no value; ratePerSecond=null takes the limit away."),
        ("capacity=many", "capacity must be a whole number; capacity=null takes the limit away."),
        ("ratePerSecond=abc", "ratePerSecond must be a number; ratePerSecond=null takes the limit away."),
        ("nothing=1", "There is no field named `nothing`. `headgate queue show NAME` lists"),
    ],
)
def test_a_value_that_cannot_be_is_told_what_can(word: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_policy((word,))
    assert said in refused.value.detail


@pytest.mark.parametrize("shell", ["gateway"], indirect=True)
def test_servers_are_listed(shell: Shell) -> None:
    shell.run("queue", "create", "main")
    assert shell.run("server", "list", "main").stdout == ""
    beat = {"capacity": 3, "address": "ws://arena", "sessions": ["x"]}
    shell.http.put("/api/queue/servers/s1", json=beat).raise_for_status()
    assert shell.run("server", "list").stdout.split("\t")[:5] == ["s1", "ws://arena", "1", "0", "3"]
    [view] = shell.json("server", "list", "main")
    assert view["sessions"] == 1


@pytest.mark.parametrize("shell", ["gateway"], indirect=True)
def test_watch_goes_on_until_it_is_interrupted(shell: Shell) -> None:
    shell.run("queue", "create", "main", "capacity=1")
    command = shell.command("queue", "watch", "main", "--json")
    with subprocess.Popen(command, env=shell.environment, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        lines = [msgspec.json.decode(watching.stdout.readline()) for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 130
    assert [line["queue"] for line in lines] == ["main", "main"]


@pytest.mark.parametrize("shell", ["gateway"], indirect=True)
def test_seats_that_are_kept_for_those_who_were_dropped_are_shown(shell: Shell) -> None:
    shell.run("queue", "create", "main", "capacity=1")
    entry = shell.http.post("/api/queue/entry", json={"nickname": "Ryan"}).json()
    shell.run("queue", "admit", "main", "1")
    called = shell.http.get("/api/queue/status", params={"userId": entry["userId"]}).json()
    shell.http.post(f"/api/queue/tickets/{called['ticketId']}/redeem", json={"sessionId": "s1"}).raise_for_status()
    shell.http.post("/api/queue/sessions/s1/end", json={"reason": "dropped"}).raise_for_status()
    assert shell.run("queue", "list").stdout.split("\t")[4:7] == ["0", "1", "0"]
    assert "0 inside, 1 seats kept" in shell.run("queue", "pause", "main").stderr


@pytest.mark.parametrize("shell", ["gateway"], indirect=True)
def test_a_question_can_be_left_with_one_interrupt(shell: Shell) -> None:
    shell.run("queue", "create", "main", "capacity=1")
    screen, side = pty.openpty()
    command = shell.command("queue", "reset", "main")
    with subprocess.Popen(command, env=shell.environment, stdin=side, stderr=subprocess.PIPE) as asking:
        try:
            assert asking.stderr is not None
            assert asking.stderr.read(9) == b"Everybody"
            asking.send_signal(signal.SIGINT)
            assert asking.wait(20) == 130
        finally:
            asking.kill()
            os.close(side)
            os.close(screen)
    assert shell.json("queue", "show", "main")["generation"] == 1
