"""How tests run side by side: each worker process has a store and a gateway of its own, and some tests want the machine.

Any test may run in any worker, except that tests which share a fixture of their module stay together. A test marked
`alone` measures how fast or how many: while it runs, no other does. That is a lock of readers and one writer between the
workers, with a turnstile before it so that a writer is not passed by readers for ever.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

# Tests wait for processes, leases and clocks about as long as they compute.
WORKERS_PER_CORE = 2

# What takes longest begins first, so that the last minute is not one worker's alone.
FOLDERS = ("http", "faults", "browser", "proxy", "store", "topology", "unit")


def workers(config: pytest.Config) -> int:
    """Say how many processes this run is worth: one file is run here."""
    chosen = [argument.partition("::")[0] for argument in config.args]
    if len(chosen) == 1 and chosen[0].endswith(".py"):
        return 0
    return WORKERS_PER_CORE * (os.cpu_count() or 1)


def arrange(items: list[pytest.Item]) -> None:
    """Put first what runs alone, then slow folders."""
    items.sort(key=lambda item: (not _alone(item), _turn(item.path)))


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # the library has no types
    """Give out tests one by one, but those of a file together where they share a fixture of their module."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if _shares_a_fixture(self.config.rootpath / file) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    return Scheduling(config, log)


@contextmanager
def room(item: pytest.Item) -> Iterator[None]:
    """Wait until this test may run, beside others or alone."""
    directory = _directory(item.config)
    if directory is None:
        yield
        return
    with (directory / "turnstile").open("w") as turnstile, (directory / "room").open("w") as inside:
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        fcntl.flock(inside, fcntl.LOCK_EX if _alone(item) else fcntl.LOCK_SH)
        if not _alone(item):
            fcntl.flock(turnstile, fcntl.LOCK_UN)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with room(item):
        return (yield)


def _directory(config: pytest.Config) -> Path | None:
    """Give the directory that only the workers of this run have in common; None where there are no workers."""
    return Path(config.option.basetemp).parent if hasattr(config, "workerinput") else None


def _alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


def _turn(path: Path) -> int:
    folder = path.parent.name
    return FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)


@cache
def _shares_a_fixture(file: Path) -> bool:
    seen = (file, file.parent / "conftest.py")
    return any(path.exists() and 'scope="module"' in path.read_text() for path in seen)
