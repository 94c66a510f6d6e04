"""Where a visitor may be sent back to: the site itself, or a host that the queue's operator has named. Nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

LONGEST: Final = 2048


def returnable(target: str) -> str:
    """Cut a request's target to what can be returned to: without its query if it is too long, else the start page."""
    for wanted in (target, target.split("?", 1)[0]):
        if len(wanted) <= LONGEST:
            return wanted
    return "/"


def safe_return(wanted: str, host: str, allowed: Sequence[str]) -> str:
    """Give the address to return to, or / where the wish would lead off the site."""
    if not wanted or len(wanted) > LONGEST or any(ord(sign) <= 32 or sign in '\\"<>' for sign in wanted):
        return "/"
    if wanted.startswith("/"):
        return wanted if not wanted.startswith("//") else "/"
    try:
        split = urlsplit(wanted)
        port = split.port
    except ValueError:
        return "/"
    if split.scheme not in {"http", "https"} or split.username is not None or not split.hostname:
        return "/"
    there = split.hostname if port is None else f"{split.hostname}:{port}"
    names = {host.casefold(), *(name.casefold() for name in allowed)}
    return wanted if there.casefold() in names or split.hostname.casefold() in names else "/"


def elsewhere(address: str, host: str) -> bool:
    """Tell whether an address is on another host than the page, so that our cookie will not be there."""
    return not address.startswith("/") and urlsplit(address).netloc.casefold() != host.casefold()
