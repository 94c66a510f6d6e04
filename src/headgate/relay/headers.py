"""The headers that pass the relay in either direction, and the options that a request gives in its headers.

A request is never passed on as it came: it is written anew from its parsed form. A request that two parsers could
read differently (two lengths, a length and chunks, headers that Connection removes) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from time import time
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

from headgate.http.client_response import Headers
from headgate.kit import traces
from headgate.kit.problems import InvalidRequest, Malformed
from headgate.relay.model import MOST_UNITS, Upstream, user_id
from headgate.relay.problems import UpstreamFailed, UserMissing

HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
     b"trailer", b"transfer-encoding", b"upgrade"}
)  # fmt: skip
CONNECTION_OPTIONS: Final = HOP_BY_HOP | {b"close", b"http2-settings"}
OURS: Final = frozenset(
    {b"host", b"content-length", b"expect", b"forwarded", b"prefer", b"x-api-token", b"x-deadline-ms", b"x-permits"}
)
_TRACE: Final = frozenset((b"traceparent", b"tracestate"))
CONTENT: Final = frozenset({b"accept-ranges", b"content-digest", b"content-encoding", b"content-length", b"content-md5",
                            b"content-range", b"content-type", b"digest", b"etag", b"repr-digest"})  # fmt: skip
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
LONGEST_PAUSE: Final = 21_600.0
_UNWRITABLE = re.compile(rb"[\r\n\0]")
_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[^\r\n\0\u0100-\U0010ffff]*")
_TARGET = re.compile(rb"[!-~]*")
# A segment of dots and its possible ends: `;` begins parameters on some servers, and the others end or trim a name.
_DOTS = re.compile(rb"(?:^|[/\\])\.\.?(?:[/\\;?#\0- ]|\Z)")
_DECODINGS: Final = 4
_SECRET = re.compile(r"\{secret:([A-Za-z0-9_.-]+)\}")
_RESET = re.compile(r";\s*t=(\d+)")


def first(headers: Headers, name: bytes) -> bytes | None:
    """Return the only value of a header; raises Malformed if it was sent twice."""
    found = [value for key, value in headers if key == name]
    if len(found) > 1:
        raise Malformed(f"{name.decode('latin-1')} was sent more than once.")
    return found[0] if found else None


def refuse_ambiguous(headers: Headers) -> None:
    """Refuse headers that the upstream could parse differently than we do."""
    lengths = [value for name, value in headers if name == b"content-length"]
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if len(lengths) > 1 or (lengths and not lengths[0].isdigit()):
        raise Malformed("Content-Length must be given once, as a number.")
    if codings and (lengths or codings != [b"chunked"]):
        raise Malformed("Transfer-Encoding may only be chunked, and not together with Content-Length.")
    for name, value in headers:
        if name == b"connection":
            struck = {option.strip().lower() for option in value.split(b",") if option.strip()}
            if not struck <= CONNECTION_OPTIONS:
                raise Malformed("Connection may not strike out other headers.")
    if _UNWRITABLE.search(b"".join([value for _, value in headers])):
        raise Malformed("A header has a sign that headers may not have.")


def written_headers(method: str, headers: Mapping[str, str]) -> Headers:
    """Encode the headers of a caller in this process; raises InvalidRequest if they are not valid."""
    if not _TOKEN.fullmatch(method):
        raise InvalidRequest(f"{method[:80]!r} is not a method.", field="method")
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise InvalidRequest(f"{name[:80]!r} is not the name of a header.", field="headers")
        if not _VALUE.fullmatch(value):
            raise InvalidRequest(f"The header {name[:80]} has a sign that headers may not have.", field="headers")
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


def user_of(headers: Headers, policy: Upstream) -> str:
    """Read the user of a request from the upstream's user header."""
    value = first(headers, policy.user_header.lower().encode())
    if not value:
        raise UserMissing(f"Say in {policy.user_header} whose request this is.", header=policy.user_header)
    try:
        return user_id(value.decode(), policy.user_header)
    except UnicodeDecodeError:
        raise InvalidRequest(f"{policy.user_header} is not UTF-8.", field=policy.user_header) from None


def whole_number(headers: Headers, name: bytes, default: int, most: int) -> int:
    """Read a header that holds a number of at least 1."""
    value = first(headers, name)
    if value is None:
        return default
    if not value.isdigit() or len(value) > len(str(most)) or not 1 <= int(value) <= most:
        title = name.decode().title()
        raise InvalidRequest(f"{title} must be a whole number from 1 to {most}.", field=title)
    return int(value)


