"""The parent process of a gateway or a relay: it opens the ports and keeps workers running.

It needs none of the features that its workers serve. What a worker opens is named by a function of this module, which
is called, and imports the features, in the worker only.
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


async def serve_edge(
    opening: Opening,
    configuration: Configuration,
    settings: GatewaySettings,
    *,
    alone: bool = True,
    leash: bool = False,
) -> None:
    """Serve until told to stop; each worker opens its application with the configuration, the settings and the store's URL.

    Not `alone`, a store must be named, or be that of the `up` running here.
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
    """Give what one worker of a gateway serves."""
    from headgate.cli.processes.assembly import Process, open_application

    return open_application(Process.GATEWAY, configuration, settings, store_url)


def relay_application(
    configuration: Configuration, settings: GatewaySettings, store_url: str, *, demo: bool = False
) -> AbstractAsyncContextManager[Gateway]:
    """Give what one worker of a relay serves."""
    from headgate.cli.processes.assembly import Process, open_application

    return open_application(Process.RELAY, configuration, settings, store_url, demo=demo)
