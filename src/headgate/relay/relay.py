"""The relay as a whole: upstreams, permits, forwarding and jobs on one open store."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from headgate.http.routes import Access, Mount
from headgate.relay.forwarder import Forwarder
from headgate.relay.job_queue import JobQueue
from headgate.relay.job_runner import JobRunner
from headgate.relay.permits import CLOSE_SECONDS, Permits
from headgate.relay.proxy import Proxy
from headgate.relay.settings import RelaySettings
from headgate.relay.upstreams import Upstreams
from headgate.store import Store

REQUEST_SECONDS: Final = 4.0  # for requests in flight at close; the rest of CLOSE_SECONDS is for reporting them


class Relay:
    """`async with Relay(store) as relay:`; permits can be acquired and held inside the block only."""

    def __init__(self, store: Store, settings: RelaySettings | None = None) -> None:
        self.store = store
        self.settings = settings or RelaySettings()
        self.upstreams = Upstreams(store)
        self.permits = Permits(store, self.upstreams)
        self.forwarder = Forwarder(self.permits, self.settings)
        self.jobs = JobQueue(store, self.upstreams, self.settings)

    async def __aenter__(self) -> Self:
        await self.permits.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        limit = asyncio.get_running_loop().time() + CLOSE_SECONDS
        self.permits.refuse()
        await self.forwarder.over(REQUEST_SECONDS)
        self.forwarder.close()
        await self.permits.close(limit)

    def mount(self) -> Mount:
        """Return the forwarding proxy as a mount for a gateway."""
        proxy = Proxy(self.upstreams, self.forwarder, self.jobs, self.settings)
        return Mount("/relay", proxy, Access.SERVICE, bearer=False)

    def runner(self) -> JobRunner:
        """Return a runner that sends the accepted jobs."""
        return JobRunner(self.store, self.upstreams, self.permits, self.forwarder, self.jobs, self.settings)
