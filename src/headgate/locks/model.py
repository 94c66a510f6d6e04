"""Domain types of locks: limits, requests, grants and states; no I/O."""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Final, cast

import msgspec

from headgate.kit.ids import display_text, member_id, thing_name
from headgate.kit.problems import InvalidRequest

SHORTEST_TTL: Final = 0.1
LONGEST_TTL: Final = 3600.0
LONGEST_DELAY: Final = 60.0
MOST_REPLICAS: Final = 16
ELECTION_PREFIX: Final = "election:"


class LockRequest(msgspec.Struct, frozen=True):
    """A request for a lock: its name, TTL, waiting time and options."""

    namespace: str
    name: str
    ttl: float
    wait: float | None = None
    delay: float = 0.0
    label: str = ""
    renew: bool = True
    replicas: int = 0
    """The number of replicas that must have it before it is held."""
    request_id: str = "-"
    """Tells requests under the same holder's name apart, so that withdrawing one leaves a later one alone."""

    def __post_init__(self) -> None:
        thing_name(self.namespace, "namespace")
        thing_name(self.name, "name")
        if not SHORTEST_TTL <= self.ttl <= LONGEST_TTL:
            raise InvalidRequest(f"ttl must be {SHORTEST_TTL} to {LONGEST_TTL:.0f} seconds.", field="ttl")
        if self.wait is not None and not self.wait >= 0:
            raise InvalidRequest("wait must be 0 or more seconds, or None for as long as it takes.", field="wait")
        if not 0 <= self.delay <= LONGEST_DELAY:
            raise InvalidRequest(f"delay must be 0 to {LONGEST_DELAY:.0f} seconds.", field="delay")
        if not 0 <= self.replicas <= MOST_REPLICAS:
            raise InvalidRequest(f"replicas must be 0 to {MOST_REPLICAS}.", field="replicas")
        if self.label:
            display_text(self.label, "label")

    @property
    def announced(self) -> bool:
        """Whether every change is published to observers, not only to waiters."""
        return self.name.startswith(ELECTION_PREFIX)

    @property
    def ttl_ms(self) -> int:
        """The TTL in milliseconds."""
        return round(self.ttl * 1000)


class Grant(msgspec.Struct, frozen=True):
    """A granted lock; `sent` is a monotonic time before the request, so the lease ends no earlier than sent + ttl."""

    request: LockRequest
    holder: str
    fence: int
    sent: float


class LockState(msgspec.Struct, frozen=True, rename="camel"):
    """A lock as anybody may see it; its holder is shown only by the label that it chose."""

    name: str
    held: bool
    fence: int
    waiting: int
    ttl_ms: int
    """The rest of the lease if it is not renewed."""
    label: str = ""
    held_ms: int = 0


def decode_state(name: str, reply: object) -> LockState:
    """Decode the reply of show.lua."""
    held, fence, waiting, left, _, label, held_ms, _ = cast("list[int | bytes]", reply)
    words = label.decode() if isinstance(label, bytes) else ""
    return LockState(name, held == 1, int(fence), int(waiting), int(left), words, int(held_ms))


class LockEvent(msgspec.Struct, frozen=True, rename="camel"):
    """The end of a holding that its holder did not ask for: the lease ran out, or an operator broke the lock."""

    kind: str
    fence: int
    at: datetime
    by: str = ""
    reason: str = ""


def election_name(name: str) -> str:
    """Give the name of the lock behind an election."""
    return ELECTION_PREFIX + thing_name(name, "name")


def checked_holder(holder: str) -> str:
    """Validate a holder's name."""
    return member_id(holder, "holder")


class LockNames:
    """Makes names: one for this process, and unguessable ones for holders, since the name proves the holding."""

    def __init__(self) -> None:
        self.owner = secrets.token_urlsafe(9)

    def next(self) -> str:
        """Make the name of a new holder."""
        return secrets.token_urlsafe(18)
