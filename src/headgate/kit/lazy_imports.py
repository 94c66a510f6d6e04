"""Imports the modules of a package's public names when a name is first used.

Python calls a package's `__getattr__` for a name that it does not have. So a process that needs one part of a package, such as
its settings, does not import the rest at every start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(package: str, module_of: Mapping[str, str]) -> Callable[[str], object]:
    """Make a package's `__getattr__` from the module that defines each name."""

    def look_up(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module_of[name]), name)

    return look_up
