"""`headgate serve gateway`: the parent process of a gateway's worker processes."""

from __future__ import annotations

from headgate.cli.options import Host, Leash, OpsPort, StoreUrl
from headgate.cli.processes.serving import gateway_application, serve_workers
from headgate.cli.processes.startup import begin
from headgate.cli.settings import read_settings
from headgate.gateway.settings import GatewaySettings


async def gateway(
    *,
    store: StoreUrl = None,
    host: Host = None,
    port: int | None = None,
    ops_port: OpsPort = None,
    workers: int | None = None,
    leash: Leash = False,
) -> int:
    """Run the HTTP APIs, the gate, the pages and the console; any number of gateways may run.

    Parameters
    ----------
    port
        Port to listen on.
    workers
        Processes that answer requests.
    """
    configuration = read_settings(
        store__url=("--store", store),
        gateway__host=("--host", host),
        gateway__port=("--port", port),
        gateway__workers=("--workers", workers),
        ops__port=("--ops-port", ops_port),
    )
    begin(configuration, "gateway", leash=leash)
    await serve_workers(gateway_application, configuration, configuration[GatewaySettings], leash=leash)
    return 0
