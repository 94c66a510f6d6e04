"""The visitor's cookie: a signed list of the visitor's id and passes.

A visitor with a pass sends this cookie with each request, so it is verified without a store call: a keyed hash over the
exact bytes, compared in constant time. One cookie holds the visitor and all passes, so a pass cannot be used by another
visitor.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Sequence
from typing import Final

import msgspec

NAME_HTTPS: Final = "__Host-headgate"
NAME_HTTP: Final = "headgate"
_HTTPS: Final = NAME_HTTPS.encode() + b"="
_HTTP: Final = NAME_HTTP.encode() + b"="
MOST_PASSES: Final = 8
MOST_COOKIES: Final = 4
LONGEST: Final = 3000
VISITOR_SECONDS: Final = 7 * 24 * 3600
_VISITOR: Final = b"headgate visitor cookie v1"
_BYPASS: Final = b"headgate bypass header v1"


class Pass(msgspec.Struct, frozen=True, array_like=True):
    """The right to use what one queue guards until `expires`; times are store seconds."""

    queue: str
    generation: int
    issued: int
    expires: int

    def renewable(self, now: float) -> bool:
        """Tell whether the last third of its lifetime has begun."""
        return now >= self.expires - (self.expires - self.issued) / 3


class Visitor(msgspec.Struct, frozen=True, array_like=True):
    """A browser: its secret id and its passes, newest first."""

    id: str
    expires: int
    passes: tuple[Pass, ...] = ()

    def pass_for(self, queue: str) -> Pass | None:
        """Find the pass for a queue (namespace/name)."""
        for held in self.passes:
            if held.queue == queue:
                return held
        return None

    def with_pass(self, new: Pass) -> Visitor:
        """Add a pass; beyond the limit the oldest are dropped."""
        rest = tuple(held for held in self.passes if held.queue != new.queue)
        return Visitor(self.id, self.expires, (new, *rest)[:MOST_PASSES])


class PassKeys:
    """The secrets of the cookie: the first signs, all verify, so that keys can be rotated."""

    def __init__(self, secrets: Sequence[tuple[str, bytes]]) -> None:
        if not secrets:
            raise ValueError("at least one key is needed to sign cookies")
        self._keys = {kid: hmac.digest(secret, _VISITOR, "sha256") for kid, secret in secrets}
        self._first = secrets[0][0]

    def seal(self, visitor: Visitor) -> str:
        """Encode and sign the cookie's value; passes that do not fit are dropped, oldest first."""
        while len(value := self._sealed(_VISITOR, msgspec.json.encode(visitor))) > LONGEST and visitor.passes:
            visitor = Visitor(visitor.id, visitor.expires, visitor.passes[:-1])
        return value

    def open(self, value: str, now: float) -> Visitor | None:
        """Verify and decode a cookie; None if it is not ours, was altered, or expired. Expired passes are left out."""
        payload = self._opened(_VISITOR, value)
        try:
            visitor = _decode(payload) if payload is not None else None
        except msgspec.MsgspecError:
            return None
        if visitor is None or visitor.expires <= now:
            return None
        return Visitor(visitor.id, visitor.expires, tuple(held for held in visitor.passes if held.expires > now))

    def seal_bypass(self, queue: str, expires: int) -> str:
        """Sign the value of a header with which a program of the site passes one queue's gate until `expires`."""
        return self._sealed(_BYPASS, f"{expires} {queue}".encode())

    def bypasses(self, value: str, queue: str, now: float) -> bool:
        """Tell whether a header's value is a valid bypass of a queue's gate."""
        payload = self._opened(_BYPASS, value)
        expires, _, target = (payload or b"0 ").decode().partition(" ")
        return target == queue and int(expires) > now

    def _sealed(self, purpose: bytes, payload: bytes) -> str:
        mac = self._mac(self._first, purpose, payload)
        return f"{_text(self._first.encode())}.{_text(payload)}.{_text(mac)}"

    def _opened(self, purpose: bytes, value: str) -> bytes | None:
        if len(value) > LONGEST:
            return None
        try:
            kid_text, payload_text, mac_text = value.split(".")
            kid, payload, mac = _bytes(kid_text).decode(), _bytes(payload_text), _bytes(mac_text)
        except (ValueError, binascii.Error):
            return None
        if kid not in self._keys or not hmac.compare_digest(mac, self._mac(kid, purpose, payload)):
            return None
        return payload

    def _mac(self, kid: str, purpose: bytes, payload: bytes) -> bytes:
        # Each part has its length in front, so that two different lists of parts never give the same bytes.
        words = b"".join(len(part).to_bytes(4, "big") + part for part in (purpose, kid.encode(), payload))
        return hmac.digest(self._keys[kid], words, "sha256")


def set_cookie(value: str, *, secure: bool, max_age: int = VISITOR_SECONDS) -> str:
    """Give the Set-Cookie header: first-party, not readable by scripts, and bound to the host on https."""
    name, flags = (NAME_HTTPS, "; Secure") if secure else (NAME_HTTP, "")
    return f"{name}={value}; Path=/; Max-Age={max_age}; HttpOnly; SameSite=Lax{flags}"


def read_cookies(header: bytes | None, *, secure: bool) -> tuple[str, ...]:
    """Find our cookies in a Cookie header; on https only the host-bound name counts.

    On http another host of the domain can set a cookie of the same name that comes before ours, so several are tried.
    """
    wanted = _HTTPS if secure else _HTTP
    if not header or wanted not in header:
        return ()
    parts = [part.strip() for part in header.split(b";")]
    return tuple([part[len(wanted) :].decode("latin-1") for part in parts if part.startswith(wanted)][:MOST_COOKIES])


_decode = msgspec.json.Decoder(Visitor).decode


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _text(raw) != text:
        raise ValueError("not the canonical encoding")
    return raw
