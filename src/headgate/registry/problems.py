"""The errors of the registry."""

from __future__ import annotations

from headgate.kit.problems import HeadgateError


class UnknownInstance(HeadgateError):
    """This instance is not registered; register it again."""

    code, status = "unknown_instance", 404


class Superseded(HeadgateError):
    """Another process has registered under this id since; this one must not speak for it any more."""

    code, status = "superseded", 409


class Evicted(HeadgateError):
    """An operator has evicted this instance; it may not register until the time given has passed."""

    code, status = "evicted", 409


class ServiceFull(HeadgateError):
    """This service has as many instances as it may have."""

    code, status = "service_full", 429


class ProbeForbidden(HeadgateError):
    """Health checks may not reach this address; see registry.probe_networks."""

    code, status = "probe_forbidden", 422
