"""Finds the files of our pages: in the installed package, or in `web/` of a checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


@cache
def web_folder() -> Path:
    """Find the folder of pages, styles, scripts and translations."""
    for folder in (_PACKAGE / "web", _PACKAGE.parents[1] / "web"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError("Headgate's web folder is missing; install the package again")


@cache
def web_text(name: str) -> str:
    """Read one of the files, once per process."""
    return (web_folder() / name).read_text(encoding="utf-8")
