"""Periodic jobs of workers for locks: deleting locks that have not been used for a while."""

from __future__ import annotations

from typing import Final, cast

from headgate.kit.life import Job
from headgate.locks.locks import Locks
from headgate.store import script

SWEEP = script("headgate.locks", "sweep")
EVERY_SECONDS: Final = 5.0
AT_A_TIME: Final = 200


async def sweep(locks: Locks) -> int:
    """Delete unused locks among those that are due; return how many were deleted."""
    keep_ms = locks.settings.keep_seconds * 1000
    gone = 0
    for claim in await locks.index.claim(AT_A_TIME):
        wait_ms = cast("int", await locks.store.run(SWEEP, claim.thing, keep_ms))
        if wait_ms:
            await locks.index.done(claim, wait_ms)
        else:
            gone += await locks.index.forget(claim)
    return gone


def jobs(locks: Locks) -> list[Job]:
    """List the jobs of locks."""

    async def step() -> None:
        while await sweep(locks) == AT_A_TIME:
            pass

    return [Job("lock sweep", step, EVERY_SECONDS)]
