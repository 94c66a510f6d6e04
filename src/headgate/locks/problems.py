"""The errors of locks."""

from __future__ import annotations

from headgate.kit.problems import HeadgateError


class LockHeld(HeadgateError):
    """Somebody else holds this lock; wait longer or try again later."""

    code, status = "lock_held", 409


class NotHolder(HeadgateError):
    """The lease of this holder has ended, or it never held this lock."""

    code, status = "not_holder", 409


class LockLost(HeadgateError):
    """The lock was lost while the block ran; what it did last may not be guarded."""

    code, status = "lock_lost", 409


class AlreadyHeld(HeadgateError):
    """This task holds that lock already; waiting for it again would never end."""

    code, status = "lock_already_held", 409


class NotReplicated(HeadgateError):
    """Too few replicas have confirmed the lock in time; it was given back."""

    code, status = "not_replicated", 503


class QuorumLost(HeadgateError):
    """Too few of the quorum's servers answer to decide anything."""

    code, status = "quorum_lost", 503


class FenceOutdated(HeadgateError):
    """A newer holder has been here; this one has lost its lock."""

    code, status = "fence_outdated", 412
