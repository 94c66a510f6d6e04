"""The jobs that workers run for the relay: the sweep of upstreams, and the sending of accepted requests.

The sweep ends leases, removes the waiters of dead processes from their lines, and deletes the keys of idle users.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, cast

from headgate.kit.life import Job
from headgate.kit.logs import get_logger
from headgate.relay import metrics
from headgate.relay.job_queue import JobQueue
from headgate.relay.problems import UpstreamUnknown
from headgate.relay.relay import Relay
from headgate.relay.upstreams import GONE_MS, Upstreams
from headgate.store import Store, Thing, script

REAP = script(__package__, "reap")
FORGET = script(__package__, "forget")
DUE = script(__package__, "due")
SILENT = script(__package__, "silent")
BURY = script(__package__, "bury")

PAGE: Final = 64
PAGES: Final = 16
CROWD: Final = 1000
VISIT_MS: Final = 900  # less than the interval of steps, so that an upstream is due at every step
LEASE_MS: Final = 60_000

log = get_logger()


class RelaySweep:
    """Sweeps the upstreams that are due; any number of workers may run it."""

    def __init__(self, store: Store, upstreams: Upstreams, jobs: JobQueue) -> None:
        self._store = store
        self._jobs = jobs
        self._upstreams = upstreams

    async def step(self) -> None:
        """Sweep the upstreams that are due now."""
        index = self._upstreams.index
        for claim in await index.claim(limit=16):
            name = claim.thing.name
            if await self.visit(name):
                await index.forget(claim)
            else:
                await index.done(claim, VISIT_MS)

    async def visit(self, name: str) -> bool:
        """Sweep the due users of one upstream; True if nothing of the upstream is left."""
        try:
            policy = (await self._upstreams.get(name, fresh=True)).policy
            lease_ms = policy.lease_ms
        except UpstreamUnknown:
            policy, lease_ms = None, LEASE_MS
        thing = self._upstreams.thing(name)
        await self._remove_dead_processes(thing, lease_ms)
        for _ in range(PAGES):
            users = cast("list[bytes]", await self._store.run(DUE, thing, PAGE))
            for user in users:
                await self._store.run(REAP, thing, user.decode(), lease_ms, user=user.decode())
            if len(users) < PAGE:
                break
        await self._jobs.sweep(name)
        if policy is not None:
            status = await self._upstreams.status(name)
            metrics.COOLING.labels(name).set(status.cooling)
            return False
        await self._jobs.abandon(name)
        return await self._store.run(FORGET, thing, GONE_MS) == 1

    async def _remove_dead_processes(self, thing: Thing, lease_ms: int) -> None:
        """Remove all waiters of processes that send no heartbeat any more from their lines."""
        silent = [one.decode() for one in cast("list[bytes]", await self._store.run(SILENT, thing, PAGE))]
        for process in silent:
            async for user in self._users_of(thing, process):
                cursor = "0"
                while True:
                    reply = await self._store.run(BURY, thing, user, process, cursor, lease_ms, user=user)
                    cursor = cast("bytes", reply).decode()
                    if cursor == "0":
                        break
        if silent:
            log.info("processes fell silent, their waiters are out of line", upstream=thing.name, processes=silent)
            await self._store.run(SILENT, thing, PAGE, *silent)

    async def _users_of(self, thing: Thing, process: str) -> AsyncIterator[str]:
        """List the users in whose lines a process has waiters."""
        cursor = b"0"
        while True:
            reply = await self._store.read(
                thing, "HSCAN", thing.key("crowd"), cursor, "MATCH", f"{process} *", "COUNT", CROWD
            )
            cursor, found = cast("tuple[bytes, list[bytes]]", reply)
            for field in found[::2]:
                yield field.decode().partition(" ")[2]
            if cursor == b"0":
                return


def jobs(relay: Relay) -> list[Job]:
    """List the jobs of the relay: the sweep of upstreams that are due, and the sending of requests that were accepted."""
    sweep, runner = RelaySweep(relay.store, relay.upstreams, relay.jobs), relay.runner()
    return [
        Job("relay sweep", sweep.step, every_seconds=1.0),
        Job("relay jobs", runner.run, finish=runner.finish),
    ]
