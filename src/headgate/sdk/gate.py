"""A gate for Python sites: `app = Gate(app, "http://headgate:8080", token=…)`.

It asks the gateway before each request, as a proxy would, and serves the waiting page on the site's own host, so that the visitor's
cookie is the site's own.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

import httpx2
import msgspec

from headgate.http.cookies import no_cookies
from headgate.http.routes import Asgi, Message, Receive, Scope, Send
from headgate.kit.ids import sent_secret
from headgate.kit.logs import get_logger
from headgate.sdk.http import GatewayUnavailable, gateway_url

TIMEOUT_SECONDS: Final = 3.0
RETRY_SECONDS: Final = 5
_OURS: Final = re.compile(r"/wait/[^/]+|/api/queue/(entry|status|stream|board)")
_SECURE: Final = {"wss": "https", "ws": "http"}
_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer", b"date", b"server"}
)
_PASSED_ON: Final = (
    b"cookie", b"accept", b"accept-language", b"content-type", b"x-place-token", b"idempotency-key",
)  # fmt: skip
_PRINTABLE: Final = "".join(map(chr, range(33, 127)))
_AWAY: Final = (
    b'<!doctype html><html lang="en"><meta name="viewport" content="width=device-width"><title>One moment</title>'
    b"<h1>One moment, please</h1><p>This page cannot be shown right now. It tries again in a few seconds.</p>"
)

log = get_logger()


class Gate:
    """ASGI middleware; `fail_open` lets everybody in while the gateway cannot be reached."""

    def __init__(
        self, app: Asgi, gateway: str, *, token: str = "", namespace: str = "default", fail_open: bool = False
    ) -> None:
        self._app = app
        self._gateway = gateway_url(gateway).rstrip("/")
        token = sent_secret(token, "The token")
        self._token = {b"x-api-token": token.encode()} if token else {}
        self._namespace = namespace
        self._fail_open = fail_open
        self._client: httpx2.AsyncClient | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask about a request, and let it through to the site or send the visitor to the page."""
        if scope["type"] == "lifespan":
            try:
                await self._app(scope, receive, send)
            finally:
                await self.close()
        elif scope["type"] == "websocket":
            await self._ask_for_websocket(scope, receive, send)
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        elif _OURS.fullmatch(scope["path"]):
            await self._serve_ours(scope, receive, send)
        else:
            await self._ask(scope, receive, send)

    async def close(self) -> None:
        """End the connections to the gateway; a site without lifespan events calls this itself."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _ask(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._verdict(scope)
        if answer is None:
            await (self._app(scope, receive, send) if self._fail_open else _refuse(scope, send))
        elif answer.status_code != 200:
            await _relay(answer, answer.content, send)
        else:
            await self._app(scope, receive, _with_cookie(send, answer.headers.get("set-cookie")))

    async def _ask_for_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask before a handshake: a visitor who must wait is refused with 403, since there is no page to show."""
        answer = await self._verdict(scope)
        if self._fail_open if answer is None else answer.status_code == 200:
            await self._app(scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.close", "code": 1013, "reason": "It is not your turn yet."})

    async def _verdict(self, scope: Scope) -> httpx2.Response | None:
        """Ask the gateway about a request; None if it does not answer."""
        headers = self._described(scope) | self._token
        headers[b"x-forwarded-uri"] = _target(scope).encode()
        try:
            answer = await self._connected().get(
                "/gate/forward", params={"namespace": self._namespace}, headers=headers
            )
        except httpx2.TransportError as error:
            log.warning("the gate cannot be asked", error=str(error) or type(error).__name__)
            return None
        return None if answer.status_code >= 500 and self._fail_open else answer

    async def _serve_ours(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Proxy the waiting page and its requests to the gateway; streams are passed on as they come."""
        body = b""
        while scope["method"] not in {"GET", "HEAD", "DELETE"}:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body") or len(body) > 65_536:
                break
        # The page knows its visitor by the cookie alone. What it asks for later names somebody, and must not be
        # believed for the site's token: a visitor could be anybody then.
        vouched = self._token if scope["path"].startswith("/wait/") else {}
        request = self._connected().build_request(
            scope["method"],
            _target(scope),
            headers=self._described(scope) | vouched,
            content=body or None,
            timeout=httpx2.Timeout(TIMEOUT_SECONDS, read=60),
        )
        try:
            answer = await self._connected().send(request, stream=True)
        except httpx2.TransportError:
            await _refuse(scope, send)
            return
        try:
            await send({"type": "http.response.start", "status": answer.status_code, "headers": _headers_of(answer)})
            async for chunk in answer.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except httpx2.TransportError as error:
            log.debug("a stream of the gateway broke", error=str(error))
        finally:
            await answer.aclose()

    def _described(self, scope: Scope) -> dict[bytes, bytes]:
        """Describe a request to the gateway; nothing that the visitor says of themselves is passed on but the cookie."""
        given = dict(scope["headers"])
        headers = {name: given[name] for name in _PASSED_ON if name in given}
        client, scheme = scope.get("client"), str(scope.get("scheme", "http"))
        return {
            **headers,
            b"host": given.get(b"host", b"site"),
            b"x-forwarded-for": client[0].encode() if client else b"",
            b"x-forwarded-proto": _SECURE.get(scheme, scheme).encode(),
        }

    def _connected(self) -> httpx2.AsyncClient:
        if self._client is None:
            self._client = httpx2.AsyncClient(
                base_url=self._gateway,
                cookies=no_cookies(),  # it asks for every visitor of the site
                timeout=TIMEOUT_SECONDS,
                limits=httpx2.Limits(max_connections=None),
            )
        return self._client


def _target(scope: Scope) -> str:
    """Give what was asked for as an address that any header can carry: bytes that are no printable ASCII are encoded."""
    raw = scope.get("raw_path")
    path = quote(raw, safe=_PRINTABLE) if raw else quote(scope["path"], safe="/;=:@&+$,!~*'()")
    query: bytes = scope["query_string"]
    return f"{path}?{quote(query, safe=_PRINTABLE)}" if query else path


def _with_cookie(send: Send, cookie: str | None) -> Send:
    if not cookie:
        return send

    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            # A page with somebody's pass on it is nobody else's: no cache between us may keep it.
            own = [pair for pair in message.get("headers", ()) if pair[0].lower() != b"cache-control"]
            own += [(b"set-cookie", cookie.encode("latin-1")), (b"cache-control", b"no-store")]
            message = {**message, "headers": own}
        await send(message)

    return marked


def _headers_of(answer: httpx2.Response) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in answer.headers.raw if name.lower() not in _HOP]


async def _relay(answer: httpx2.Response, body: bytes, send: Send) -> None:
    headers = [pair for pair in _headers_of(answer) if pair[0] not in {b"content-length", b"content-encoding"}]
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _refuse(scope: Scope, send: Send) -> None:
    """Respond 503: to a browser with a page that tries again, to a program with a problem document."""
    problem = GatewayUnavailable(retry_after=RETRY_SECONDS)
    kind, body = "application/problem+json", msgspec.json.encode(problem.document())
    if any(name == b"accept" and b"text/html" in value for name, value in scope["headers"]):
        kind, body = "text/html; charset=utf-8", _AWAY
    again = b"%d" % RETRY_SECONDS
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
    ]
    headers += [(b"retry-after", again), (b"refresh", again)]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
