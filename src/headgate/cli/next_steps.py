"""What to do about a failure that a command cannot do anything about itself."""

from __future__ import annotations

from typing import Final

from headgate.kit.problems import HeadgateError, StoreUnavailable, Unauthorized

_STEPS: Final[dict[type[HeadgateError], str]] = {
    StoreUnavailable: "Check that it runs and that the address is right; `headgate doctor --url ADDRESS` tells more.",
    Unauthorized: "Set HEADGATE_TOKEN to the admin token, or to one that `headgate token create` printed.",
}


def next_step(error: HeadgateError) -> str:
    """Give the step in one sentence, or nothing."""
    return next((step for kind, step in _STEPS.items() if isinstance(error, kind)), "")
