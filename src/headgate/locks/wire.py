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
    """A request for a lock; the same holder asking again while it holds gets the same fence."""

    ttl_seconds: Annotated[float, Meta(ge=1, le=LONGEST_TTL, examples=[10])]
    wait_seconds: Annotated[float, Meta(ge=0, le=LONGEST_WAIT)] = 0
    holder: Holder | None = None
    delay_seconds: Annotated[float, Meta(ge=0, le=LONGEST_DELAY)] = 0
    label: Annotated[
        str, Meta(max_length=MOST_LABEL, description="who holds it, for people; the token's name unless given")
    ] = ""
    replicas: Annotated[int, Meta(ge=0, le=MOST_REPLICAS)] = 0


class Acquired(Wire):
    """A lock that you hold: renew it before its TTL ends, and send its fence to the guarded resource."""

    holder: str
    fence: int
    ttl_seconds: float


class HolderRequest(Wire):
    """The holder that renews or releases."""

    holder: Holder


class BreakRequest(Wire):
    """The reason why a lock is broken; with a fence, only if that holding is still the current one."""

    reason: Annotated[str, Meta(max_length=500)] = ""
    fence: Fence | None = None


class Broken(Wire):
    """The fence of the holding that was ended; 0 if the lock was free."""

    fence: int


class LockList(Wire):
    """Locks that are held or waited for."""

    locks: Sequence[LockState]


class LockHistory(Wire):
    """Holdings that expired or were broken, the latest first."""

    events: Sequence[LockEvent]


class FencedRequest(Wire):
    """A value to write under a fence."""

    value: str
    fence: Fence
