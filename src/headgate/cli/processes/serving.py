"""The parent process of a gateway or a relay: it opens the ports and keeps worker processes running.

It imports none of the features that its workers serve: a worker calls one of the functions at the end of this module,
which imports them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING

from headgate.cli.processes.local_store import local_store
from headgate.cli.processes.startup import listen_operations
from headgate.gateway.settings import GatewaySettings, check_admin_token
from headgate.http.server import serve
from headgate.kit.life import Life
from headgate.kit.settings import Configuration

if TYPE_CHECKING:
    from headgate.gateway.gateway import Gateway

Opening = Callable[[Configuration, GatewaySettings, str], "AbstractAsyncContextManager[Gateway]"]


async def serve_workers(
    opening: Opening,
    configuration: Configuration,
    settings: GatewaySettings,
    *,
    alone: bool = True,
    leash: bool = False,
) -> None:
    """Serve until SIGTERM; each worker opens its application with the configuration, the settings and the store's URL.

    Unless `alone`, a store must be named, or be that of the `up` running here.
    """
    check_admin_token(settings.admin_token)  # before anything listens, and not from a worker
    async with Life(settings.quiet_seconds + settings.stop_seconds + 1) as life:
        async with local_store(configuration, life.end, alone=alone, leash=leash) as url:
            await serve(
                partial(opening, configuration, settings, url),
                settings,
                probes=partial(listen_operations, configuration),
                life=life,
            )


def gateway_application(
    configuration: Configuration, settings: GatewaySettings, store_url: str
) -> AbstractAsyncContextManager[Gateway]:
    """Open the application of one worker process of a gateway."""
    from headgate.cli.processes.assembly import Process, open_application

    return open_application(Process.GATEWAY, configuration, settings, store_url)


def relay_application(
    configuration: Configuration, settings: GatewaySettings, store_url: str, *, demo: bool = False
) -> AbstractAsyncContextManager[Gateway]:
    """Open the application of one worker process of a relay."""
    from headgate.cli.processes.assembly import Process, open_application

    return open_application(Process.RELAY, configuration, settings, store_url, demo=demo)
