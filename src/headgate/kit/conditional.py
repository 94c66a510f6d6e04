"""Conditional requests: what a client has already need not be sent again."""

from __future__ import annotations

from headgate.kit.http import Call


def holds(call: Call, etag: str) -> bool:
    """Tell whether the client has this version already: If-None-Match names it, also weakly or in a list."""
    given = call.header("if-none-match")
    if given is None or given == etag:
        return given is not None
    return any(tag.strip().removeprefix("W/") in (etag, "*") for tag in given.split(","))
