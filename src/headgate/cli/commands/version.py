"""`headgate version`: the installed version."""

from __future__ import annotations

import platform

from headgate import __version__
from headgate.cli import output
from headgate.cli.options import Json


def version(*, json: Json = False) -> None:
    """Say which version this is.

    Parameters
    ----------
    json
        Print JSON, with Python's version.
    """
    if json:
        output.as_json({"headgate": __version__, "python": platform.python_version()})
    else:
        output.line(__version__)
