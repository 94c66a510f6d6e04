"""The errors of the relay."""

from __future__ import annotations

from headgate.kit.problems import HeadgateError


class UpstreamFailed(HeadgateError):
    """The upstream closed the connection or sent what is not HTTP."""

    code, status = "upstream_failed", 502


class UpstreamTimeout(HeadgateError):
    """The upstream did not answer in time."""

    code, status = "upstream_timeout", 504


class UpstreamUnknown(HeadgateError):
    """There is no upstream of this name; its operator can add it."""

    code, status = "upstream_unknown", 404


class UserMissing(HeadgateError):
    """Say in the user header whose request this is."""

    code, status = "user_missing", 400


class LineFull(HeadgateError):
    """Too many requests of this user are waiting already."""

    code, status = "line_full", 429


class CostTooHigh(HeadgateError):
    """One request may not cost more permits than the limit has."""

    code, status = "cost_too_high", 422


class PermitExpired(HeadgateError):
    """The permit ended before the request was sent; nothing was sent."""

    code, status = "permit_expired", 503


class JobUnknown(HeadgateError):
    """There is no job of this id; results are kept for an hour."""

    code, status = "job_unknown", 404


class JobSending(HeadgateError):
    """This job is being sent and cannot be cancelled any more."""

    code, status = "job_sending", 409


class JobTaken(HeadgateError):
    """Another relay has this job, or it has ended."""

    code, status = "job_taken", 409
