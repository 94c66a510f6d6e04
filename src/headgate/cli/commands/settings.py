"""`headgate settings`: every setting in force and where its value comes from."""

from __future__ import annotations

import sys

from headgate.cli import output
from headgate.cli.options import Json
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
        # A terminal is too narrow for five columns, and names must not be wrapped, so that they can be copied.
        on_terminal = sys.stdout.isatty()
        output.table(
            ("setting, in the environment", "value", "from", "meaning"),
            [
                (f"{value.name}\n{value.environment[0]}", value.shown, value.origin, value.doc)
                if on_terminal
                else (value.name, value.shown, value.origin, value.doc, value.environment[0])
                for value in values
            ],
        )
