"""Which pages of other sites may call us from a browser: CORS for public routes and configured origins."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.http.origins import ANY, read_origins
from headgate.http.responses import Headers

_ALLOWED = b"content-type, idempotency-key, last-event-id, traceparent, x-api-token, x-place-token, x-request-id, authorization"
_EXPOSED = b"etag, location, ratelimit, ratelimit-policy, retry-after, traceparent, x-request-id"
_MAX_AGE = b"600"
_VARY = (b"vary", b"Origin")


class CorsOrigins:
    """The origins whose pages may read our answers; `*` is all of them."""

    def __init__(self, origins: Iterable[str]) -> None:
        known = read_origins(origins, "gateway.origins")
        self._known = frozenset(origin.encode() for origin in known)
        self._all = ANY in known

    def headers(self, origin: bytes) -> Headers:
        """Give what an answer to a page of this origin carries."""
        if not self._known:
            return []
        if not self._all and origin not in self._known:
            return [_VARY]
        return [_VARY, (b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED)]

    def preflight(self, origin: bytes, methods: bytes) -> Headers:
        """Give what the answer to a preflight carries; without an allowed origin that is nothing of use to a page."""
        if not self._all and origin not in self._known:
            return [_VARY]
        return [
            _VARY,
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-methods", methods),
            (b"access-control-allow-headers", _ALLOWED),
            (b"access-control-max-age", _MAX_AGE),
        ]
