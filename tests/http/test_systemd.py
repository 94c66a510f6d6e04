"""The systemd units: well-formed, and the line that one runs registers a program and takes it out when it is stopped."""

from __future__ import annotations

import configparser
import os
import secrets
import shlex
import shutil
import signal
import string
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.processes import GatewayProcess
from tests.topology import wait_until

UNITS = Path(__file__).parent.parent.parent / "deploy" / "systemd"


def settings(unit: str) -> configparser.SectionProxy:
    """Read what a unit says of its service; a name that is repeated keeps its last value."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((UNITS / unit).read_text())
    return parser["Service"]


@pytest.mark.parametrize("unit", sorted(path.name for path in UNITS.glob("*.service")))
def test_the_units_are_well_formed(unit: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    # The program need not be installed for its unit to be checked; another one stands in for it.
    text = (UNITS / unit).read_text().replace("/usr/bin/headgate", "/bin/true")
    copy = tmp_path / unit.replace("@", "@game")
    copy.write_text(text)
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60
    )
    complaints = [line for line in checked.stderr.splitlines() if unit.split("@")[0].split(".")[0] in line]
    assert complaints == []


def test_stopping_a_registered_program_takes_it_out(gateway_process: GatewayProcess, tmp_path: Path) -> None:
    service = settings("registered@.service")
    assert service["KillMode"] == "mixed", "SIGTERM reaches headgate alone, which passes it on"
    group = f"g{secrets.token_hex(4)}"
    given = {"SERVICE": f"game/{group}", "PORT": "7000", "COMMAND": "sleep 60"}
    line = string.Template(service["ExecStart"]).substitute(given)
    command = [sys.executable, "-m", "headgate", *shlex.split(line)[1:]]
    environment = {
        **os.environ, "HEADGATE_URL": gateway_process.url, "HEADGATE_TOKEN": gateway_process.token,
        "HOME": str(tmp_path),
    }  # fmt: skip

    def listed() -> int:
        query = {"type": "game", "group": group}
        headers = {"X-API-Token": gateway_process.token}
        answer = httpx2.get(f"{gateway_process.url}/sd/v1/instances", params=query, headers=headers)
        return len(answer.json()["instances"])

    running = subprocess.Popen(command, env=environment)
    try:
        wait_until(lambda: listed() == 1, 20, "it is registered")
        running.terminate()
        code = running.wait(int(service["TimeoutStopSec"]))
        assert listed() == 0, "gone before systemd considers it stopped"
        assert code == 128 + signal.SIGTERM
        assert str(code) in service["SuccessExitStatus"].split()
    finally:
        running.kill()
        running.wait()
