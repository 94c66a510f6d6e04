"""Defaults of locks."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from headgate.kit.settings import Doc, Settings


class LockSettings(Settings, section="locks"):
    """Settings that all locks of one store share; every process must use the same grace."""

    grace_ms: Annotated[int, Doc("how long a waiter who is called may take before the next one is asked")] = 500
    keep_seconds: Annotated[int, Doc("how long an unused lock is remembered, so that its fences grow by count")] = 3600
    ack_ms: Annotated[
        int, Meta(ge=1, le=1500), Doc("how long replicas may take to confirm a lock whose holder wants that")
    ] = 1000
