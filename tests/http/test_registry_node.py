"""The Node example as it is shipped: it registers, beats, discovers, comes back and leaves."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from pathlib import Path

import httpx2

from tests.processes import GatewayProcess
from tests.programs import need

EXAMPLE = Path(__file__).parents[2] / "examples" / "node" / "register.mjs"


def test_a_server_in_node_lives_in_the_registry(gateway_process: GatewayProcess) -> None:
    group = f"g{secrets.token_hex(4)}"
    environment = {
        **os.environ, "HEADGATE_URL": gateway_process.url, "HEADGATE_TOKEN": gateway_process.token, "GROUP": group,
        "HEARTBEAT_MS": "400",
    }  # fmt: skip
    with (
        httpx2.Client(base_url=gateway_process.url, headers={"X-API-Token": gateway_process.token}) as client,
        subprocess.Popen([need("node"), str(EXAMPLE)], env=environment, stdout=subprocess.PIPE, text=True) as program,
    ):
        assert program.stdout is not None

        def step(name: str) -> dict[str, object]:
            assert program.stdout is not None
            while True:
                said: dict[str, object] = json.loads(program.stdout.readline())
                if said["step"] == name:
                    return said

        try:
            instance_id = step("registered")["instanceId"]
            assert step("discovered")["count"] == 1
            step("beat")
            place = {"type": "game", "group": group}
            (found,) = client.get("/sd/v1/instances", params=place).json()["instances"]
            assert (found["instanceId"], "load" in found["performance"]) == (instance_id, True)
            client.delete(f"/sd/v1/instances/{instance_id}", params=place)
            assert step("registered")["again"] is True
            program.send_signal(signal.SIGTERM)
            step("removed")
            assert program.wait(20) == 0
            assert client.get("/sd/v1/instances", params=place).json()["instances"] == []
        finally:
            program.kill()
