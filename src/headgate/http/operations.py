"""The operations port that every process has: `/livez`, `/readyz` and `/metrics`.

It is served in the process's own event loop, so that the probes of a process whose loop hangs fail.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Final

from msgspec import Meta

from headgate.http.exchange import Exchange
from headgate.http.listener import listen
from headgate.http.request_head import RequestTarget
from headgate.http.responses import rendered
from headgate.http.routes import Answer
from headgate.kit import metrics
from headgate.kit.logs import get_logger
from headgate.kit.settings import Doc, Settings

Ready = Callable[[], Awaitable[str | None]]
Notice = Callable[[], str | None]


class OperationsSettings(Settings, section="ops"):
    """The address that serves probes and metrics."""

    host: Annotated[str, Doc("address to listen on; 0.0.0.0 where probes come from other machines")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65535), Doc("port to listen on; 0 takes a free one, and so does the default if it is taken")
    ] = 9464


RESPONSE_SECONDS: Final = 5.0
TEXT: Final = "text/plain; charset=utf-8"
MOST_CONNECTIONS: Final = 200  # probes and scrapers; more would take the files that the process itself needs

log = get_logger()


@asynccontextmanager
async def serve_operations(
    port: int, ready: Ready, notice: Notice | None = None, *, host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    """Serve probes and metrics, and give the port (0 takes a free one).

    `ready` returns the reason why the process is not ready, or None if it is. `notice` returns a warning for the
    operator of a process that is ready, or None.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as sock:
        sock.setblocking(False)
        async with listen(
            partial(_serve, ready, notice), sock, stop_seconds=0, most_connections=MOST_CONNECTIONS
        ) as listener:
            listener.start_draining()  # each response closes its connection
            yield sock.getsockname()[1]


async def _serve(ready: Ready, notice: Notice | None, exchange: Exchange) -> None:
    target = exchange.target
    try:
        async with asyncio.timeout(RESPONSE_SECONDS):
            answer = await _answer(target, ready, notice)
    except TimeoutError:
        answer = _text(f"no answer within {RESPONSE_SECONDS:g} s", 503)
    status, head, body = rendered(answer, 200)
    head += b"content-length: %d\r\n\r\n" % len(body)
    exchange.respond(status, head, b"" if target.method == "HEAD" else body)


async def _answer(target: RequestTarget, ready: Ready, notice: Notice | None) -> Answer:
    if target.method not in ("GET", "HEAD"):
        return _text("only GET and HEAD", 405)
    match target.path:
        case b"/livez":
            return _text("alive")
        case b"/readyz":
            if (reason := await _why_not(ready)) is not None:
                return _text(reason, 503)
            warning = notice() if notice is not None else None
            return _text("ready" if warning is None else f"ready, but {warning}")
        case b"/metrics":
            return Answer(await metrics.scrape(), content_type=metrics.CONTENT_TYPE)
        case _:
            return _text("here are /livez, /readyz and /metrics", 404)


def _text(words: str, status: int = 200) -> Answer:
    return Answer(f"{words}\n", status, content_type=TEXT)


async def _why_not(ready: Ready) -> str | None:
    try:
        return await ready()
    except Exception as error:  # noqa: BLE001  # a probe gets a response whatever error the check raises
        log.warning("readiness check failed", error=repr(error))
        return "the readiness check failed"
