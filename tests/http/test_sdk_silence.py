"""As a library we print nothing: a program that uses the SDK sees our log lines where it asks for them, and nowhere else."""

from __future__ import annotations

import subprocess
import sys

from tests.http.two_modes import Make

USE = """
import asyncio, logging, pathlib, sys
from headgate.sdk import Headgate, LockLost

{setup}

async def main(url, token, prefix, namespace, snapshots):
    client = Headgate(url, token=token, prefix=prefix, namespace=namespace, snapshot_dir=pathlib.Path(snapshots))
    async with client as hg:
        made = await hg.registry.register(type="game", group="g", private_ip="10.0.0.1", port=1)
        hg.registry.start_auto_heartbeat(made.instance_id)
        def listener(change):
            raise ValueError("a listener that fails")
        await hg.registry.subscribe("game/g", listener)
        try:
            async with hg.lock("a", ttl=1, renew=False):
                await asyncio.sleep(60)
        except LockLost:
            pass

asyncio.run(main(*sys.argv[1:]))
"""


def run(make: Make, setup: str = "") -> subprocess.CompletedProcess[str]:
    hg = make()
    where = [hg.url, hg.token or "", hg._prefix, hg.namespace, str(hg._snapshot_dir)]
    command = [sys.executable, "-c", USE.format(setup=setup), *where]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)


def test_a_program_that_asks_for_no_log_lines_sees_none(make: Make) -> None:
    ended = run(make)
    assert (ended.stdout, ended.stderr) == ("", "")


def test_a_program_sees_them_by_the_standard_logger(make: Make) -> None:
    ended = run(make, "logging.basicConfig(level=logging.DEBUG, format='%(name)s|%(levelname)s|%(message)s')")
    assert ended.stdout == ""
    assert "headgate|WARNING|lock lost lock=a" in ended.stderr
    assert "ValueError: a listener that fails" in ended.stderr


def test_a_programs_own_structlog_is_left_alone(make: Make) -> None:
    ended = run(make, "import structlog; structlog.configure(processors=[lambda logger, name, event: 1 / 0])")
    assert (ended.stdout, ended.stderr) == ("", "")
