"""Structs of the requests and answers of locks, shared by the server and the SDK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta

from headgate.kit.ids import MemberId
from headgate.kit.wire import Wire
from headgate.locks.fences import MOST_FENCE
from headgate.locks.model import LONGEST_DELAY, LONGEST_TTL, MOST_REPLICAS, LockEvent, LockState

LONGEST_WAIT: Final = 300
MOST_LABEL: Final = 64
Holder = Annotated[MemberId, Meta(examples=["worker-7"])]
Fence = Annotated[int, Meta(ge=1, le=MOST_FENCE)]


class AcquireRequest(Wire):
    """Ask for a lock; the same holder asking again while it holds gets the same fence."""

    ttl_seconds: Annotated[float, Meta(ge=1, le=LONGEST_TTL, examples=[10])]
    wait_seconds: Annotated[float, Meta(ge=0, le=LONGEST_WAIT)] = 0
    holder: Holder | None = None
    delay_seconds: Annotated[float, Meta(ge=0, le=LONGEST_DELAY)] = 0
    label: Annotated[
        str, Meta(max_length=MOST_LABEL, description="who holds it, for people; the token's name unless given")
    ] = ""
    replicas: Annotated[int, Meta(ge=0, le=MOST_REPLICAS)] = 0


class Acquired(Wire):
    """A lock that is yours: renew it before its TTL ends, and show its fence to what it guards."""

    holder: str
    fence: int
    ttl_seconds: float


class HolderRequest(Wire):
    """Who renews or releases."""

    holder: Holder


class BreakRequest(Wire):
    """Why a lock is taken away; with a fence, only if that holding is still the one."""

    reason: Annotated[str, Meta(max_length=500)] = ""
    fence: Fence | None = None


class Broken(Wire):
    """The fence of the holding that was ended; 0 if there was none."""

    fence: int


class LockList(Wire):
    """Locks that are held or waited for."""

    locks: Sequence[LockState]


class LockHistory(Wire):
    """How holdings ended against their holders' wish, the latest first."""

    events: Sequence[LockEvent]


class FencedRequest(Wire):
    """A value to write under a fence."""

    value: str
    fence: Fence
