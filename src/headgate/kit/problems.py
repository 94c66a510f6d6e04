"""The errors that callers get, each a class with a stable code.

The same table of codes turns a script's refusal into an exception, an exception into an RFC 9457 problem document, and that
document back into the exception in the client.
"""

from __future__ import annotations

import inspect
from typing import ClassVar, Self

BY_CODE: dict[str, type[HeadgateError]] = {}


class HeadgateError(Exception):
    """Something went wrong in Headgate."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    def __init__(self, detail: str | None = None, *, retry_after: float | None = None, **members: object) -> None:
        self.detail = self.public_detail = detail or inspect.cleandoc(type(self).__doc__ or "")
        self.reason: str | None = None
        self.retry_after = retry_after
        self.members = members
        super().__init__(self.detail)

    def __init_subclass__(cls) -> None:
        if "code" in cls.__dict__:
            known = BY_CODE.setdefault(cls.code, cls)
            if known is not cls and known.__qualname__ != cls.__qualname__:
                raise TypeError(f"two problems have the code {cls.code!r}: {known.__qualname__} and {cls.__qualname__}")
            if "title" not in cls.__dict__:
                cls.title = cls.code.replace("_", " ").capitalize()

    def because(self, reason: str | None) -> Self:
        """Add the error message of another system, such as the store, to the detail.

        Operators see it in logs and on the command line; it is not in the problem document, which may be public.
        """
        if reason:
            self.reason = reason
            self.detail = f"{self.public_detail.rstrip('.')}: {reason.rstrip('.')}."
            self.args = (self.detail,)
        return self

    def document(self) -> dict[str, object]:
        """Give the members of the problem document, without those that belong to one request."""
        body: dict[str, object] = {
            "type": f"/docs/problems#{self.code}",
            "title": self.title,
            "status": self.status,
            "code": self.code,
            "detail": self.public_detail,
        }
        if self.retry_after is not None:
            body["retryAfter"] = self.retry_after
        body.update(self.members)
        return body


class StoreUnavailable(HeadgateError):
    """The store did not answer in time; try again shortly."""

    code, status = "store_unavailable", 503


class OutcomeUnknown(StoreUnavailable):
    """The connection to the store was lost before its answer came: the call may or may not have taken effect."""


class StoreFull(StoreUnavailable):
    """The store is out of memory and takes nothing new; what is there goes on, and can be ended and deleted."""

    code, status = "store_full", 507


class Closed(StoreUnavailable):
    """The client was closed."""

    # Loops that wait for an unavailable store to come back must not wait after this.


class Forked(Closed):
    """This was opened before the process was forked and belongs to the parent; open it in the child, after the fork."""


class StoreRefused(HeadgateError):
    """This store would lose data that Headgate must keep."""

    code, status = "store_refused", 503


class InvalidRequest(HeadgateError):
    """The request is not what this route takes."""

    code, status = "invalid_request", 422


class Malformed(HeadgateError):
    """The request could not be read."""

    code, status = "malformed", 400


class Unauthorized(HeadgateError):
    """Send a valid token in X-API-Token."""

    code, status = "unauthorized", 401


class Forbidden(HeadgateError):
    """This token may not do that."""

    code, status = "forbidden", 403


class NotFound(HeadgateError):
    """There is nothing at this address."""

    code, status = "not_found", 404


class MethodNotAllowed(HeadgateError):
    """This address does not take that method."""

    code, status = "method_not_allowed", 405


class TooLarge(HeadgateError):
    """The request body is too large."""

    code, status = "too_large", 413


class HeadTooLarge(HeadgateError):
    """The request's headers are larger than 64 kB."""

    code, status = "headers_too_large", 431


class RateLimited(HeadgateError):
    """Too many requests from here; slow down."""

    code, status = "rate_limited", 429


class VersionConflict(HeadgateError):
    """Somebody else changed it meanwhile; read it again and repeat your change."""

    code, status = "version_conflict", 412


class DeadlineExceeded(HeadgateError):
    """This cannot be done before your deadline."""

    code, status = "deadline_exceeded", 503


def from_document(body: dict[str, object], status: int) -> HeadgateError:
    """Make the exception of a problem document; an unknown code gives a subclass of the root class."""
    members = {key: value for key, value in body.items() if key not in _DOCUMENT_MEMBERS}
    retry_after = body.get("retryAfter")
    kind = BY_CODE.get(str(body.get("code")))
    if kind is None:
        kind = type("UnknownProblem", (HeadgateError,), {"__doc__": str(body.get("title", "")), "status": status})
    return kind(
        str(body["detail"]) if body.get("detail") else None,
        retry_after=float(retry_after) if isinstance(retry_after, (int, float)) else None,
        **members,
    )


_DOCUMENT_MEMBERS = frozenset({"type", "title", "status", "code", "detail", "instance", "requestId", "retryAfter"})
