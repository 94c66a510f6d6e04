"""Commands about something that is not there: a sentence on stderr, nothing on stdout, exit code 1."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import GatewayProcess
from tests.topology import Topology


@pytest.mark.parametrize("mode", ["gateway", "store"])
@pytest.mark.parametrize("json", [[], ["--json"]], ids=["words", "json"])
def test_what_is_not_there_is_said_with_exit_code_1(
    server: Topology, gateway_process: GatewayProcess, tmp_path: Path, mode: str, json: list[str]
) -> None:
    environment = {
        **os.environ, "HEADGATE_URL": gateway_process.url if mode == "gateway" else server.url, "HOME": str(tmp_path),
        "HEADGATE_TOKEN": gateway_process.token, "HEADGATE_STORE_PREFIX": gateway_process.prefix,
    }  # fmt: skip
    for command in (
        "queue show nowhere", "queue show ..", "service show nowhere", "service show nowhere/g", "config get nowhere",
        "config get default nowhere", "lock show nowhere",
        "relay status nowhere", "server list nowhere",
    ):  # fmt: skip
        words = [sys.executable, "-m", "headgate", *command.split(), *json]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (1, ""), command
        assert done.stderr.startswith("headgate: "), command
        assert done.stderr.count("\n") == 1, done.stderr
        assert "nowhere" in done.stderr or ".." in command


def test_what_is_not_there_is_said_with_the_command_that_lists_what_is(
    gateway_process: GatewayProcess, tmp_path: Path
) -> None:
    environment = {
        **os.environ, "HEADGATE_URL": gateway_process.url, "HOME": str(tmp_path),
        "HEADGATE_TOKEN": gateway_process.token, "HEADGATE_STORE_PREFIX": gateway_process.prefix,
    }  # fmt: skip
    for command, shows in (
        ("token revoke nowhere", "headgate token list"),
        ("load --queue nowhere --players 1", "headgate queue list"),
        ("chat ada --queue nowhere", "headgate queue list"),
        ("server list nowhere", "headgate queue list"),
        ("relay status nowhere", "headgate relay upstream list"),
        ("config get default nowhere", "headgate config get default"),
    ):
        words = [sys.executable, "-m", "headgate", *command.split()]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, ""), command
        assert "nowhere" in done.stderr
        assert f"`{shows}` shows those that are there" in done.stderr
    chat = [sys.executable, "-m", "headgate", "chat", ""]
    unnamed = subprocess.run(chat, env=environment, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert unnamed.stderr == "headgate: A nickname needs at least one character.\n"
    bare = [sys.executable, "-m", "headgate", "relay", "upstream", "set", "x"]
    asked = subprocess.run(bare, env=environment, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert asked.stderr == "headgate: Give --base-url, --count and --seconds, or the whole policy in JSON.\n"
