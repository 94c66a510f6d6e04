"""A finding of `headgate doctor`."""

from __future__ import annotations

from enum import StrEnum

import msgspec

RIGHTS = "Give our user the rights that `headgate doctor --acl` prints."
LOOPBACK = ("127.", "::1", "localhost")


class Severity(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """The result of one check: its name, what it found, and the advice."""

    level: Severity
    check: str
    found: str
    advice: str = ""
