"""Errors of the waiting room; a docstring is the default message."""

from __future__ import annotations

from headgate.kit.problems import HeadgateError


class QueueUnknown(HeadgateError):
    """There is no queue of this name; its operator creates it with `headgate queue create`."""

    code, status = "queue_unknown", 404


class QueueLost(QueueUnknown):
    """The store knows nothing of this queue, not even that it was deleted; whoever remembers it may write it back."""

    code, status = "queue_lost", 404


class QueueClosed(HeadgateError):
    """This queue takes nobody new; those in line are still served."""

    code, status = "queue_closed", 409


class QueueFull(HeadgateError):
    """This queue is as long as its operator allows; try again later."""

    code, status = "queue_full", 429


class QueueReset(HeadgateError):
    """This queue was reset and your place is gone; enter again."""

    code, status = "queue_reset", 410


class NotInLine(HeadgateError):
    """Nobody of this id is in this queue; enter first."""

    code, status = "not_in_line", 404


class TicketInvalid(HeadgateError):
    """This ticket is not good here."""

    code, status = "ticket_invalid", 403


class TicketUsed(HeadgateError):
    """This ticket was used already; it lets one session in, once."""

    code, status = "ticket_used", 409


class TicketExpired(HeadgateError):
    """This ticket was not used in time; enter the queue again."""

    code, status = "ticket_expired", 410


class SessionTaken(HeadgateError):
    """Another ticket was redeemed under this session id; every session needs an id of its own."""

    code, status = "session_taken", 409


class SessionUnknown(HeadgateError):
    """This queue has no session of this id; it may have ended."""

    code, status = "session_unknown", 404


class KeysInvalid(HeadgateError):
    """The signing keys must be a JWKS with private Ed25519 keys, newest first."""

    code = "keys_invalid"
