"""The console's door: sign in with a token, and carry a signed cookie from then on.

The cookie names the token, not its secret, and is good for as long as the token is: a revoked token ends its sessions within a
second. It is signed with the signing keys and not with a token, which whoever holds a cookie could then guess at home. It is HttpOnly and SameSite=Strict, and whatever changes something must also carry a header that no form or link on
another site can set, and come from this origin.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from headgate.gateway.pages import PageFile, asset_operation, page_operation
from headgate.gateway.tokens import Keyring
from headgate.http.origins import origin_of
from headgate.http.routes import Access, Answer, Call, Caller, Operation
from headgate.kit.problems import Forbidden, Unauthorized
from headgate.kit.web import web_folder
from headgate.kit.wire import Wire

SESSION_SECONDS: Final = 12 * 3600
NAME_HTTPS: Final = "__Host-headgate-console"
NAME_HTTP: Final = "headgate-console"
OURS: Final = b"x-headgate-console"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class SignIn(Wire):
    """The token to sign in with."""

    token: Annotated[str, Meta(min_length=1, max_length=512)]


class Session(Wire):
    """Who is signed in."""

    name: str
    role: str
    namespace: str | None


class _Ticket(msgspec.Struct, frozen=True, array_like=True):
    mark: str
    expires: int


class Sessions:
    """Signed-in browsers; nothing is kept here, the cookie says it all."""

    def __init__(self, keyring: Keyring, secrets: Sequence[bytes], admin_token: str, now: Callable[[], float]) -> None:
        """Sign with the first secret and believe all of them, so that keys can be rotated; another admin token ends all.

        `now` gives the store's time in seconds: a session begins at one gateway and is shown to others.
        """
        self._keyring = keyring
        self._now = now
        purpose = b"headgate console session v2 " + sha256(admin_token.encode()).digest()
        self._secrets = [hmac.digest(secret, purpose, "sha256") for secret in secrets]

    def sign_in(self, token: str) -> tuple[Caller, str]:
        """Give the caller of a token and the cookie's value; raises Unauthorized."""
        mark = self._keyring.mark(token.encode())
        caller = self._keyring.marked(mark) if mark is not None else None
        if mark is None or caller is None:
            raise Unauthorized("This token is not valid.")
        payload = _text(msgspec.json.encode(_Ticket(mark, int(self._now()) + SESSION_SECONDS)))
        return caller, f"{payload}.{_text(_mac(self._secrets[0], payload))}"

    def caller(self, method: str, headers: dict[bytes, bytes]) -> Caller | None:
        """Say who is signed in; None if nobody is. What changes something must come from our own pages."""
        caller = self._read(headers.get(b"cookie"))
        if caller is None:
            return None
        if method not in _SAFE and not _from_our_page(headers):
            raise Forbidden("A signed-in browser may only do this from the console itself.")
        return caller

    def _read(self, cookies: bytes | None) -> Caller | None:
        for part in (cookies or b"").decode("latin-1").split(";"):
            name, _, value = part.strip().partition("=")
            if name not in (NAME_HTTPS, NAME_HTTP):
                continue
            payload, _, mac = value.partition(".")
            try:
                shown = _bytes(mac)
                if not any(hmac.compare_digest(shown, _mac(secret, payload)) for secret in self._secrets):
                    continue
                ticket = msgspec.json.decode(_bytes(payload), type=_Ticket)
            except (ValueError, binascii.Error):
                continue
            if ticket.expires > self._now():
                return self._keyring.marked(ticket.mark)
        return None


def operations(sessions: Sessions | None) -> list[Operation]:
    """Give the console's pages and its sign-in; without sessions only what tells whose token it is."""

    async def show_session(call: Call) -> Session:
        return _session(call.caller)

    show = Operation(
        "GET",
        "/console/session",
        show_session,
        "Who is signed in",
        access=Access.READ,
        tag="console",
        answer=Session,
        documented=False,
        namespaced=True,
    )
    return [show] if sessions is None else [show, *_console(sessions)]


def _console(sessions: Sessions) -> list[Operation]:
    web = web_folder() / "console"

    async def sign_in(call: Call) -> Answer:
        if not _from_our_page(call.headers):
            raise Forbidden("Sign in from the console's own page.")
        request: SignIn = call.body
        caller, value = sessions.sign_in(request.token)
        return Answer(_session(caller), headers={"set-cookie": _cookie(call, value, SESSION_SECONDS)})

    async def sign_out(call: Call) -> Answer:
        return Answer(status=204, headers={"set-cookie": _cookie(call, "", 0)})

    return [
        Operation(
            "POST",
            "/console/session",
            sign_in,
            "Sign in to the console",
            access=Access.PUBLIC,
            tag="console",
            body=SignIn,
            answer=Session,
            errors=(Unauthorized, Forbidden),
            limit="unauthorized",
            documented=False,
        ),
        Operation(
            "DELETE",
            "/console/session",
            sign_out,
            "Sign out of the console",
            access=Access.PUBLIC,
            tag="console",
            documented=False,
        ),
        page_operation("/console", PageFile(web / "index.html"), "console"),
        asset_operation("/console/assets/{file:path}", web, "console_assets"),
    ]


def _session(caller: Caller) -> Session:
    return Session(caller.name, caller.role.value, caller.namespace)


def _from_our_page(headers: dict[bytes, bytes]) -> bool:
    """Tell whether a request was made by a script of this very origin."""
    if headers.get(OURS) != b"1":
        return False
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site == b"same-origin"
    # Browsers that do not say this name the page's origin; a proxy in front may speak https where we do not.
    origin, host = headers.get(b"origin", b"").decode("latin-1"), headers.get(b"host", b"").decode("latin-1")
    schemes = (
        (headers[b"x-forwarded-proto"].decode("latin-1"),) if b"x-forwarded-proto" in headers else ("http", "https")
    )
    return bool(origin) and any(origin == origin_of(f"{scheme}://{host}") for scheme in schemes)


def _cookie(call: Call, value: str, seconds: int) -> str:
    secure = (call.header("x-forwarded-proto") or call.scheme).split(",")[0].strip() == "https"
    name, flag = (NAME_HTTPS, "; Secure") if secure else (NAME_HTTP, "")
    return f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{flag}"


def _mac(secret: bytes, payload: str) -> bytes:
    return hmac.digest(secret, payload.encode(), "sha256")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
