"""Advice on errors that a command cannot solve itself: the next step to take, and messages that name the queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headgate.kit.problems import HeadgateError, StoreFull, StoreUnavailable, Unauthorized

_STEPS: Final[dict[type[HeadgateError], str]] = {
    StoreFull: "Raise the store's maxmemory or free memory; `headgate doctor` shows how full it is.",
    StoreUnavailable: "Check that it runs and that the address is right; `headgate doctor --url ADDRESS` tells more.",
    Unauthorized: "Set HEADGATE_TOKEN to the admin token, or to one that `headgate token create` printed.",
}


def next_step(error: HeadgateError) -> str:
    """Return the next step in one sentence, or nothing; the first matching class counts."""
    return next((step for kind, step in _STEPS.items() if isinstance(error, kind)), "")


@contextmanager
def instead(kind: type[HeadgateError], sentence: str) -> Iterator[None]:
    """Replace the message of an error of this class by one that names what was asked for and the command that lists it."""
    try:
        yield
    except kind as error:
        raise kind(sentence) from error


def no_queue(queue: str) -> str:
    """Return the message that there is no queue of this name, with the commands that help."""
    return (
        f"There is no queue {queue}; `headgate queue list` shows those that are there, `headgate queue create {queue}` "
        "makes it."
    )
