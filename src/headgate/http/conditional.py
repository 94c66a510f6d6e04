"""Conditional requests: what a client has already need not be sent again, and what it has not seen is not overwritten."""

from __future__ import annotations

from typing import Final

from headgate.http.routes import Call
from headgate.kit.problems import InvalidRequest

LONGEST_VERSION: Final = 15


def holds(call: Call, etag: str) -> bool:
    """Tell whether the client has this version already: If-None-Match names it, also weakly or in a list."""
    given = call.header("if-none-match")
    if given is None or given == etag:
        return given is not None
    return any(tag.strip().removeprefix("W/") in (etag, "*") for tag in given.split(","))


def expected_version(call: Call, star: int | None = None) -> int | None:
    """Read which version must be there: If-Match names it, If-None-Match: * means that there is none (0); None for any.

    `star` is what `If-Match: *` means, where that is understood.
    """
    absent = call.header("if-none-match")
    if absent is not None:
        if absent.strip() != "*":
            raise InvalidRequest("If-None-Match must be *, which means that there is none yet.", field="If-None-Match")
        return 0
    tag = call.header("if-match")
    if tag is None:
        return None
    if star is not None and tag.strip() == "*":
        return star
    text = tag.strip().removeprefix("W/").strip('"')
    if not (text.isascii() and text.isdigit() and len(text) <= LONGEST_VERSION):
        raise InvalidRequest('If-Match must be a version, such as "3".', field="If-Match")
    return int(text)
