"""The visitor's cookie: who they are and which queues they have passed, signed so that only we can have written it.

Someone inside shows this cookie with each request, so checking it must cost no store call: a keyed hash over the exact bytes,
compared in constant time. One cookie holds the visitor and all their passes, so a pass cannot travel without its visitor.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

import msgspec

NAME_HTTPS: Final = "__Host-headgate"
NAME_HTTP: Final = "headgate"
MOST_PASSES: Final = 8
LONGEST: Final = 3000
VISITOR_SECONDS: Final = 7 * 24 * 3600
_PURPOSE: Final = b"headgate visitor cookie v1"


class Pass(msgspec.Struct, frozen=True, array_like=True):
    """The right to be inside one queue's site until `expires`; times are store seconds."""

    queue: str
    generation: int
    issued: int
    expires: int

    def renewable(self, now: float) -> bool:
        """Tell whether the last third of its life has begun."""
        return now >= self.expires - (self.expires - self.issued) / 3


class Visitor(msgspec.Struct, frozen=True, array_like=True):
    """A browser: its secret id and its passes, newest first."""

    id: str
    expires: int
    passes: tuple[Pass, ...] = ()

    def pass_for(self, queue: str) -> Pass | None:
        """Find the pass for a queue (namespace/name)."""
        return next((held for held in self.passes if held.queue == queue), None)

    def with_pass(self, new: Pass) -> Visitor:
        """Add a pass; the oldest fall off when there are too many."""
        rest = tuple(held for held in self.passes if held.queue != new.queue)
        return Visitor(self.id, self.expires, (new, *rest)[:MOST_PASSES])

    def without_pass(self, queue: str) -> Visitor:
        """Drop the pass for a queue."""
        return Visitor(self.id, self.expires, tuple(held for held in self.passes if held.queue != queue))


class PassKeys:
    """Secrets that sign the cookie: the first one signs, all of them verify, so that keys can be rotated."""

    def __init__(self, secrets: Sequence[tuple[str, bytes]]) -> None:
        if not secrets:
            raise ValueError("at least one key is needed to sign cookies")
        self._keys = {kid: hmac.digest(secret, _PURPOSE, "sha256") for kid, secret in secrets}
        self._first = secrets[0][0]

    def seal(self, visitor: Visitor) -> str:
        """Write the cookie's value."""
        payload = msgspec.json.encode(visitor)
        return f"{_text(self._first.encode())}.{_text(payload)}.{_text(self._mac(self._first, payload))}"

    def open(self, value: str, now: float) -> Visitor | None:
        """Read a cookie; None when it is not ours, was altered, or is too old. Passes past their end are left out."""
        if len(value) > LONGEST:
            return None
        try:
            kid_text, payload_text, mac_text = value.split(".")
            kid, payload, mac = _bytes(kid_text).decode(), _bytes(payload_text), _bytes(mac_text)
        except (ValueError, binascii.Error):
            return None
        if kid not in self._keys or not hmac.compare_digest(mac, self._mac(kid, payload)):
            return None
        try:
            visitor = _decode(payload)
        except msgspec.MsgspecError:
            return None
        if visitor.expires <= now:
            return None
        return Visitor(visitor.id, visitor.expires, tuple(held for held in visitor.passes if held.expires > now))

    def _mac(self, kid: str, payload: bytes) -> bytes:
        return hmac.digest(self._keys[kid], len(kid).to_bytes(2, "big") + kid.encode() + payload, hashlib.sha256)


def set_cookie(value: str, *, secure: bool, max_age: int = VISITOR_SECONDS) -> str:
    """Write the Set-Cookie header: first-party, unreadable to scripts, and host-bound where the connection is https."""
    name, flags = (NAME_HTTPS, "; Secure") if secure else (NAME_HTTP, "")
    return f"{name}={value}; Path=/; Max-Age={max_age}; HttpOnly; SameSite=Lax{flags}"


def read_cookie(header: str | None, *, secure: bool) -> str | None:
    """Find our cookie in a Cookie header; on https only the host-bound name counts."""
    wanted = NAME_HTTPS if secure else NAME_HTTP
    for part in (header or "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == wanted:
            return value
    return None


_decode = msgspec.json.Decoder(Visitor).decode


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _text(raw) != text:
        raise ValueError("not written the one way")
    return raw
