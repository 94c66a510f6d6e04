"""Run a command on a machine that stands still or crawls now and then, as one does whose host is busy with others.

`python -m tests.stall ./dev test -q tests/store`. All processes of the command are stopped together for up to STALL_MOST
seconds (1.2), about every STALL_EVERY seconds (2); SEED repeats a run. What the tests themselves have stopped stays so.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST = float(os.environ.get("STALL_MOST", "1.2"))
EVERY = float(os.environ.get("STALL_EVERY", "2"))
CRAWLS = 0.4  # of all times; in the others nothing moves at all
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)


@contextmanager
def stopped(root: psutil.Process) -> Iterator[None]:
    held: list[psutil.Process] = []
    # Parents first: they must not stop or start a child meanwhile.
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error):
            if process.status() not in STOPPED:
                process.suspend()
                held.append(process)
    yield
    for process in reversed(held):
        with suppress(psutil.Error):
            process.resume()


def main(command: list[str]) -> int:
    chance = random.Random(os.environ.get("SEED"))
    with subprocess.Popen(command) as child:
        root = psutil.Process(child.pid)
        while child.poll() is None:
            time.sleep(chance.expovariate(1 / EVERY))
            with suppress(psutil.Error):
                if chance.random() < CRAWLS:
                    end = time.monotonic() + chance.uniform(0.5, 2)
                    while time.monotonic() < end:
                        with stopped(root):
                            time.sleep(0.06)
                        time.sleep(0.02)
                else:
                    with stopped(root):
                        time.sleep(chance.uniform(0.1, MOST))
        return child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
