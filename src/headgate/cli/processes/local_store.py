"""The store that `embedded` means here: the one of a running `up`, or one of our own for as long as we run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from headgate.cli import running_up as whereabouts
from headgate.cli.settings import DataSettings
from headgate.kit import logs
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError
from headgate.kit.settings import DEFAULT, Configuration
from headgate.kit.tasks import Tasks
from headgate.store import Index, StoreSettings, open_store
from headgate.store.client.address import parse_address
from headgate.store.embedded import Embedded
from headgate.store.settings import EMBEDDED

log = get_logger()


class NoStore(HeadgateError):
    """No store is named and no `up` runs here; give --store or HEADGATE_STORE, or run `headgate up` in this directory."""

    code = "no_store"


@asynccontextmanager
async def local_store(
    configuration: Configuration,
    give_up: Callable[[], None],
    *,
    share: bool = True,
    alone: bool = True,
    leash: bool = False,
) -> AsyncIterator[str]:
    """Give the store's URL; an embedded one is kept running, and if it cannot be, `give_up` is called.

    With `share`, the embedded store of a running `up` will do. Not `alone`, one of our own must be asked for: what works
    only together with others is of no use on a store that they do not know. On a leash, it was `up` that named the store.
    """
    url = configuration[StoreSettings].url
    if url != EMBEDDED:
        origin = "headgate up" if leash else configuration.origin("store.url")
        log.info("using the store", store=repr(parse_address(url)), origin=origin)
        yield url
        return
    directory = configuration[DataSettings].directory
    up = whereabouts.find(directory) if share else None
    if up is not None:
        log.info("store of the `up` running here", store=repr(parse_address(up.store)))
        yield up.store
        return
    if not alone and configuration.origin("store.url") == DEFAULT:
        raise NoStore
    if share:
        log.warning(
            "no store is named; an embedded one is started, for this process alone", directory=str(directory / "store")
        )
    async with Embedded(directory / "store") as embedded:
        logs.hide(embedded.password)
        if embedded.fresh:
            settings = msgspec.structs.replace(configuration[StoreSettings], url=embedded.url)
            async with open_store(settings) as store:
                for part in ("upstream", "queue"):
                    await Index(store, part).note_age(new=True)
        async with Tasks() as tasks:
            keeping = tasks.start(_keep(embedded, give_up))
            yield embedded.url
            if keeping.done():
                await keeping


async def _keep(embedded: Embedded, give_up: Callable[[], None]) -> None:
    while True:
        log.error("the embedded store died, starting it again with its data", how=await embedded.died())
        try:
            await embedded.start()
        except HeadgateError as error:
            log.error("the embedded store cannot be started", error=error.detail)
            give_up()
            return