def units_of(headers: Headers) -> int:
    """Read how many permits a request costs."""
    return whole_number(headers, b"x-permits", 1, MOST_UNITS)


def refuse_dots(path: bytes) -> None:
    """Refuse a path that leads above the upstream's base, however often a server decodes it."""
    plain = path
    for _ in range(_DECODINGS):
        plain = unquote_to_bytes(plain)
    if unquote_to_bytes(plain) != plain:
        raise Malformed("The path is percent-encoded too many times over.")
    if _DOTS.search(plain) or path.startswith(b"//"):
        raise Malformed("The path must not have empty first segments or dots for folders.")


def target_of(policy: Upstream, path: bytes, query: bytes) -> bytes:
    """Write the request target below the upstream's base path; the path cannot lead out of it."""
    if not _TARGET.fullmatch(path) or not _TARGET.fullmatch(query) or b"#" in path + query or b"\\" in path:
        raise Malformed("The path has signs that must be percent-encoded.")
    refuse_dots(path)
    base = urlsplit(policy.base_url).path.rstrip("/").encode()
    return (base + path or b"/") + (b"?" + query if query else b"")


def request_headers(headers: Headers, policy: Upstream, secrets: dict[str, str], *, length: int | None) -> Headers:
    """Write the headers that are sent to the upstream; `length` None means chunked, -1 no body."""
    own = {name.lower().encode(): _filled(value, secrets) for name, value in policy.headers.items()}
    user = policy.user_header.lower().encode()
    kept = [
        (name, value)
        for name, value in headers
        if name not in HOP_BY_HOP
        and name not in OURS
        and name not in own
        and not name.startswith(b"x-forwarded-")
        and (name != user or policy.forward_user)
    ]
    own.setdefault(b"host", _host(urlsplit(policy.base_url).netloc))
    kept += own.items()
    if length is None:
        kept.append((b"transfer-encoding", b"chunked"))
    elif length >= 0:
        kept.append((b"content-length", b"%d" % length))
    return kept


def with_trace(headers: Headers) -> Headers:
    """Replace the caller's trace context by the current span's, if there is a span."""
    own = [(name.encode(), value.encode("latin-1")) for name, value in traces.headers().items()]
    return [*(header for header in headers if header[0] not in _TRACE), *own] if own else headers


def trace_of(headers: Headers) -> dict[str, str]:
    """Return the trace context of a request."""
    return {name.decode(): value.decode("latin-1") for name, value in headers if name in _TRACE}


def response_headers(headers: Headers, *, body: bool = True) -> Headers:
    """Drop the hop-by-hop headers of an answer, and without a body also those that describe the body."""
    struck = set(HOP_BY_HOP) if body else HOP_BY_HOP | CONTENT
    for name, value in headers:
        if name == b"connection":
            struck |= {option.strip().lower() for option in value.split(b",")}
    return [(name, value) for name, value in headers if name not in struck]


def pause_of(headers: Headers, default: float) -> float:
    """Read how long to pause after a 429: Retry-After, else the RateLimit header."""
    named = {name: value.decode("latin-1").strip() for name, value in headers}
    after = named.get(b"retry-after", "")
    if after.isascii() and after.isdigit():
        return min(float(after), LONGEST_PAUSE)
    if after:
        try:
            return min(max(0.0, parsedate_to_datetime(after).timestamp() - time()), LONGEST_PAUSE)
        except (ValueError, OverflowError):
            pass
    reset = _RESET.search(named.get(b"ratelimit", ""))
    return min(float(reset[1]), LONGEST_PAUSE) if reset else default


def wants_job(headers: Headers) -> bool:
    """Whether the client asks for a job: `Prefer: respond-async`."""
    preferences = [value for name, value in headers if name == b"prefer"]
    return any(
        option.split(b";")[0].strip().lower() == b"respond-async"
        for value in preferences
        for option in value.split(b",")
    )


def _host(netloc: str) -> bytes:
    """Write the Host header; a name that is not ASCII is encoded as in DNS."""
    if netloc.isascii():
        return netloc.encode()
    name, colon, port = netloc.partition(":")
    return name.encode("idna") + (colon + port).encode()


def _filled(value: str, secrets: dict[str, str]) -> bytes:
    def secret(found: re.Match[str]) -> str:
        if found[1] not in secrets:
            raise UpstreamFailed(f"The relay has no secret named {found[1]}; set relay.secrets.", outcome="unsent")
        return secrets[found[1]]

    try:
        return _SECRET.sub(secret, value).encode("latin-1")
    except UnicodeEncodeError:
        raise UpstreamFailed("A secret of the relay has signs that headers may not have.", outcome="unsent") from None
