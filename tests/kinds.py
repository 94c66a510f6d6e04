"""On which kinds of store a test runs: on the chosen one, or with `--topology every` on each that matters to it.

Every test runs once. A test of the store runs again on each other kind, and once more as a user who has only the rights
that `doctor --acl` prints; a test that asks for no store is the same everywhere and is not repeated. Elsewhere a test is
repeated on the kinds that its mark names. A long test that asks for no right of its own says `least_rights=False` there.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.topology import KINDS, Topology

LEAST_RIGHTS = "least-rights"
EVERY = "every"

MANY_SERVERS = ("cluster", "sentinel")

# The folders whose tests hold for every kind of store unless their mark says otherwise.
_FOLDERS = ("store", "topology")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.config.getoption("--topology") != EVERY or "kind_of_store" not in metafunc.fixturenames:
        return
    kinds = _kinds(metafunc.definition)
    if kinds != ["standalone"]:
        metafunc.parametrize("kind_of_store", kinds, indirect=True)


def leave_out_other_kinds(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of another topology: they are not skipped, they do not belong to this run."""
    chosen = config.getoption("--topology")
    if chosen == EVERY:
        return
    others = {item for item in items if chosen not in _named(item, KINDS)}
    if others:
        config.hook.pytest_deselected(items=list(others))
        items[:] = [item for item in items if item not in others]


def thorough_run(config: pytest.Config) -> bool:
    """Tell whether this run may take long: every kind of store is tried, or a file or the mark `release` is asked for."""
    asked = any("::" in argument or argument.endswith(".py") for argument in config.args)
    return asked or config.getoption("--topology") == EVERY or "release" in (config.option.markexpr or "")


def leave_out_long_tests(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked `release`, unless this run may take long."""
    if thorough_run(config):
        return
    long = {item for item in items if item.get_closest_marker("release")}
    if long:
        config.hook.pytest_deselected(items=list(long))
        items[:] = [item for item in items if item not in long]


def chosen_kind(config: pytest.Config) -> str:
    """Say which kind a test runs on that was not made for one."""
    chosen = str(config.getoption("--topology"))
    return "standalone" if chosen == EVERY else chosen


def new_store(kind: str) -> Topology:
    return KINDS["standalone" if kind == LEAST_RIGHTS else kind]()


def shared_kind(nodeid: str) -> str | None:
    """Say which kind of shared store the test of this name runs on, if its name tells."""
    path, _, parameters = nodeid.partition("[")
    kind = parameters.removesuffix("]").partition("-")[0]
    return kind if kind in KINDS and path.split("/")[-2] in _FOLDERS else None


def _kinds(test: pytest.Item) -> list[str]:
    of_the_store = Path(test.path).parent.name in _FOLDERS
    kinds = _named(test, list(KINDS) if of_the_store else ["standalone"])
    if of_the_store and "standalone" in kinds and "store_url" in getattr(test, "fixturenames", ()):
        mark = test.get_closest_marker("topology")
        if mark is None or mark.kwargs.get("least_rights", True):
            kinds.append(LEAST_RIGHTS)
    return kinds


def _named(test: pytest.Item, default: Iterable[str]) -> list[str]:
    mark = test.get_closest_marker("topology")
    return list(mark.args if mark else default)
