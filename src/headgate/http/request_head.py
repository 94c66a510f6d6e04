"""What stands above a request's body: its first line, its headers, and the memory of headers that were read before.

Clients repeat themselves: whoever keeps a connection says the same headers with each request, and a crowd of one browser says
them alike. So a block of headers is remembered as it came, and a request with a known block is not parsed again: only its
first line is read. Whether a block can be understood in two ways was looked at when it was first seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from headgate.kit.problems import Malformed

Pairs = list[tuple[bytes, bytes]]

MOST_BYTES: Final = 4096
MOST_BLOCKS: Final = 512
# Many short headers take fifty times the memory of their bytes.
MOST_HEADERS: Final = 64

# These methods, and targets that no two readers understand differently.
first_line: Final = re.compile(rb"(GET|POST|PUT|DELETE) (/[!\"$->@-~]*)(?:\?([!\"$-~]*))? HTTP/1\.1\r\n").match


def sieve(signs: Iterable[int]) -> bytes:
    """Make a table for `bytes.translate` that leaves these signs as they are and changes all others.

    So what is the same afterwards has no others. To take signs away and look for a rest costs several times as much.
    """
    kept = frozenset(signs)
    return bytes(sign if sign in kept else sign ^ 1 for sign in range(256))


# What may stand in a query there.
QUERY_SIGNS: Final = sieve(sign for sign in range(0x21, 0x7F) if sign != ord("#"))
# With one of these, a request is more than its headers and so many bytes.
_MORE: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade"))
# What says who asks, from where, or how the answer is to be marked; and what is a secret of theirs.
_PERSONAL: Final = frozenset(
    (b"authorization", b"cookie", b"origin", b"traceparent", b"x-api-token", b"x-forwarded-for", b"x-place-token",
     b"x-request-id")
)  # fmt: skip


def twice(name: bytes, headers: Pairs) -> bool:
    """Tell whether a header is there more than once."""
    return sum(each == name for each, _ in headers) > 1


def origin_form(target: bytes) -> bytes:
    """Give the path of a target that is a whole URL; `*` stays what it is."""
    if target == b"*":
        return target
    scheme, slashes, rest = target.partition(b"://")
    if not slashes or scheme.lower() not in (b"http", b"https"):
        raise Malformed("The request's target is not a path.")
    slash = rest.find(b"/")
    return b"/" if slash < 0 else rest[slash:]


class RequestHead:
    """A request's headers: as they came, by name, and what follows from them.

    `length` is that of the body, None if the headers alone do not tell. `plain` says that nothing in them tells who asks or
    how the answer is to be marked.
    """

    __slots__ = ("length", "names", "pairs", "plain")

    def __init__(self, pairs: Pairs, names: dict[bytes, bytes]) -> None:
        self.pairs = pairs
        self.names = names
        self.plain = names.keys().isdisjoint(_PERSONAL)
        self.length: int | None = None
        if names.keys().isdisjoint(_MORE):
            length = names.get(b"content-length", b"0")
            self.length = int(length) if length.isdigit() and len(length) < 8 else None


class HeaderCache:
    """Blocks of headers that many say alike; a personal one is remembered by its connection alone.

    Two generations bound the memory: what nobody says any more is forgotten.
    """

    __slots__ = ("_old", "_young")

    def __init__(self) -> None:
        self._young: dict[bytes, RequestHead] = {}
        self._old: dict[bytes, RequestHead] = {}

    def find(self, block: bytes) -> RequestHead | None:
        """Give the headers of a block that was read before."""
        head = self._young.get(block)
        if head is None:
            head = self._old.get(block)
            if head is not None:
                self.add(block, head)
        return head

    def add(self, block: bytes, head: RequestHead) -> None:
        """Remember a block, unless it is personal."""
        if head.plain:
            if len(self._young) >= MOST_BLOCKS:
                self._old, self._young = self._young, {}
            self._young[block] = head

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
