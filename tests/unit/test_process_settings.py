"""The settings that processes start with, where `serve` and `up` differ on purpose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate.cli.processes.relay import relay_listener
from headgate.cli.settings import KINDS
from headgate.cli.trial.up import UpPlan, children_environment
from headgate.gateway.settings import GatewaySettings
from headgate.kit.settings import Configuration, configure


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no setting in the environment."""
    for name in [name for name in os.environ if name.startswith("HEADGATE_")]:
        monkeypatch.delenv(name)


def quiet_seconds(configuration: Configuration) -> tuple[float, float]:
    """Give how long a gateway and a relay go on serving after a stop signal."""
    return configuration[GatewaySettings].quiet_seconds, relay_listener(configuration).quiet_seconds


def test_serve_goes_on_serving_for_five_seconds_and_up_stops_at_once(tmp_path: Path) -> None:
    said_nothing = configure(KINDS)
    assert quiet_seconds(said_nothing) == (5, 5)
    plan = UpPlan(host="127.0.0.1", port=8080, directory=tmp_path, token="t" * 24, demo=True)
    for name in ("token", "signing-keys.json"):
        (tmp_path / name).write_text("a secret")
    environment = children_environment(said_nothing, plan, "valkey://127.0.0.1:6379")
    assert quiet_seconds(configure(KINDS, environment=environment)) == (0, 0)
