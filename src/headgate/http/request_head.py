"""The target and the headers of a request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from headgate.kit.problems import Malformed

Pairs = list[tuple[bytes, bytes]]

# With one of these headers, the body's length does not follow from Content-Length alone.
_FRAMING: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade"))
# Headers that identify the client, hold a secret, or change the headers of the response.
_PERSONAL: Final = frozenset(
    (b"authorization", b"cookie", b"origin", b"traceparent", b"x-api-token", b"x-forwarded-for", b"x-place-token",
     b"x-request-id")
)  # fmt: skip


def keep_table(codes: Iterable[int]) -> bytes:
    """Make a table for `bytes.translate` that keeps these characters and changes all others.

    Text that is equal after `translate` has only these characters. Deleting them with `translate` costs several times as much.
    """
    kept = frozenset(codes)
    return bytes(code if code in kept else code ^ 1 for code in range(256))


def is_repeated(name: bytes, headers: Pairs) -> bool:
    """Tell whether a header occurs more than once."""
    return sum(each == name for each, _ in headers) > 1


def origin_form(target: bytes) -> bytes:
    """Return the path of a target that is a whole URL; `*` is returned unchanged."""
    if target == b"*":
        return target
    scheme, slashes, rest = target.partition(b"://")
    if not slashes or scheme.lower() not in (b"http", b"https"):
        raise Malformed("The request's target is not a path.")
    slash = rest.find(b"/")
    return b"/" if slash < 0 else rest[slash:]


class RequestHead:
    """The headers of a request: as pairs in their order, and by name.

    `body_length` is None if it does not follow from the headers. `anonymous` says that no header identifies the client or
    changes the headers of the response.
    """

    __slots__ = ("anonymous", "body_length", "by_name", "pairs")

    def __init__(self, pairs: Pairs, by_name: dict[bytes, bytes]) -> None:
        self.pairs = pairs
        self.by_name = by_name
        self.anonymous = by_name.keys().isdisjoint(_PERSONAL)
        self.body_length: int | None = None
        if by_name.keys().isdisjoint(_FRAMING):
            length = by_name.get(b"content-length", b"0")
            self.body_length = int(length) if length.isdigit() and len(length) < 8 else None


class RequestTarget:
    """Method, path and headers; requests of a connection that repeat them share one target.

    The application caches in `route` what depends on nothing but the target and the connection.
    """

    __slots__ = ("head", "headers", "method", "path", "route")

    def __init__(self, method: str, path: bytes, head: RequestHead) -> None:
        self.method = method
        self.path = path
        self.head = head
        self.headers = head.by_name
        self.route: Any = None
