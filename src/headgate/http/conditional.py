"""Conditional requests: If-None-Match saves a download, If-Match prevents overwriting an unseen version."""

from __future__ import annotations

from typing import Final

from headgate.http.routes import Call
from headgate.kit.problems import InvalidRequest

LONGEST_VERSION: Final = 15


def holds(call: Call, etag: str) -> bool:
    """Tell whether If-None-Match names this version, also as a weak tag or in a list."""
    given = call.header("if-none-match")
    if given is None or given == etag:
        return given is not None
    return any(tag.strip().removeprefix("W/") in (etag, "*") for tag in given.split(","))


def expected_version(call: Call, star: int | None = None) -> int | None:
    """Return the version that must exist: that of If-Match, 0 (none) for `If-None-Match: *`, or None for any.

    `star` is the result for `If-Match: *`, where that is allowed.
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
