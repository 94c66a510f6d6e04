"""`headgate serve shop`: a product page behind the gate, with a button that sends a crowd to it."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Final

import httpx2
from cyclopts import Parameter

from headgate.cli.options import Leash
from headgate.cli.processes.startup import begin, listen_operations
from headgate.cli.settings import ClientSettings, read_settings
from headgate.gateway.settings import GatewaySettings
from headgate.http.cookies import no_cookies
from headgate.http.listener import asgi, listen
from headgate.http.routes import Receive, Scope, Send
from headgate.http.server import listening
from headgate.kit.life import Life
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError
from headgate.kit.tasks import Tasks
from headgate.kit.web import web_text
from headgate.sdk import Headgate
from headgate.sdk.asgi import Gate
from headgate.sdk.http import Http

TEMPLATE: Final = "shop"
QUEUE: Final = "product-lantern"
POLICY: Final = {
    "paths": ["/product/*"],
    "auto": {"resource": "product-*", "threshold": 30, "windowSeconds": 10, "cooldownSeconds": 15},
    "ratePerSecond": 3,
    "ticketTtlSeconds": 30,
    "sessionTtlSeconds": 120,
    "message": "The lantern is back for one day. Everybody gets their turn.",
    "theme": {"color": "#9a3b12"},
}
VISITORS_A_SECOND: Final = 30
IN_LINE: Final = 100
RUSH_SECONDS: Final = 60.0
BROWSERS: Final = 32
_PRICE: Final = "€ 39"

log = get_logger()


async def shop(
    *,
    port: Annotated[int, Parameter()] = 8083,
    ops_port: int | None = None,
    leash: Leash = False,
) -> int:
    """Run the demonstration shop; it needs a gateway in HEADGATE_URL and a token in HEADGATE_TOKEN.

    Parameters
    ----------
    port
        Port to listen on.
    ops_port
        Port for probes and metrics.
    leash
        Stop when stdin ends.
    """
    configuration = read_settings(ops__port=("--ops-port", ops_port))
    begin(configuration, "shop", leash=leash)
    client, host = configuration[ClientSettings], configuration[GatewaySettings].host
    site = Shop(f"http://{host}:{port}", client.url)
    gate = Gate(site, client.url, token=client.token)
    async with Life() as life, Headgate(client.url, token=client.token) as hg:

        async def why_not() -> str | None:
            return "stopping" if life.quiet.is_set() else None

        with listening(host, port) as listener:
            await _make_template(hg, life)
            async with listen_operations(configuration, why_not), listen(asgi(gate), listener, stop_seconds=2):
                log.info("shop started", port=port)
                await life.quiet.wait()
                await site.close()
    return 0


class Rush:
    """Sends visitors to the lantern until enough of them wait, so that a queue forms on a slow machine too."""

    def __init__(self) -> None:
        self.came = 0
        self.waiting = 0

    async def run(self, url: str) -> None:
        """Send new visitors at the set rate, or as fast as this machine can."""
        clock = asyncio.get_running_loop().time
        started = clock()
        limits = httpx2.Limits(max_connections=BROWSERS)
        async with httpx2.AsyncClient(base_url=url, cookies=no_cookies(), limits=limits, timeout=10) as client:

            async def browse() -> None:
                while self.waiting < IN_LINE and clock() - started < RUSH_SECONDS:
                    self.came += 1
                    await asyncio.sleep(started + self.came / VISITORS_A_SECOND - clock())
                    with suppress(httpx2.HTTPError):
                        answer = await client.get("/product/lantern", headers={"Accept": "text/html"})
                        self.waiting += answer.status_code == 302

            async with asyncio.TaskGroup() as group:
                for _ in range(BROWSERS):
                    group.create_task(browse())


class Shop:
    """The site itself: it knows nothing of queues."""

    def __init__(self, url: str, gateway: str) -> None:
        self._url = url
        self._gateway = gateway
        self._rush = Rush()
        self._tasks = Tasks()
        self._rushing: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        match scope["method"], scope["path"]:
            case "GET", "/":
                again = {"refresh": "1"} if self._busy() else {}
                await _html(send, "A small shop", self._front(), headers=again)
            case "GET", "/shop.css":
                await _answer(send, 200, web_text("shop/shop.css"), {"content-type": "text/css; charset=utf-8"})
            case "GET", str(path) if path.startswith("/product/"):
                await _html(send, "The lantern", self._product(path.removeprefix("/product/")))
            case "POST", "/rush":
                if not self._busy():
                    self._rush = Rush()
                    self._rushing = self._tasks.start(self._rush.run(self._url))
                await _answer(send, 303, "", {"location": "/"})
            case _:
                await _html(send, "Nothing here", '<p>There is nothing here. <a href="/">Back to the shop</a></p>', 404)

    async def close(self) -> None:
        """Stop the rush."""
        await self._tasks.close()

    def _busy(self) -> bool:
        return self._rushing is not None and not self._rushing.done()

    def _front(self) -> str:
        rush = ""
        if self._busy():
            rush = (
                f"<p><strong>A crowd is coming: {self._rush.came} visitors so far, {self._rush.waiting} of them must wait.</strong> "
                '<a href="/product/lantern">Stand in line behind them</a></p>'
            )
        elif self._rush.came:
            rush = f"<p>The last crowd: {self._rush.came} visitors, {self._rush.waiting} of them had to wait.</p>"
        return (
            "<h1>A small shop</h1><p class=soft>A demonstration of the gate. The site behind it knows nothing of queues.</p>"
            f'<section><h2>The lantern</h2><p class=price>{_PRICE}</p><p><a href="/product/lantern">Look at it</a></p></section>'
            f"<section><h2>Make it busy</h2>{rush}<p>Send {VISITORS_A_SECOND} visitors a second to the lantern, until {IN_LINE} of them "
            "stand in line. The queue switches itself on, people wait their turn, and when it has been quiet for a while it goes off again.</p>"
            '<form method=post action="/rush"><button>Start a rush</button></form></section>'
            f'<section><h2>Watch</h2><p><a href="{html.escape(self._gateway)}/console#/queues/{QUEUE}">'
            "The queue in the console</a> (it is there while the queue is on).</p></section>"
        )

    def _product(self, name: str) -> str:
        return (
            f"<h1>The {html.escape(name)}</h1><section><p class=price>{_PRICE}</p>"
            "<p>Brass, hand made, burns for nine hours. You are in: whoever sees this page has passed the gate.</p>"
            '</section><p><a href="/">Back to the shop</a></p>'
        )


async def _make_template(hg: Headgate, life: Life) -> None:
    """Create the queue template of the shop; an existing one stays unchanged."""
    backend = hg.backend
    if not isinstance(backend, Http):
        return
    while not life.quiet.is_set():
        try:
            await backend.send("PUT", f"/api/admin/queues/{TEMPLATE}", body=POLICY, headers={"If-None-Match": "*"})
        except HeadgateError as error:
            if error.code == "version_conflict":
                return
            log.debug("the shop's queue could not be made yet", error=error.detail)
            await asyncio.sleep(0.5)
        else:
            return


async def _html(send: Send, title: str, body: str, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
    page = web_text("shop/page.html").replace("{{title}}", html.escape(title)).replace("{{body}}", body)
    policy = "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; frame-ancestors 'none'"
    own = {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": policy,
        "cache-control": "no-store",
        **(headers or {}),
    }
    await _answer(send, status, page, own)


async def _answer(send: Send, status: int, text: str, headers: Mapping[str, str]) -> None:
    body = text.encode()
    own = [(name.encode(), value.encode()) for name, value in headers.items()]
    own.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": body})
