"""A server's wall clock that tests set while it runs, by Debian's libfaketime."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.topology.node import Node
from tests.topology.reaper import reaper
from tests.topology.waiting import wait_until


class FakeClock:
    """Give `environment` to a node or another process, whose clock is then ahead by so many seconds.

    `step` moves the clock of a node, and only that node's.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._file = reaper().directory("clock") / "offset"
        self._seconds = seconds
        self.environment = {
            "LD_PRELOAD": _library(),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self._write()

    def step(self, node: Node, seconds: float) -> None:
        """Move the clock by so much from where it is now, and wait until the node shows it (it caches the time)."""
        close = 0.05 * abs(seconds)
        before = _ahead(node, close)
        self._seconds += seconds
        self._write()
        wait_until(lambda: abs(_ahead(node, close) - before - seconds) < 2 * close)

    def _write(self) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{self._seconds:+f}\n")
        fresh.replace(self._file)


def _ahead(node: Node, close: float) -> float:
    """Tell how far a node's clock is ahead of our monotonic one; only an answer that came at once says so."""
    while True:
        began = time.monotonic()
        read = _read(node)
        if time.monotonic() - began < close:
            return read - began


def _read(node: Node) -> float:
    seconds, micros = node.command("TIME")
    return int(seconds) + int(micros) / 1e6


def _library() -> str:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        reason = "libfaketime is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}, and CI=true allows no skip", pytrace=False)
        pytest.skip(reason)
    return str(found[0])
