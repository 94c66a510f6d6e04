"""One holder at a time, and the holder is told the truth: locks, elections, quorums and fences."""

from headgate.locks.election import Election, Leader
from headgate.locks.guard import FencedValue, Fences
from headgate.locks.held import Held
from headgate.locks.locks import Locks
from headgate.locks.model import (
    AlreadyHeld,
    FenceOutdated,
    LockEvent,
    LockHeld,
    LockLost,
    LockState,
    NotHolder,
    NotReplicated,
    QuorumLost,
)
from headgate.locks.quorum import Quorum, QuorumHealth
from headgate.locks.settings import LockSettings
from headgate.locks.source import Lock, LockSource

__all__ = [
    "AlreadyHeld",
    "Election",
    "FenceOutdated",
    "FencedValue",
    "Fences",
    "Held",
    "Leader",
    "Lock",
    "LockEvent",
    "LockHeld",
    "LockLost",
    "LockSettings",
    "LockSource",
    "LockState",
    "Locks",
    "NotHolder",
    "NotReplicated",
    "Quorum",
    "QuorumHealth",
    "QuorumLost",
]
