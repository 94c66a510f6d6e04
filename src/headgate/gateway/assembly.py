"""Assembles a gateway: the operations of the features and its own, tokens, console and authentication."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from headgate.gateway import api, console, openapi_extras
from headgate.gateway.authentication import Authentication
from headgate.gateway.gateway import Gateway
from headgate.gateway.openapi import document
from headgate.gateway.settings import GatewaySettings, check_admin_token
from headgate.gateway.shared_buckets import SharedBuckets, shared_table
from headgate.gateway.tokens import Keyring, Tokens
from headgate.http.routes import Mount, Operation
from headgate.kit.problems import StoreUnavailable
from headgate.store import Store, clock_words

READY_SECONDS: Final = 1.0

Keeper = Callable[[], Coroutine[None, None, None]]


@asynccontextmanager
async def open_gateway(
    operations: Sequence[Operation],
    mounts: Sequence[Mount] = (),
    keepers: Sequence[Keeper] = (),
    *,
    settings: GatewaySettings,
    store: Store,
    secrets: Sequence[bytes] = (),
) -> AsyncIterator[Gateway]:
    """Open the application that a worker serves: these operations and mounts, and the gateway's own.

    A keeper is a coroutine function that keeps a cache of a feature's routes current; it runs as long as the gateway.
    The console is served if there are secrets to sign its cookies with, newest first.
    """
    check_admin_token(settings.admin_token)
    tokens = Tokens(store)
    keyring = Keyring(tokens, settings.admin_token)
    await keyring.refresh()
    sessions = console.Sessions(keyring, secrets, settings.admin_token, store.now) if secrets else None
    every = [*operations, *api.operations(store, tokens, settings), *console.operations(sessions)]
    front = "/docs" if sessions is None else "/console"
    every += api.documents(document([*every, *openapi_extras.routes(mounts)]), front)

    async def ready() -> str | None:
        try:
            await store.ping(asyncio.get_running_loop().time() + READY_SECONDS)
        except StoreUnavailable as error:
            return error.detail
        return None

    def notice() -> str | None:
        return clock_words(store.clock_offset())

    with shared_table(f"{store.address.nodes} {store.address.database} {store.prefix}") as table:
        shared = None if table is None else partial(SharedBuckets, table=table)
        authentication = Authentication(keyring, settings, sessions, shared)
        gateway = Gateway(every, mounts, settings=settings, authentication=authentication, ready=ready, notice=notice)
        async with _running(gateway, (keyring.keep, gateway.flush_metrics, *keepers)):
            yield gateway


@asynccontextmanager
async def _running(gateway: Gateway, keepers: Sequence[Keeper]) -> AsyncIterator[None]:
    """Run the keepers for as long as the block lasts."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(keep()) for keep in keepers]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            gateway.flush()
