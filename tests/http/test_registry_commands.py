"""`headgate service …` as a person at a terminal or a script runs it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import msgspec
import pytest

from tests.processes import GatewayProcess
from tests.topology import wait_until


class Shell:
    """Runs commands against the shared gateway, in a namespace of its own."""

    def __init__(self, process: GatewayProcess, home: Path) -> None:
        self.namespace = f"n{secrets.token_hex(4)}"
        self.environment = {
            **os.environ, "HEADGATE_URL": process.url, "HEADGATE_TOKEN": process.token, "HOME": str(home),
        }  # fmt: skip
        self.http = httpx2.Client(
            base_url=process.url,
            headers={"X-API-Token": process.token},
            params={"namespace": self.namespace},
            timeout=20,
        )

    def command(self, *words: str) -> list[str]:
        verb, *rest = words
        return [sys.executable, "-m", "headgate", "service", verb, "--namespace", self.namespace, *rest]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), env=self.environment, capture_output=True, text=True, timeout=60)

    def register(self, id_: str) -> None:
        # A lease that outlasts the test however slowly commands start.
        record = {
            "type": "game",
            "group": "g",
            "instanceId": id_,
            "hostname": "h",
            "metadata": {"v": "1"},
            "ttlSeconds": 600,
        }
        assert self.http.post("/sd/v1/instances", json=record).status_code == 200

    def names(self, **query: str) -> list[str]:
        answer = self.http.get("/sd/v1/instances", params={"type": "game", **query}).json()
        return sorted(each["instanceId"] for each in answer["instances"])


@pytest.fixture
def shell(gateway_process: GatewayProcess, tmp_path: Path) -> Iterator[Shell]:
    made = Shell(gateway_process, tmp_path)
    with made.http:
        yield made


def test_list_and_show(shell: Shell) -> None:
    shell.register("a")
    assert shell.run("list").stdout.split("\t")[:3] == ["game/g", "1", "1"]
    (service,) = msgspec.json.decode(shell.run("list", "--json").stdout)
    assert service["type"] == "game"
    assert shell.run("show", "game/g").stdout.startswith("a\tg")
    (instance,) = msgspec.json.decode(shell.run("show", "game", "--filter", "metadata.v==1", "--json").stdout)
    assert instance["instanceId"] == "a"
    assert shell.run("show", "game", "--filter", "metadata.v==2").stdout == ""


def test_drain_evict_and_remove(shell: Shell) -> None:
    for name in ("a", "b"):
        shell.register(name)
    assert shell.run("drain", "game/g", "a").returncode == 0
    assert shell.names(healthy="true") == ["b"]
    assert shell.run("drain", "game/g", "a", "--undo").returncode == 0
    assert shell.names(healthy="true") == ["a", "b"]
    assert shell.run("evict", "game/g", "a", "--for", "60").returncode == 0
    assert (
        shell.http.post(
            "/sd/v1/instances", json={"type": "game", "group": "g", "instanceId": "a", "hostname": "h"}
        ).status_code
        == 409
    )
    assert shell.run("remove", "game/g", "b").returncode == 0
    assert shell.names() == []
    missing = "There is no instance nobody in game/g; `headgate service show game/g` lists them."
    for verb in ("drain", "remove"):
        wrong = shell.run(verb, "game/g", "nobody")
        assert (wrong.returncode, wrong.stderr) == (1, f"headgate: {missing}\n")
    kept_out = shell.run("evict", "game/g", "nobody", "--for", "60")
    assert (kept_out.returncode, missing in kept_out.stderr) == (0, True)
    assert shell.run("remove", "game", "b").returncode == 1


def test_watch_prints_what_is_there_and_what_changes(shell: Shell) -> None:
    shell.register("a")
    watching = subprocess.Popen(
        shell.command("watch", "game/g", "--json"), env=shell.environment, stdout=subprocess.PIPE, text=True
    )
    assert watching.stdout is not None
    try:
        assert msgspec.json.decode(watching.stdout.readline())["kind"] == "present"
        shell.http.delete("/sd/v1/instances/a", params={"type": "game", "group": "g"})
        gone = msgspec.json.decode(watching.stdout.readline())
        assert (gone["kind"], gone["instanceId"]) == ("removed", "a")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 130
    finally:
        watching.stdout.close()
        watching.kill()
        watching.wait()


def test_any_program_is_registered_while_it_lives(shell: Shell, tmp_path: Path) -> None:
    note = tmp_path / "id"
    program = f"echo $HEADGATE_INSTANCE_ID > {note}; sleep 30"
    running = subprocess.Popen(
        shell.command("register", "game/g", "--port", "80", "--metadata", "v=1", "--", "sh", "-c", program),
        env=shell.environment,
    )
    try:
        wait_until(lambda: note.exists() and shell.names() == [note.read_text().strip()], 20)
        running.terminate()
        assert running.wait(20) == 128 + signal.SIGTERM
        assert shell.names() == []
    finally:
        running.kill()
        running.wait()
    assert shell.run("register", "game/g", "--", "sh", "-c", "exit 7").returncode == 7
    nested = shell.run("register", "game/g", "--", sys.executable, "-m", "headgate", "settings")
    assert nested.returncode == 0, "our own commands may run inside"
    assert shell.run("register", "game/g", "--", "/no/such/program").returncode == 127
