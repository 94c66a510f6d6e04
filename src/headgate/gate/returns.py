"""Where a visitor may be sent back to: the site itself, or a host that the queue's operator has named. Nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, urlsplit

LONGEST: Final = 2048
# These signs stay as they are in an address; all others are percent-encoded.
_KEPT: Final = "".join(sign for sign in map(chr, range(33, 127)) if sign not in '\\"<>')


def returnable(target: bytes) -> str:
    """Cut a request's target to what can be returned to: without its query if it is too long, else the start page."""
    for wanted in (target, target.split(b"?", 1)[0]):
        if len(quoted := quote(wanted, safe=_KEPT)) <= LONGEST:
            return quoted
    return "/"


def safe_return(wanted: str, host: str, allowed: Sequence[str]) -> str:
    """Give the address to return to, as a header can carry it, or / where the wish would lead off the site."""
    if not wanted or len(wanted) > LONGEST or any(ord(sign) <= 32 or sign in '\\"<>' for sign in wanted):
        return "/"
    quoted = quote(wanted, safe=_KEPT)
    if len(quoted) > LONGEST:
        return "/"
    if wanted.startswith("/"):
        return quoted if not wanted.startswith("//") else "/"
    try:
        split = urlsplit(wanted)
        port = split.port
    except ValueError:
        return "/"
    if split.scheme not in {"http", "https"} or split.username is not None or not split.hostname:
        return "/"
    there = split.hostname if port is None else f"{split.hostname}:{port}"
    names = {host.casefold(), *(name.casefold() for name in allowed)}
    return quoted if there.casefold() in names or split.hostname.casefold() in names else "/"


def elsewhere(address: str, host: str) -> bool:
    """Tell whether an address is on another host than the page, so that our cookie will not be there."""
    return not address.startswith("/") and urlsplit(address).netloc.casefold() != host.casefold()
