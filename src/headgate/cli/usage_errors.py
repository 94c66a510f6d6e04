"""Explains a command line that cannot be parsed: the missing argument, and the usage of the command."""

from __future__ import annotations

import inspect

from cyclopts import CycloptsError, MissingArgumentError


def explain(error: CycloptsError) -> str:
    """Return one sentence; a missing argument is named as in `--help`."""
    argument = error.argument
    if not isinstance(error, MissingArgumentError) or argument is None or error.target is None:
        return " ".join(str(error).split())
    given = error.keyword or next((token.keyword for token in argument.tokens if token.keyword), None)
    if given is not None:
        return f"{given} needs a value"
    parameter = inspect.signature(error.target).parameters[argument.field_info.name]
    missing = argument.name if parameter.kind is parameter.KEYWORD_ONLY else parameter.name.upper()
    usage = ("headgate", *(error.command_chain or ()), *_words(inspect.signature(error.target)))
    return f"{missing} is missing: {' '.join(usage)}"


def _words(signature: inspect.Signature) -> list[str]:
    """Write a command's usage: its positional arguments, and its required flags."""
    words = []
    for name, parameter in signature.parameters.items():
        shown = name.upper()
        needed = parameter.default is parameter.empty
        if parameter.kind is parameter.VAR_POSITIONAL:
            words.append(f"-- {shown} …" if name == "command" else f"[{shown} …]")
        elif parameter.kind is not parameter.KEYWORD_ONLY:
            words.append(shown if needed else f"[{shown}]")
        elif needed:
            words.append(f"--{name.replace('_', '-')} {shown}")
    return words
