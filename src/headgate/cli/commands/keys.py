"""`headgate keys create`: a new key for `HEADGATE_SIGNING_KEYS`."""

from __future__ import annotations

from headgate.cli import output
from headgate.waiting_room.signing import SigningKeys


def create() -> None:
    """Print a new signing key in the form that `HEADGATE_SIGNING_KEYS` and the file of `…_FILE` take; keep it secret."""
    output.line(SigningKeys.generate())
