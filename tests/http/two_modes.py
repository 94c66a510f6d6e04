"""A client of either mode, through the gateway and beside the store, in a namespace of the test's own."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.sdk import Headgate
from tests.processes import GatewayProcess
from tests.topology import Topology

Make = Callable[..., Headgate]


@pytest.fixture
def namespace() -> str:
    """A name that no other test uses."""
    return f"n{secrets.token_hex(4)}"


@pytest.fixture(params=["store", "http"])
def make(
    request: pytest.FixtureRequest, server: Topology, gateway_process: GatewayProcess, namespace: str, tmp_path: Path
) -> Make:
    """Make clients of one mode; all of a test share a namespace, and `port` leads them through a proxy."""

    def made(port: int | None = None, **options: Any) -> Headgate:
        given = {"namespace": namespace, "snapshot_dir": tmp_path, "heartbeat_interval_ms": 200, **options}
        if request.param == "http":
            url = gateway_process.url if port is None else f"http://127.0.0.1:{port}"
            return Headgate(url, **{"token": gateway_process.token, **given})
        url = server.url if port is None else f"valkey://127.0.0.1:{port}/0"
        return Headgate(url, prefix=gateway_process.prefix, **given)

    return made


@pytest.fixture
async def hg(make: Make) -> AsyncIterator[Headgate]:
    """A client that is open."""
    async with make() as client:
        yield client
