"""The files and functions that architecture.md and CONTRIBUTING.md name are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headgate"
PAGES = ("docs/architecture.md", "CONTRIBUTING.md")
_FILE = re.compile(r"`((?:src/headgate/|tests/|\.ci/)?[\w/.-]+\.(?:py|lua))`")
_STEP = re.compile(r"`([\w/]+\.py)`[^`\n|]*?`(\w+(?:\.\w+)?)(?:\(\))?`")


def _find(name: str) -> Path:
    if "/" not in name:  # the same file in every feature
        return SOURCE / "registry" / name
    return ROOT / name if name.startswith(("src/", "tests/", ".ci/")) else SOURCE / name


@cache
def _names(path: Path) -> set[str]:
    """Collect the functions, classes and methods of a file, methods also as `Class.method`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
            found |= {f"{node.name}.{each.name}" for each in node.body if hasattr(each, "name")}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_the_page_names_is_there(page: str) -> None:
    named = set(_FILE.findall((ROOT / page).read_text()))
    assert len(named) > 5
    assert [name for name in sorted(named) if not _find(name).is_file()] == []


def test_every_step_of_the_walks_is_a_function_of_its_file() -> None:
    steps = [
        step
        for line in re.sub(r"\n {3,}(?=\S)", " ", (ROOT / PAGES[0]).read_text()).splitlines()
        if re.match(r"\d+\. ", line)
        for step in _STEP.findall(line)
    ]
    assert len(steps) > 20
    assert [(file, name) for file, name in steps if name not in _names(_find(file))] == []
