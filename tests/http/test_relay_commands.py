"""`headgate relay …` against a running gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from secrets import token_hex

import anyio.to_thread
import pytest

from tests.processes import Gateway
from tests.topology import free_port


@pytest.fixture
def name() -> str:
    return f"up-{token_hex(4)}"


async def headgate(gateway: Gateway, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a person would."""
    environment = {"HEADGATE_URL": gateway.url, "HEADGATE_TOKEN": gateway.token, "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "headgate", "relay", *arguments]
    return await anyio.to_thread.run_sync(
        lambda: subprocess.run(command, capture_output=True, text=True, timeout=90, env=environment)
    )


async def test_upstream_is_set_listed_and_removed(gateway: Gateway, name: str) -> None:
    made = await headgate(
        gateway, "upstream", "set", name, "--base-url", "http://x.test", "--count", "5", "--seconds", "2"
    )
    assert (made.returncode, made.stdout) == (0, f"{name}: 5 per 2 s per user at http://x.test (version 1)\n")
    changed = await headgate(gateway, "upstream", "set", name, "--counter", "sliding-counter", "--json")
    assert json.loads(changed.stdout)["policy"]["counter"] == "sliding-counter"
    listed = await headgate(gateway, "upstream", "list")
    assert f"{name}\thttp://x.test\t5 per 2 s per user\tsliding-counter\t2" in listed.stdout
    status = await headgate(gateway, "status", name, "--json")
    assert json.loads(status.stdout)[0]["waiting"] == 0
    assert (await headgate(gateway, "upstream", "remove", name)).returncode == 0
    unknown = await headgate(gateway, "status", name)
    assert unknown.returncode == 1
    assert "no upstream named" in unknown.stderr


async def test_half_a_policy_is_refused_with_the_next_step(gateway: Gateway, name: str) -> None:
    refused = await headgate(gateway, "upstream", "set", name, "--base-url", "http://x.test")
    assert refused.returncode == 1
    assert "--count" in refused.stderr


async def test_prove_prints_the_largest_window(gateway: Gateway) -> None:
    proof = await headgate(gateway, "prove", "--requests", "20", "--count", "5", "--seconds", "1", "--json")
    assert proof.returncode == 0, proof.stderr
    verdict = json.loads(proof.stdout)
    assert (verdict["refused"], verdict["answered"], verdict["largestWindow"]) == (0, 20, 5)
    listed = await headgate(gateway, "upstream", "list", "--json")
    assert not [view for view in json.loads(listed.stdout) if view["name"].startswith("prove-")]


async def test_a_trial_that_nobody_answered_proves_nothing(gateway: Gateway) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    nothing = await headgate(gateway, "prove", "--requests", "3", "--relay", away)
    assert (nothing.returncode, nothing.stdout) == (3, "")
    assert nothing.stderr.startswith(f"headgate: Nothing was proven: {away} cannot be reached: ")
    half = await headgate(gateway, "prove", "--requests", "4", "--relay", gateway.url, "--relay", away, "--json")
    assert half.returncode == 3
    assert json.loads(half.stdout)["answered"] == 2
    assert "2 of 4 requests failed" in half.stderr
    wrong = await headgate(gateway, "prove", "--relay", "localhost:8082")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("headgate: --relay must begin with http:// or https://")
