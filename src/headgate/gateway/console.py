"""Sign-in to the console with a token, and the signed session cookie.

The cookie names the token, not its secret, and is valid only as long as the token: revoking a token ends its sessions within a
second. It is signed with the signing keys, not with the token, which the holder of a cookie could otherwise guess offline. It is
HttpOnly and SameSite=Strict. Every request that changes something must also carry a header that no form or link of another
site can set, and come from this origin.
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
CONSOLE_HEADER: Final = b"x-headgate-console"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class SignIn(Wire):
    """The token to sign in with."""

    token: Annotated[str, Meta(min_length=1, max_length=512)]


class Session(Wire):
    """The signed-in caller."""

    name: str
    role: str
    namespace: str | None


class _CookiePayload(msgspec.Struct, frozen=True, array_like=True):
    token_id: str
    expires: int


class Sessions:
    """Signs and verifies session cookies; sessions are not stored."""

    def __init__(self, keyring: Keyring, secrets: Sequence[bytes], admin_token: str, now: Callable[[], float]) -> None:
        """Sign with the first secret and accept all, so that keys can be rotated; a new admin token ends all sessions.

        `now` returns the store's time in seconds, because a session of one gateway is used at others.
        """
        self._keyring = keyring
        self._now = now
        purpose = b"headgate console session v2 " + sha256(admin_token.encode()).digest()
        self._secrets = [hmac.digest(secret, purpose, "sha256") for secret in secrets]

    def sign_in(self, token: str) -> tuple[Caller, str]:
        """Return the caller of a token and the cookie's value; raises Unauthorized."""
        token_id = self._keyring.identify(token.encode())
        caller = self._keyring.caller_of(token_id) if token_id is not None else None
        if token_id is None or caller is None:
            raise Unauthorized("This token is not valid.")
        payload = _text(msgspec.json.encode(_CookiePayload(token_id, int(self._now()) + SESSION_SECONDS)))
        return caller, f"{payload}.{_text(_mac(self._secrets[0], payload))}"

    def caller(self, method: str, headers: dict[bytes, bytes]) -> Caller | None:
        """Return the signed-in caller, or None; raises Forbidden if a change was not requested by the console's own page."""
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
                signature = _bytes(mac)
                if not any(hmac.compare_digest(signature, _mac(secret, payload)) for secret in self._secrets):
                    continue
                session = msgspec.json.decode(_bytes(payload), type=_CookiePayload)
            except (ValueError, binascii.Error):
                continue
            if session.expires > self._now():
                return self._keyring.caller_of(session.token_id)
        return None


def operations(sessions: Sessions | None) -> list[Operation]:
    """Return the console's pages and its sign-in; without sessions, only the route that shows the caller of a token."""

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
    """Tell whether a request was made by a script of our own origin."""
    if headers.get(CONSOLE_HEADER) != b"1":
        return False
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site == b"same-origin"
    # Older browsers send only Origin; a proxy in front of us may use https where we do not.
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
