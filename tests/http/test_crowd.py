"""`headgate chat` and `headgate load` against a running `up`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from headgate.cli.crowd.record import Promise
from tests.topology import free_port, wait_until

pytestmark = pytest.mark.topology("standalone")


class Trial:
    """An `up` in a directory of its own, and commands given beside it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
        with (directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                self.command("up", "--port", str(free_port()), "--json"),
                cwd=directory,
                env={**self.environment, "HEADGATE_ARENA_CAPACITY": "20"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (directory / "log").read_text()
        self.told = json.loads(line)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "headgate", *words]

    def run(self, *words: str, say: str = "", seconds: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=self.directory,
            env=self.environment,
            input=say,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=20)


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    running = Trial(tmp_path_factory.mktemp("trial"))
    yield running
    running.stop()


def test_two_people_chat(trial: Trial) -> None:
    with subprocess.Popen(
        trial.command("chat", "라이언"),
        cwd=trial.directory,
        env=trial.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as ryan:
        assert ryan.stdout is not None
        assert ryan.stdin is not None
        assert "You are inside." in ryan.stdout.readline()
        other = trial.run("chat", "Muzi", say="/who\n안녕하세요!\n")
        assert other.returncode == 0, other.stderr
        assert "2 are here." in other.stdout
        heard = [ryan.stdout.readline() for _ in range(4)]
        assert "alone" in heard[0]
        assert "Muzi joined." in heard[1]
        assert "Muzi: 안녕하세요!" in heard[2]
        assert "Muzi left." in heard[3]
        ryan.stdin.write("/quit\n")
        ryan.stdin.flush()
        assert ryan.wait(10) == 0


def test_a_crowd_that_misbehaves_gets_through_with_every_promise_kept(trial: Trial) -> None:
    done = trial.run(
        *("load", "--players", "120", "--over", "3", "--stay", "1", "--seed", "5", "--json", "--report", "crowd.html"),
        *("--refreshing", "20", "--abandoning", "10", "--sharing", "15", "--crashing", "15"),
        seconds=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    assert figures["broken"] == {}
    assert figures["lost"] == 0
    assert figures["entered"] + figures["abandoned"] == 120
    assert figures["came_back"] > 0
    assert all(figures["promises"][promise] for promise in Promise)
    assert "<svg" in (trial.directory / "crowd.html").read_text()


def test_everybody_who_came_has_left_afterwards(trial: Trial) -> None:
    headers = {"X-API-Token": trial.told["token"]}

    def empty() -> bool:
        answer = httpx2.get(f"{trial.told['gateway']}/api/queue/servers", headers=headers)
        return all(server["sessions"] == 0 for server in answer.json()["servers"])

    wait_until(empty, 15, "nobody is inside")


def test_a_crowd_needs_a_gateway(trial: Trial) -> None:
    done = trial.run("load", "--url", trial.told["store"])
    assert done.returncode == 1
    assert "gateway" in done.stderr
    done = trial.run("load", "--sharing", "90", "--crashing", "20")
    assert done.returncode == 1
    assert "100 percent" in done.stderr
