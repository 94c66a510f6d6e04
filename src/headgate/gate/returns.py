"""Return addresses: visitors are sent back only to the site, or to a host that the operator has named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, urlsplit

LONGEST: Final = 2048
# These characters stay as they are in an address; all others are percent-encoded.
_KEPT: Final = "".join(char for char in map(chr, range(33, 127)) if char not in '\\"<>')


def return_target(target: bytes) -> str:
    """Give the return address of a request's target: without its query if it is too long, else the start page."""
    for wanted in (target, target.split(b"?", 1)[0]):
        if len(quoted := quote(wanted, safe=_KEPT)) <= LONGEST:
            return quoted
    return "/"


def safe_return(wanted: str, host: str, allowed: Sequence[str]) -> str:
    """Give the return address, encoded for a header, or / if it would lead off the site."""
    if not wanted or len(wanted) > LONGEST or any(ord(char) <= 32 or char in '\\"<>' for char in wanted):
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
    address = split.hostname if port is None else f"{split.hostname}:{port}"
    names = {host.casefold(), *(name.casefold() for name in allowed)}
    return quoted if address.casefold() in names or split.hostname.casefold() in names else "/"


def on_other_host(address: str, host: str) -> bool:
    """Tell whether an address is on another host than the page, where our cookie is not sent."""
    return not address.startswith("/") and urlsplit(address).netloc.casefold() != host.casefold()
