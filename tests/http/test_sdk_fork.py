"""A client that was opened before a fork: the child opens its own or is refused, and the parent's goes on unharmed."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from tests.processes import GatewayProcess
from tests.topology import Topology


@pytest.fixture(params=["store", "http"])
def where(request: pytest.FixtureRequest, server: Topology, gateway_process: GatewayProcess, prefix: str) -> list[str]:
    if request.param == "store":
        return [server.url, "", prefix]
    return [gateway_process.url, gateway_process.token, prefix]


def run(case: str, way: str, where: list[str]) -> dict[str, dict[str, object]]:
    """Run the program and give what each process said; one that hangs is a failure."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.http.forking", case, way, *where]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    said = [msgspec.json.decode(line, type=dict[str, object]) for line in ended.stdout.splitlines()]
    return {str(facts.pop("who")): facts for facts in said}


@pytest.mark.parametrize("way", ["fork", "multiprocessing"])
def test_a_forked_child_opens_a_synchronous_client_of_its_own(where: list[str], way: str) -> None:
    said = run("sync", way, where)
    assert said["child"] == {
        "child_holds": True,
        "parent_holds": True,
        "lost": True,
        "fence": "Forked",
        "release": "Forked",
        "call_from_before": "Forked",
        "taken": "LockHeld",
    }
    assert said["parent"] == {"code": 0, "lost": False, "holds": True, "fence": True}
    assert said["after"] == {"held": False}


@pytest.mark.parametrize("way", ["fork", "multiprocessing"])
def test_a_forked_child_may_not_use_an_asynchronous_client_but_open_it_anew(where: list[str], way: str) -> None:
    said = run("async", way, where)
    assert said["child"] == {"inherited": "Forked", "anew": "done"}
    assert said["parent"] == {"code": 0, "held": False}


def test_a_spawned_child_has_a_client_of_its_own_and_none_is_sent(where: list[str]) -> None:
    said = run("spawn", "", where)
    assert said["child"] == {"fence": True}
    assert said["parent"] == {
        "code": 0,
        "sent": "a HeadgateSync cannot be copied or sent to another process; open one there",
    }
