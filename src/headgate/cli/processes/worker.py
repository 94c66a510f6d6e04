"""`headgate serve worker`: runs the periodic jobs of all features."""

from __future__ import annotations

import msgspec

from headgate.cli.options import Leash, OpsPort, StoreUrl
from headgate.cli.processes.assembly import Process, open_parts
from headgate.cli.processes.local_store import local_store
from headgate.cli.processes.startup import begin, listen_operations, store_trouble, wrong_clock
from headgate.cli.settings import read_settings
from headgate.http.operations import OperationsSettings
from headgate.kit import traces
from headgate.kit.life import STOP_SECONDS, Life, run_jobs
from headgate.kit.logs import get_logger
from headgate.relay.settings import RelaySettings
from headgate.store import StoreSettings, open_store

SPARE_SECONDS = 2.0

log = get_logger()


async def worker(*, store: StoreUrl = None, ops_port: OpsPort = None, leash: Leash = False) -> int:
    """Run promotion, sweeps, health checks and other due work; any number of workers may run."""
    configuration = read_settings(store__url=("--store", store), ops__port=("--ops-port", ops_port))
    begin(configuration, "worker", leash=leash)
    # Relay jobs being sent have as long to finish as in a relay; everything else is quick.
    stop_seconds = max(STOP_SECONDS, configuration[RelaySettings].drain_seconds + SPARE_SECONDS)
    async with (
        Life(stop_seconds) as life,
        local_store(configuration, life.end, alone=False, leash=leash) as url,
    ):
        settings = msgspec.structs.replace(configuration[StoreSettings], url=url)
        async with open_store(settings) as opened:

            async def why_not() -> str | None:
                return "stopping" if life.quiet.is_set() else await store_trouble(opened)

            async with listen_operations(configuration, why_not, lambda: wrong_clock(opened)) as port:
                log.info("worker started", ops_port=port)
                host = configuration[OperationsSettings].host
                async with open_parts(Process.WORKER, opened, configuration, host, port) as parts:
                    await life.run(run_jobs(parts.jobs, life.quiet))
    traces.close()
    return 0
