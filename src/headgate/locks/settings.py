"""How locks behave where a caller does not say."""

from __future__ import annotations

from typing import Annotated

from headgate.kit.settings import Doc, Settings


class LockSettings(Settings, section="locks"):
    """What all locks of one store share; every process must use the same grace."""

    grace_ms: Annotated[int, Doc("how long a waiter who is called may take before the next one is asked")] = 500
    keep_seconds: Annotated[int, Doc("how long an unused lock is remembered, so that its fences grow by count")] = 3600
