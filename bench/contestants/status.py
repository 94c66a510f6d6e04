"""Ours: the rank of a user and one field, through the gateway's own dispatch, limits and figures, and group commit."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from msgspec import Meta

from headgate.gateway.assembly import open_gateway
from headgate.gateway.gateway import Gateway
from headgate.gateway.settings import GatewaySettings, RateLimit
from headgate.http.routes import Access, Call, Operation
from headgate.http.server import serve
from headgate.kit.problems import NotFound
from headgate.kit.wire import Wire
from headgate.store import Batch, Store, StoreSettings, open_store, script

STATUS = script("bench.contestants", "status_call")
ENOUGH = 1e9


class StatusQuery(Wire, frozen=True):
    """The query of a status."""

    user_id: Annotated[str, Meta(max_length=64)]


class StatusAnswer(Wire, frozen=True):
    """The status of a waiter."""

    status: str
    rank: int
    ticket_id: str | None = None


class Statuses:
    """The one operation of this contestant."""

    def __init__(self, store: Store) -> None:
        self._thing = store.thing("bench", "default", "main")
        self._calls = Batch(store, STATUS)

    async def status(self, call: Call) -> StatusAnswer:
        """Tell the rank of a user, or the ticket."""
        match await self._calls.call(self._thing, call.query.user_id):
            case [_, bytes() as ticket] if ticket:
                return StatusAnswer("PROMOTED", 0, ticket.decode())
            case [int() as rank, _]:
                return StatusAnswer("WAITING", rank + 1)
        raise NotFound

    def operations(self) -> list[Operation]:
        """Describe it to the gateway."""
        return [
            Operation(
                "GET",
                "/api/queue/status",
                self.status,
                "Tell a rank",
                access=Access.PUBLIC,
                tag="bench",
                query=StatusQuery,
                answer=StatusAnswer,
                limit="status",
                user=lambda call: call.query.user_id,
                prompt=True,
            )
        ]


@asynccontextmanager
async def application() -> AsyncIterator[Gateway]:
    """Open what a worker of the gateway serves."""
    async with open_store(StoreSettings(url=os.environ["STORE_URL"])) as store:
        async with open_gateway(Statuses(store).operations(), settings=_settings(), store=store) as gateway:
            yield gateway


def _settings() -> GatewaySettings:
    # The limits are counted as always and never reached: all the load comes from one address.
    limits = {"status": RateLimit(ENOUGH, ENOUGH, ENOUGH, ENOUGH)}
    return GatewaySettings(
        port=int(os.environ["PORT"]), admin_token="only for the benchmark that runs here", limits=limits
    )


if __name__ == "__main__":
    from bench.contestants import status  # a worker finds the factory by its module's name

    asyncio.run(serve(status.application, _settings()))
