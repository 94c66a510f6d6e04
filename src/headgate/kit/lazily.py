"""Names that a package offers and imports only when they are asked for.

Python asks a package's `__getattr__` for what it does not have. So a process that wants one part of a package, such as
its settings, does not pay for the rest of it at every start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def offered(package: str, names: Sequence[str], homes: Sequence[str]) -> Callable[[str], object]:
    """Give a package's `__getattr__`: each of the names is in one of these modules, looked for in this order."""

    def look_up(name: str) -> object:
        if name in names:
            for home in homes:
                found: object = getattr(import_module(home), name, None)
                if found is not None:
                    return found
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return look_up


def offered_by(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Give a package's `__getattr__`, for names whose modules are known."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def look_up(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home_of[name]), name)

    return look_up
