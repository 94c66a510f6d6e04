"""The one place that reads the environment and `headgate.toml`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from headgate.arena.settings import ArenaSettings
from headgate.config.settings import ConfigSettings
from headgate.gateway.settings import GatewaySettings
from headgate.http.operations import OperationsSettings
from headgate.kit.logs import LogSettings
from headgate.kit.settings import FILE_NAME, Configuration, Doc, Flag, Settings, configure
from headgate.kit.traces import TraceSettings
from headgate.locks.settings import LockSettings
from headgate.registry.settings import RegistrySettings
from headgate.relay.settings import RelaySettings
from headgate.store.settings import StoreSettings
from headgate.waiting_room.settings import WaitingRoomSettings


class ClientSettings(Settings, section="client"):
    """The address and token by which commands reach a running Headgate."""

    url: Annotated[
        str, Doc("a gateway's or a store's URL; empty: the `up` running in this directory", "HEADGATE_URL", True)
    ] = ""
    token: Annotated[str, Doc("the token to show there", "HEADGATE_TOKEN", True)] = ""


class DataSettings(Settings, section="data"):
    """The directory in which `up` keeps its data."""

    directory: Annotated[Path, Doc("directory of the embedded store, the admin token and the signing keys")] = Path(
        ".headgate"
    )


KINDS: tuple[type[Settings], ...] = (
    StoreSettings,
    GatewaySettings,
    WaitingRoomSettings,
    RegistrySettings,
    ConfigSettings,
    LockSettings,
    RelaySettings,
    ArenaSettings,
    OperationsSettings,
    LogSettings,
    TraceSettings,
    DataSettings,
    ClientSettings,
)

# Variables that our commands set for the programs they run, which may be `headgate` again.
HANDED_DOWN = frozenset({"HEADGATE_INSTANCE_ID", "HEADGATE_LOCK", "HEADGATE_FENCE"})


def read_settings(**flags: tuple[str, object]) -> Configuration:
    """Read all settings; flags are given as `store__url=("--store", value)`, None meaning not given."""
    said = {name.replace("__", "."): Flag(spelling, value) for name, (spelling, value) in flags.items()}
    file = Path(FILE_NAME)
    environment = {name: value for name, value in os.environ.items() if name not in HANDED_DOWN}
    return configure(KINDS, flags=said, environment=environment, file=file if file.exists() else None)
