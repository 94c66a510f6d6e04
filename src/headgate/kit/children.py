"""Sends signals to child processes."""

from __future__ import annotations

import os
from asyncio.subprocess import Process
from contextlib import suppress


def signal_child(process: Process, number: int) -> None:
    """Send a signal to a child that may have ended.

    `process.send_signal` first asks whether the child has ended, which takes its exit code away from the event loop's own
    wait: the code is then reported as 255 with a warning about an unknown process.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)
