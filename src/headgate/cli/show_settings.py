"""`headgate settings`: every value in force and where it comes from."""

from __future__ import annotations

from headgate.cli import output
from headgate.cli.flags import Json
from headgate.cli.settings import read_settings


def settings(*, json: Json = False) -> None:
    """Show every setting in force and where it comes from.

    Parameters
    ----------
    json
        Print JSON.
    """
    values = list(read_settings().values())
    if json:
        output.as_json(
            [
                {"name": value.name, "value": value.shown, "origin": value.origin, "environment": value.environment[0]}
                for value in values
            ]
        )
    else:
        output.table(
            ("setting", "value", "from", "meaning"),
            [(value.name, value.shown, value.origin, value.doc) for value in values],
        )
