"""Locks with one holder at a time, elections, quorums and fences; a holder learns when its lock is lost."""

from headgate.locks.election import Election, Leader
from headgate.locks.fences import FencedValue, Fences
from headgate.locks.held_lock import Held
from headgate.locks.lock_source import Lock, LockSource
from headgate.locks.locks import Locks
from headgate.locks.model import LockEvent, LockState
from headgate.locks.problems import AlreadyHeld, FenceOutdated, LockHeld, LockLost, NotHolder, NotReplicated, QuorumLost
from headgate.locks.quorum import Quorum, QuorumHealth
from headgate.locks.settings import LockSettings

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
