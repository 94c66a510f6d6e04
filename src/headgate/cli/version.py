"""`headgate version`: what is installed."""

from __future__ import annotations

import platform

from headgate import __version__
from headgate.cli import output


def version(*, json: bool = False) -> None:
    """Say which version this is."""
    if json:
        output.as_json({"headgate": __version__, "python": platform.python_version()})
    else:
        output.line(__version__)
