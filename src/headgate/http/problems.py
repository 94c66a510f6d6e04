"""Problems that the HTTP server and client raise by themselves."""

from __future__ import annotations

from headgate.kit.problems import HeadgateError, HeadTooLarge

__all__ = [
    "AddressTooBusy", "CodingUnsupported", "HeadTimeout", "HeadTooLarge", "TooManyConnections", "VersionUnsupported",
]  # fmt: skip


class HeadTimeout(HeadgateError):
    """The request's headers did not arrive in time."""

    code, status = "request_timeout", 408


class CodingUnsupported(HeadgateError):
    """A request body comes plain or chunked, in no other transfer coding."""

    code, status = "coding_unsupported", 501


class VersionUnsupported(HeadgateError):
    """This port speaks HTTP/1.1."""

    code, status = "version_unsupported", 505


class TooManyConnections(HeadgateError):
    """This process holds as many connections as it may; try again in a moment."""

    code, status = "too_many_connections", 503


class AddressTooBusy(HeadgateError):
    """This address holds as many connections as one may; close some, or have the gateway trust the proxy."""

    code, status = "address_too_busy", 429
