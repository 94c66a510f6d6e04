"""Certain clean-up: whatever ends the tests, their servers end too and their directories are removed.

One child process leads a process group that every server joins, and reads a pipe whose other end only the test
process holds. When the test process is gone, killed or not, the pipe ends; the child then kills the whole group, paused
members included, and removes the one directory that holds all data.
"""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

_WATCH = """
import os, shutil, signal, sys
for ignored in (signal.SIGTERM, signal.SIGHUP):  # an orphaned group with a paused member is sent SIGHUP
    signal.signal(ignored, signal.SIG_IGN)
print("ready", flush=True)
sys.stdin.buffer.read()
group = os.getpgid(0)
if os.fork() == 0:
    os.setpgid(0, 0)
    os.killpg(group, signal.SIGKILL)
    shutil.rmtree(sys.argv[1], ignore_errors=True)
else:
    signal.pause()
"""


class Reaper:
    """The process group of all servers of this test run, and the directory of their data."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="headgate-tests-"))
        # Close-on-exec, as every descriptor of Python: no server inherits the pipe and keeps it open.
        self._child = subprocess.Popen(
            [sys.executable, "-c", _WATCH, str(self.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        # Until it says so, a signal to its group would end it, and nobody would clean up.
        assert self._child.stdout is not None
        with self._child.stdout as output:
            assert output.readline() == b"ready\n"
        self._count = 0

    def directory(self, name: str) -> Path:
        """Make a directory for one server."""
        self._count += 1
        path = self.root / f"{self._count}-{name}"
        path.mkdir()
        return path

    def spawn(
        self, command: list[str], output: IO[bytes], environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process that cannot outlive the tests."""
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            process_group=self._child.pid,
        )

    def close(self) -> None:
        """End everything now and wait until it is gone."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()


@functools.cache
def reaper() -> Reaper:
    """Give the reaper of this process, starting it at the first use."""
    started = Reaper()
    atexit.register(started.close)
    return started
