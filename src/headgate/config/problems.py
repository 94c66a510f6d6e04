"""The errors of config."""

from __future__ import annotations

from headgate.kit.problems import HeadgateError


class UnknownKey(HeadgateError):
    """There is no such key."""

    code, status = "unknown_key", 404


class UnknownVersion(HeadgateError):
    """This version is not kept, or never was."""

    code, status = "unknown_version", 404


class NamespaceFull(HeadgateError):
    """This namespace has as many keys, or as much in them, as it may have."""

    code, status = "namespace_full", 429


class ContentInvalid(HeadgateError):
    """The content is not well-formed."""

    code, status = "content_invalid", 422
