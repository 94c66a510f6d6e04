"""Time that does not count what the machine stood still, for promises like "within three seconds".

A host that is busy with others stops all of a guest, or one of its cores, for a second now and then. No promise of ours
can be kept meanwhile, and a test that looked at the clock would fail for it. So a small process on each core wakes fifty
times a second and writes down by how much it came late; whoever measures takes that off.
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

BEAT_SECONDS = 0.02
ENTRY = struct.Struct("dd")  # when the process of a core last woke, and by how much it came late in all
VARIABLE = "TESTS_STANDSTILL"
MOST_SHARE = 0.95  # of the time: cores may lose more together than has passed, and a wait must end


class Stopwatch:
    """`watch = Stopwatch(); …; assert watch.seconds < 3`."""

    def __init__(self) -> None:
        self._began = monotonic()
        self._lost_before = _lost()

    @property
    def seconds(self) -> float:
        """Give the seconds since the start in which the machine ran: at most those of the clock on the wall."""
        wall = self.wall
        return wall - self._still(wall)

    @property
    def stood_still(self) -> float:
        """Give the seconds since the start that do not count."""
        return self._still(self.wall)

    @property
    def wall(self) -> float:
        """Give all seconds since the start, for "not before"."""
        return monotonic() - self._began

    def _still(self, wall: float) -> float:
        # Less than before: a watcher that had not started yet looked late, and is not.
        return min(max(0.0, _lost() - self._lost_before), wall * MOST_SHARE)


@contextmanager
def watched_machine() -> Iterator[None]:
    """Have the cores watched, for this process and all that it starts."""
    cores: list[int | None] = [*os.sched_getaffinity(0)] if hasattr(os, "sched_getaffinity") else [None]
    with tempfile.TemporaryDirectory(prefix="standstill-") as directory:
        file = Path(directory, "lost")
        file.write_bytes(ENTRY.pack(monotonic(), 0) * len(cores))
        os.environ[VARIABLE] = str(file)
        words = [sys.executable, "-S", "-E", __file__, str(file)]
        watchers = [
            subprocess.Popen([*words, str(index), *([str(core)] if core is not None else [])])
            for index, core in enumerate(cores)
        ]
        try:
            yield
        finally:
            del os.environ[VARIABLE]
            for watcher in watchers:
                watcher.kill()
                watcher.wait()


def _lost() -> float:
    """Add up what all cores lost: of two that talk with each other, each may be held up."""
    told = _told()
    now = monotonic()
    # Who has not come yet is late already: we may be the first to wake.
    return float(sum(lost + max(0.0, now - woke - 2 * BEAT_SECONDS) for woke, lost in ENTRY.iter_unpack(told)))


def _told() -> bytes:
    path = os.environ.get(VARIABLE)
    return Path(path).read_bytes() if path else b""


def _watch(path: str, index: int, core: int | None) -> None:
    if core is not None:
        with suppress(OSError):  # it was taken from us meanwhile: then we wake on any
            os.sched_setaffinity(0, {core})
    parent, lost = os.getppid(), 0.0
    with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
        woke = monotonic()
        while os.getppid() == parent:
            # All at once: pack_into would clear the entry first, and whoever reads it just then would find the year 0.
            shared[index * ENTRY.size : (index + 1) * ENTRY.size] = ENTRY.pack(woke, lost)
            sleep(BEAT_SECONDS)
            before, woke = woke, monotonic()
            lost += max(0.0, woke - before - 2 * BEAT_SECONDS)


if __name__ == "__main__":
    _watch(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
