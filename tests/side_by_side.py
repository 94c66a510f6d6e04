"""How tests run side by side: each worker process has stores and a gateway of its own, and some tests want the machine.

Any test may run in any worker, except that tests which share a fixture of their module stay together, and so do those of a
kind of store that takes six servers: two workers have such a store, and the others need not. A test marked
`alone` measures how fast or how many: while it runs, no other does. One marked `quiet` measures too, but mostly waits: it
runs beside others of its kind. So there are two crowds, of which one at a time is let in, through a turnstile
where everybody waits in turn. While the quiet ones are inside, more of them are let in first: otherwise the crowds would
alternate, and most workers would wait most of the time.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import IO
from zlib import crc32

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.kinds import MANY_SERVERS, shared_kind

# Tests wait for processes, leases and clocks three times as long as they compute.
WORKERS_PER_CORE = 4

# For so long nobody quiet has been inside before the others are let in: the next quiet test of a worker begins by then.
PAUSE_SECONDS = 0.5

# Files that stay together take longest; they begin in this part of the run, so that the last minute is not one worker's.
EARLY = 0.6


def workers(config: pytest.Config) -> int:
    """Say how many processes this run is worth: one file is run here."""
    chosen = [argument.partition("::")[0] for argument in config.args]
    if len(chosen) == 1 and chosen[0].endswith(".py"):
        return 0
    return WORKERS_PER_CORE * (os.cpu_count() or 1)


def arrange(items: list[pytest.Item]) -> None:
    """Put first what measures; then mix the folders, for some mostly compute and others mostly wait."""
    sizes = Counter(item.path.parent for item in items)
    seen: Counter[Path] = Counter()
    turns = {}
    for item in items:
        folder = item.path.parent
        turns[item] = seen[folder] / sizes[folder] * (EARLY if _shares_a_fixture(item.path) else 1)
        seen[folder] += 1
    items.sort(key=lambda item: (not _alone(item), not _quiet(item), turns[item]))


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # the library has no types
    """Give out tests one by one, but those together that share a fixture of their module or a store of many servers."""

    def _split_scope(self, nodeid: str) -> str:
        kind = shared_kind(nodeid)
        if kind in MANY_SERVERS:
            return f"{kind} {crc32(nodeid.encode()) % 2}"
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
    with ExitStack() as files:
        turnstile, quiet, busy = (
            files.enter_context((directory / name).open("w")) for name in ("turnstile", "quiet", "busy")
        )
        if _alone(item):
            fcntl.flock(turnstile, fcntl.LOCK_EX)
            fcntl.flock(quiet, fcntl.LOCK_EX)
            fcntl.flock(busy, fcntl.LOCK_EX)
        elif _quiet(item):
            fcntl.flock(turnstile, fcntl.LOCK_EX)
            fcntl.flock(busy, fcntl.LOCK_EX)  # until the last of the others has left
            fcntl.flock(quiet, fcntl.LOCK_SH)
            fcntl.flock(busy, fcntl.LOCK_UN)
            fcntl.flock(turnstile, fcntl.LOCK_UN)
        else:
            _let_the_quiet_go_first(turnstile, quiet, busy)
        yield


def _let_the_quiet_go_first(turnstile: IO[str], quiet: IO[str], busy: IO[str]) -> None:
    """Enter the busy crowd; if somebody quiet was inside, only when nobody has been for a moment."""
    was_empty = True
    while True:
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        empty = _empty(quiet)
        if empty and was_empty:
            fcntl.flock(busy, fcntl.LOCK_SH)
        fcntl.flock(turnstile, fcntl.LOCK_UN)
        if empty and was_empty:
            return
        was_empty = empty
        time.sleep(PAUSE_SECONDS)


def _empty(crowd: IO[str]) -> bool:
    """Tell whether nobody is inside."""
    try:
        fcntl.flock(crowd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(crowd, fcntl.LOCK_UN)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with room(item):
        return (yield)


def _directory(config: pytest.Config) -> Path | None:
    """Give the directory that only the workers of this run have in common; None where there are no workers."""
    return Path(config.option.basetemp).parent if hasattr(config, "workerinput") else None


def _alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


def _quiet(item: pytest.Item) -> bool:
    return item.get_closest_marker("quiet") is not None


@cache
def _shares_a_fixture(file: Path) -> bool:
    seen = (file, file.parent / "conftest.py")
    return any(path.exists() and 'scope="module"' in path.read_text() for path in seen)
