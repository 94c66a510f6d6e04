"""Says at the start of a run how many tests there are and how long they usually take."""

from __future__ import annotations

import os
import time

import pytest

# Seconds per test with one core, over a whole run side by side: 3,500 tests take about eight minutes on two cores.
_SECONDS_PER_TEST = 0.27

# A run of fewer tests is over before anybody wonders.
_WORTH_TELLING = 200


class Announcement:
    """A plugin of the process that starts the workers; it remembers in pytest's cache how long the last run took."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._cache: pytest.Cache | None = getattr(config, "cache", None)  # -p no:cacheprovider leaves it out
        self._began = time.monotonic()
        self._tests = 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        if self._tests:
            return  # every worker collects the same
        self._tests = len(ids)
        if self._tests >= _WORTH_TELLING:
            reporter = self._config.pluginmanager.getplugin("terminalreporter")
            if reporter is not None:
                reporter.write_line(f"{self._tests:,} tests; {self._usually()}")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        whole = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if whole and self._tests >= _WORTH_TELLING and self._cache is not None:
            self._cache.set(self._key, time.monotonic() - self._began)

    @property
    def _key(self) -> str:
        """Runs of as many tests, give or take a tenth, take as long."""
        return f"headgate/seconds-of-{len(str(self._tests))}-digits-{str(self._tests)[:2]}"

    def _usually(self) -> str:
        last = None if self._cache is None else self._cache.get(self._key, None)
        if last:
            return f"about {_minutes(last)} the last time."
        cores = os.cpu_count() or 1
        return f"usually about {_minutes(self._tests * _SECONDS_PER_TEST / cores)} on {cores} cores."


def _minutes(seconds: float) -> str:
    return f"{max(1, round(seconds / 60))} min"
