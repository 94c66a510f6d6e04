"""Opens the store of a process: a named one, that of a running `up`, or an embedded one for as long as the process runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from headgate.cli import running_up
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
    """Yield the store's URL; an embedded store is restarted when it dies, and `give_up` is called if that fails.

    With `share`, the embedded store of a running `up` is used. Unless `alone`, an embedded store must be asked for, because
    the process is of no use on a store that no other process knows. With `leash`, the store was named by `up`.
    """
    url = configuration[StoreSettings].url
    if url != EMBEDDED:
        origin = "headgate up" if leash else configuration.origin("store.url")
        log.info("using the store", store=repr(parse_address(url)), origin=origin)
        yield url
        return
    directory = configuration[DataSettings].directory
    up = running_up.find(directory) if share else None
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
            try:
                yield embedded.url
            finally:
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
