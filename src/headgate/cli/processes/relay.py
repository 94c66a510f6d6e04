"""`headgate serve relay`: the parent process of a relay's worker processes."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from cyclopts import Parameter

from headgate.cli.options import Host, Leash, OpsPort, StoreUrl
from headgate.cli.processes.serving import relay_application, serve_workers
from headgate.cli.processes.startup import begin
from headgate.cli.settings import read_settings
from headgate.gateway.settings import GatewaySettings
from headgate.kit.settings import Configuration
from headgate.relay.settings import RelaySettings

SPARE_SECONDS = 2.0


async def relay(
    *,
    store: StoreUrl = None,
    host: Host = None,
    port: int | None = None,
    ops_port: OpsPort = None,
    workers: int | None = None,
    demo: Annotated[bool, Parameter(negative=(), show=False)] = False,
    leash: Leash = False,
) -> int:
    """Run the forwarding proxy; any number of relays may run.

    Parameters
    ----------
    port
        Port to listen on (8082 unless set).
    workers
        Processes that relay requests.
    demo
        Also run a strict upstream to try it on.
    """
    configuration = read_settings(
        store__url=("--store", store),
        gateway__host=("--host", host),
        relay__port=("--port", port),
        relay__workers=("--workers", workers),
        ops__port=("--ops-port", ops_port),
    )
    begin(configuration, "relay", leash=leash)
    listener = relay_listener(configuration)
    await serve_workers(partial(relay_application, demo=demo), configuration, listener, alone=False, leash=leash)
    return 0


def relay_listener(configuration: Configuration) -> GatewaySettings:
    """Return the settings of a relay's listener: those of a gateway, with the port, workers and deadline of a relay."""
    settings = configuration[RelaySettings]
    return msgspec.structs.replace(
        configuration[GatewaySettings],
        port=settings.port,
        workers=settings.workers,
        stop_seconds=settings.drain_seconds + SPARE_SECONDS,
    )
