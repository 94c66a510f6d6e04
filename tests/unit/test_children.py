"""Signals for children that may be ending at this very moment."""

from __future__ import annotations

import asyncio
import signal

from headgate.kit.children import signal_child


async def test_a_signal_at_the_moment_of_its_end_leaves_a_child_its_exit_code() -> None:
    codes = []
    for _ in range(20):
        process = await asyncio.create_subprocess_exec("sh", "-c", "trap '' WINCH; exit 7")
        for _ in range(2000):
            signal_child(process, signal.SIGWINCH)
            if process.returncode is not None:
                break
        codes.append(await process.wait())
    assert codes == [7] * 20
