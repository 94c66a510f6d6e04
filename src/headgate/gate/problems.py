"""Errors of the gate; a docstring is the default message."""

from __future__ import annotations

from headgate.kit.problems import HeadgateError


class MustWait(HeadgateError):
    """It is not your turn yet; you are in line, and your place is kept."""

    code, status = "must_wait", 429


class RevocationsFull(HeadgateError):
    """So many passes of this queue were revoked lately that its gates could not know of another; a reset ends all its passes."""

    code, status = "revocations_full", 409
