"""Looks after users whose relay is gone or who are idle: leases end, dead waiters are passed over, keys vanish."""

from __future__ import annotations

from typing import Final, cast

from headgate.relay import metrics
from headgate.relay.jobs import Jobs
from headgate.relay.problems import UpstreamUnknown
from headgate.relay.upstreams import Upstreams
from headgate.store import Store, script

REAP = script(__package__, "reap")
FORGET = script(__package__, "forget")
DUE = script(__package__, "due")

PAGE: Final = 64
PAGES: Final = 16
VISIT_MS: Final = 1000
LEASE_MS: Final = 60_000


class Sweep:
    """Visits upstreams that are due; any number of workers may."""

    def __init__(self, store: Store, upstreams: Upstreams, jobs: Jobs) -> None:
        self._store = store
        self._jobs = jobs
        self._upstreams = upstreams

    async def step(self) -> None:
        """Visit what is due now."""
        index = self._upstreams.index
        for claim in await index.claim(limit=16):
            name = claim.thing.name
            if await self.visit(name):
                await index.forget(claim)
            else:
                await index.done(claim, VISIT_MS)

    async def visit(self, name: str) -> bool:
        """Look after the users of one upstream whose time has come; True if nothing of it is left."""
        try:
            policy = (await self._upstreams.get(name, fresh=True)).policy
            lease_ms = policy.lease_ms
        except UpstreamUnknown:
            policy, lease_ms = None, LEASE_MS
        thing = self._upstreams.thing(name)
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
        return await self._store.run(FORGET, thing) == 1
