"""`headgate lock …` as people run it: exit codes, signals, and what happens when the lock or its keeper is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import httpx2
import pytest

from tests.processes import GatewayProcess
from tests.topology import Stopwatch, wait_until


@pytest.fixture
def name() -> str:
    return f"lock-{token_hex(4)}"


class Shell:
    """Runs `headgate` against the shared gateway."""

    def __init__(self, gateway: GatewayProcess, directory: Path) -> None:
        self._environment = os.environ | {"HEADGATE_URL": gateway.url, "HEADGATE_TOKEN": gateway.token}
        self._directory = directory
        self.http = httpx2.Client(base_url=gateway.url, headers={"X-API-Token": gateway.token}, timeout=20)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "headgate", "lock", *arguments],
            env=self._environment, cwd=self._directory, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=60)
        return process.returncode, output, errors

    def state(self, name: str) -> dict[str, object]:
        found: dict[str, object] = self.http.get(f"/lock/v1/{name}").json()
        return found

    def hold(self, name: str) -> str:
        answer = self.http.post(f"/lock/v1/{name}/acquire", json={"ttlSeconds": 30})
        return str(answer.json()["holder"])


@pytest.fixture
def shell(gateway_process: GatewayProcess, tmp_path: Path) -> Iterator[Shell]:
    made = Shell(gateway_process, tmp_path)
    with made.http:
        yield made


def test_a_command_runs_under_the_lock_and_its_exit_code_is_passed_on(shell: Shell, name: str) -> None:
    code, output, _ = shell.run("run", name, "--", "sh", "-c", "echo $HEADGATE_LOCK $HEADGATE_FENCE; exit 3")
    assert code == 3
    lock, fence = output.split()
    assert lock == name
    assert shell.state(name) | {"held": False, "fence": int(fence)} == shell.state(name)


def test_options_of_the_command_are_its_own(shell: Shell, name: str) -> None:
    code, output, _ = shell.run("run", name, "--ttl", "5", "--", "echo", "--wait", "-n", "--json")
    assert (code, output) == (0, "--wait -n --json\n")


def test_a_lock_that_is_not_acquired_is_75(shell: Shell, name: str, tmp_path: Path) -> None:
    shell.hold(name)
    for wait in ("0", "0.3"):
        code, _, errors = shell.run("run", name, "--wait", wait, "--", "touch", "ran")
        assert code == 75
        assert f"has held the lock {name} for " in errors
    assert not (tmp_path / "ran").exists()


@pytest.mark.topology("standalone")
def test_a_lock_that_no_replica_confirms_is_75_too(shell: Shell, name: str, tmp_path: Path) -> None:
    told: list[str] = []

    def answered() -> bool:
        code, _, errors = shell.run("run", name, "--ttl", "3", "--wait", "10", "--replicas", "1", "--", "touch", "ran")
        assert code == 75
        assert not (tmp_path / "ran").exists()
        told.append(errors)
        return "did not answer in time" not in errors  # which is all that a store standing still says

    wait_until(answered)
    assert "replicas" in told[-1]
    assert not shell.state(name)["held"]


def test_a_command_that_is_not_there_is_127_and_the_lock_is_free(shell: Shell, name: str) -> None:
    assert shell.run("run", name, "--", "no-such-command-anywhere")[0] == 127
    assert not shell.state(name)["held"]


def test_no_command_at_all_is_misuse(shell: Shell, name: str) -> None:
    code, _, errors = shell.run("run", name)
    assert code != 0
    assert "command" in errors


def test_a_lost_lock_stops_the_command_and_all_it_started(shell: Shell, name: str, tmp_path: Path) -> None:
    process = shell.start(
        "run", name, "--ttl", "3", "--", "sh", "-c", "trap '' TERM; sleep 60 & echo $! > child; echo up > up; wait"
    )
    wait_until((tmp_path / "up").exists)
    child = int((tmp_path / "child").read_text())
    shell.http.post(f"/lock/v1/{name}/break", json={"reason": "test"})
    watch = Stopwatch()
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 70
    assert errors.startswith(f"headgate: The lock {name} was lost: ")
    assert errors.count("\n") == 1, errors
    assert watch.seconds < 4  # the lease that was left, and a second
    wait_until(lambda: not _alive(child))


def test_a_signal_is_passed_on_and_the_lock_given_back(shell: Shell, name: str, tmp_path: Path) -> None:
    process = shell.start("run", name, "--", "sh", "-c", "echo up > up; exec sleep 60")
    wait_until((tmp_path / "up").exists)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert not shell.state(name)["held"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_killed_keeper_takes_its_command_along(shell: Shell, name: str, tmp_path: Path) -> None:
    process = shell.start("run", name, "--ttl", "3", "--", "sh", "-c", "echo $$ > child; exec sleep 60")
    wait_until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text().strip())
    child = int((tmp_path / "child").read_text())
    process.kill()
    process.communicate()
    wait_until(lambda: not _alive(child))
    assert shell.run("run", name, "--wait", "5", "--", "true")[0] == 0


def test_list_show_and_break(shell: Shell, name: str) -> None:
    shell.hold(name)
    code, output, _ = shell.run("list", "--json")
    assert code == 0
    assert name in [one["name"] for one in json.loads(output)]
    fence = shell.state(name)["fence"]
    code, _, errors = shell.run("break", name, "--reason", "stuck for an hour")
    assert code == 0
    assert str(fence) in errors
    code, output, _ = shell.run("show", name, "--json")
    shown = json.loads(output)
    assert (shown["lock"]["held"], shown["events"][0]["reason"]) == (False, "stuck for an hour")
    assert "stuck for an hour" in shell.run("show", name)[1]
    assert shell.run("break", name)[0] == 1


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
