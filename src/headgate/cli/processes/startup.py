"""The setup that every process shares: logs, traces, the operations port, and stopping at the end of stdin."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headgate import __version__
from headgate.cli.processes.ports import refuse_taken
from headgate.http.operations import Notice, OperationsSettings, Ready, serve_operations
from headgate.kit import logs, metrics, traces
from headgate.kit.logs import LogSettings
from headgate.kit.ports import bind_error
from headgate.kit.problems import StoreUnavailable
from headgate.kit.settings import DEFAULT, Configuration
from headgate.kit.traces import TraceSettings
from headgate.store import Store, clock_words

_PROCESS = metrics.gauge(
    "headgate_process_info", "1 while a process of this kind and version runs.", ["process", "version"], across="max"
)


def begin(configuration: Configuration, process: str, *, leash: bool = False) -> None:
    """Set up logs and traces under this name; with `leash`, send SIGTERM to ourselves when stdin ends."""
    logs.configure(configuration[LogSettings], process)
    logs.hide(*configuration.secrets())
    traces.configure(configuration[TraceSettings], process, __version__)
    _PROCESS.labels(process, __version__).set(1)
    if leash:
        threading.Thread(target=_stop_at_end_of_stdin, daemon=True).start()


async def store_trouble(store: Store) -> str | None:
    """Return why the store cannot be used now; None if it can."""
    try:
        await store.ping()
    except StoreUnavailable as error:
        return error.detail
    return None


def wrong_clock(backend: object) -> str | None:
    """Return a warning if this process's clock differs from the store's; None if it agrees, or without a store."""
    return clock_words(backend.clock_offset()) if isinstance(backend, Store) else None


@asynccontextmanager
async def listen_operations(
    configuration: Configuration, ready: Ready, notice: Notice | None = None
) -> AsyncIterator[int]:
    """Serve probes and metrics; if the default port is taken, on a free one, but a chosen port must be free."""
    settings = configuration[OperationsSettings]
    port = settings.port
    if configuration.origin("ops.port") == DEFAULT and bind_error(settings.host, port) is not None:
        port = 0
    refuse_taken(settings.host, port, "--ops-port")
    async with serve_operations(port, ready, notice, host=settings.host) as taken:
        yield taken


def _stop_at_end_of_stdin() -> None:
    while os.read(0, 1024):  # not sys.stdin: a thread blocked in there would hold its lock at exit
        pass
    os.kill(os.getpid(), signal.SIGTERM)
