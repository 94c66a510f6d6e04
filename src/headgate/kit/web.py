"""Where our pages' files are: beside the package when it is installed, in `web/` of a checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


@cache
def web_folder() -> Path:
    """Find the folder of pages, styles, scripts and languages."""
    for folder in (_PACKAGE / "web", _PACKAGE.parents[1] / "web"):
        if folder.is_dir():
            return folder
    raise FileNotFoundError("Headgate's web folder is missing; install the package again")


@cache
def web_text(name: str) -> str:
    """Read one of our files; they do not change while a process runs."""
    return (web_folder() / name).read_text(encoding="utf-8")
