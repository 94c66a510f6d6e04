"""Puts a gateway together: the features' operations, its own, the tokens and the door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Final

import structlog

from headgate.gateway import api, beside, console
from headgate.gateway.door import Door
from headgate.gateway.gateway import Gateway
from headgate.gateway.openapi import document
from headgate.gateway.settings import AdminTokenMissing, GatewaySettings
from headgate.gateway.tokens import Keyring, Tokens
from headgate.kit.http import Mount, Operation
from headgate.kit.problems import StoreUnavailable
from headgate.store import Store

READY_SECONDS: Final = 1.0
SHORT_TOKEN: Final = 16

Keeper = Callable[[], Coroutine[None, None, None]]

log = structlog.get_logger()


@asynccontextmanager
async def open_gateway(
    operations: Sequence[Operation],
    mounts: Sequence[Mount] = (),
    keepers: Sequence[Keeper] = (),
    *,
    settings: GatewaySettings,
    store: Store,
) -> AsyncIterator[Gateway]:
    """Open the application that a worker serves: these operations and mounts, and the gateway's own.

    A keeper is a coroutine function that keeps what a feature's routes know current, for as long as the gateway lives.
    """
    if not settings.admin_token:
        raise AdminTokenMissing
    if len(settings.admin_token) < SHORT_TOKEN:
        log.warning("the admin token is short and could be guessed; take a longer one")
    tokens = Tokens(store)
    keyring = Keyring(tokens, settings.admin_token)
    await keyring.refresh()
    sessions = console.Sessions(keyring, settings.admin_token)
    every = [*operations, *api.operations(store, tokens, settings), *console.operations(sessions)]
    every += api.documents(document([*every, *beside.routes(mounts)]))

    async def ready() -> str | None:
        try:
            await store.ping(asyncio.get_running_loop().time() + READY_SECONDS)
        except StoreUnavailable as error:
            return error.detail
        return None

    gateway = Gateway(every, mounts, settings=settings, door=Door(keyring, settings, sessions), ready=ready)
    async with asyncio.TaskGroup() as group:
        keeping = [group.create_task(keep()) for keep in (keyring.keep, gateway.keep_figures, *keepers)]
        try:
            yield gateway
        finally:
            for task in keeping:
                task.cancel()
            gateway.flush()
