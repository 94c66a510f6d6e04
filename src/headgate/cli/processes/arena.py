"""`headgate serve arena`: the reference game server, on a store or through a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated

import msgspec
from cyclopts import Parameter

from headgate.arena.handshake import TicketCheck
from headgate.arena.server import Arena
from headgate.arena.settings import ArenaSettings
from headgate.cli.options import Host, Leash, OpsPort, StoreUrl
from headgate.cli.processes.assembly import Process, ProcessParts, open_parts
from headgate.cli.processes.local_store import local_store
from headgate.cli.processes.ports import refuse_taken
from headgate.cli.processes.registration import CLOCK_OFFSET, process_record
from headgate.cli.processes.startup import begin, listen_operations, store_trouble, wrong_clock
from headgate.cli.settings import ClientSettings, read_settings
from headgate.cli.target import check_url
from headgate.http.operations import Ready
from headgate.kit import traces
from headgate.kit.life import Life, run_jobs
from headgate.kit.logs import get_logger
from headgate.kit.problems import VersionConflict
from headgate.kit.settings import Configuration
from headgate.kit.tasks import Tasks
from headgate.sdk import Headgate
from headgate.sdk.offer import Offer
from headgate.sdk.seat_registration import SeatRegistration
from headgate.store import Store, StoreSettings
from headgate.waiting_room.policy import PolicyChange
from headgate.waiting_room.problems import QueueUnknown
from headgate.waiting_room.waiting_room import WaitingRoom

SPARE_SECONDS = 5.0
LOOK_SECONDS = 0.5

log = get_logger()


async def arena(
    *,
    store: StoreUrl = None,
    url: str | None = None,
    host: Host = None,
    port: int | None = None,
    address: str | None = None,
    queue: str | None = None,
    capacity: int | None = None,
    ops_port: OpsPort = None,
    demo: Annotated[bool, Parameter(show=False, negative=())] = False,
    leash: Leash = False,
) -> int:
    """Run the reference game server, a chat room behind a queue; any number of arenas may run.

    Parameters
    ----------
    url
        A gateway's URL in the place of a store, with the token in HEADGATE_TOKEN.
    port
        Port to listen on.
    address
        Where players reach it, if not at that host and port.
    queue
        The queue whose players it seats.
    capacity
        Seats that promotion fills.
    demo
        Make the queue if it does not exist.
    """
    configuration = read_settings(
        store__url=("--store", store),
        client__url=("--url", url),
        arena__host=("--host", host),
        arena__port=("--port", port),
        arena__address=("--address", address),
        arena__queue=("--queue", queue),
        arena__capacity=("--capacity", capacity),
        ops__port=("--ops-port", ops_port),
    )
    begin(configuration, "arena", leash=leash)
    settings = configuration[ArenaSettings]
    refuse_taken(settings.host, settings.port, "--port")
    async with (
        Life(settings.drain_seconds + SPARE_SECONDS) as life,
        _client(configuration, life, leash=leash) as hg,
        _parts(hg, configuration) as parts,
    ):
        backend, game = hg.backend, Arena(settings)

        async def why_not() -> str | None:
            if life.quiet.is_set():
                return "stopping"
            return await store_trouble(backend) if isinstance(backend, Store) else None

        if demo and parts.room is not None:
            await _make_queue(parts.room, settings)
        async with Tasks() as tasks:
            tasks.start(run_jobs(parts.jobs, life.quiet))
            await life.run(_serve(game, hg, parts.room, configuration, life, why_not))
    traces.close()
    return 0


@asynccontextmanager
async def _client(configuration: Configuration, life: Life, *, leash: bool) -> AsyncIterator[Headgate]:
    """Open the client to the waiting room: through a gateway if one is named, else on the store."""
    client, settings = configuration[ClientSettings], configuration[ArenaSettings]
    if client.url:
        check_url(client.url, configuration.origin("client.url"))
    if client.url.startswith(("http://", "https://")):
        async with Headgate(client.url, token=client.token or None, namespace=settings.namespace) as hg:
            yield hg
        return
    prefix = configuration[StoreSettings].prefix
    async with local_store(configuration, life.end, alone=False, leash=leash) as store_url:
        async with Headgate(store_url, prefix=prefix, namespace=settings.namespace, needs_store=True) as hg:
            yield hg


@asynccontextmanager
async def _parts(hg: Headgate, configuration: Configuration) -> AsyncIterator[ProcessParts]:
    """Open the features that an arena uses beside a store; through a gateway it needs none."""
    if not isinstance(hg.backend, Store):
        yield ProcessParts()
        return
    async with open_parts(Process.ARENA, hg.backend, configuration) as parts:
        yield parts


async def _serve(
    game: Arena, hg: Headgate, room: WaitingRoom | None, configuration: Configuration, life: Life, why_not: Ready
) -> None:
    """Offer seats and let players in until SIGTERM, then drain."""
    settings = configuration[ArenaSettings]
    async with game.open() as port:
        offer = hg.queue.offer_seats(
            capacity=settings.capacity,
            max_capacity=settings.max_capacity,
            address=settings.address or f"ws://{settings.host}:{port}/gameserver",
            queue=settings.queue,
        )
        record = msgspec.structs.replace(process_record("arena", settings.host, port), protocol="tcp")
        offer.registration = SeatRegistration(hg.registry, record, lambda: _clock(hg))
        async with listen_operations(configuration, why_not, lambda: wrong_clock(hg.backend)) as ops_port:
            if not await _queue_exists(hg, settings.queue, life):
                return
            # Before the first heartbeat: players promoted by it may arrive before its reply.
            game.offer(offer, _ticket_check(hg, room, offer, settings.namespace))
            async with offer:
                log.info("arena started", address=offer.address, queue=settings.queue, ops_port=ops_port)
                await life.quiet.wait()
                await game.drain()
    log.info("arena stopped")


def _clock(hg: Headgate) -> dict[str, float]:
    """Return the metric of this process's clock; through a gateway the store's clock is unknown."""
    return {CLOCK_OFFSET: float(round(hg.backend.clock_offset()))} if isinstance(hg.backend, Store) else {}


async def _make_queue(room: WaitingRoom, settings: ArenaSettings) -> None:
    """Create the queue whose seats the arenas offer; an existing queue stays as it is."""
    thing = room.queues.thing(settings.namespace, settings.queue)
    with suppress(VersionConflict):
        await room.queues.configure(thing, PolicyChange(), who="headgate up", expected=0)


async def _queue_exists(hg: Headgate, queue: str, life: Life) -> bool:
    """Wait until the queue exists; False if the process was stopped before that."""
    warned = False
    while not life.quiet.is_set():
        try:
            await hg.queue.board(queue)
        except QueueUnknown:
            if not warned:
                log.warning("there is no such queue yet; waiting for it", queue=queue)
            warned = True
        else:
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await life.quiet.wait()
    return False


def _ticket_check(hg: Headgate, room: WaitingRoom | None, offer: Offer, namespace: str) -> TicketCheck:
    """Return the function that checks a signed ticket: with our own keys beside a store, else through the gateway."""

    async def check(ticket: str) -> str:
        if room is None:
            return (await hg.queue.check_ticket(ticket, queue=offer.queue, instance_id=offer.instance_id)).jti
        public = await room.public_keys()
        return public.check_ticket(
            ticket, queue=offer.queue, instance_id=offer.instance_id, namespace=namespace, now=room.now()
        ).jti

    return check
