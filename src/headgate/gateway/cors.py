"""CORS headers for public routes and the configured origins."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.http.origins import ANY, read_origins
from headgate.http.responses import Headers

_ALLOWED = b"content-type, idempotency-key, last-event-id, traceparent, x-api-token, x-place-token, x-request-id, authorization"
_EXPOSED = b"etag, location, ratelimit, ratelimit-policy, retry-after, traceparent, x-request-id"
_MAX_AGE = b"600"
_VARY = (b"vary", b"Origin")


class CorsOrigins:
    """The origins whose pages may read our responses; `*` is all."""

    def __init__(self, origins: Iterable[str]) -> None:
        allowed = read_origins(origins, "gateway.origins")
        self._allowed = frozenset(origin.encode() for origin in allowed)
        self._all = ANY in allowed

    def headers(self, origin: bytes) -> Headers:
        """Return the headers of a response to a page of this origin."""
        if not self._allowed:
            return []
        if not self._all and origin not in self._allowed:
            return [_VARY]
        return [_VARY, (b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED)]

    def preflight(self, origin: bytes, methods: bytes) -> Headers:
        """Return the headers of the response to a preflight; those for an origin that is not allowed permit nothing."""
        if not self._all and origin not in self._allowed:
            return [_VARY]
        return [
            _VARY,
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-methods", methods),
            (b"access-control-allow-headers", _ALLOWED),
            (b"access-control-max-age", _MAX_AGE),
        ]
