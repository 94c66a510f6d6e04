"""Promotion: any number of workers visit the queues that are due, and one script decides each step in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Final, cast

from headgate.kit import traces
from headgate.kit.ids import new_uuid
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError
from headgate.store import Claim, Store, Thing, script
from headgate.waiting_room.metrics import ETA_ERROR_SECONDS, TICK_SECONDS, WAIT_SECONDS, label
from headgate.waiting_room.problems import QueueLost, QueueUnknown
from headgate.waiting_room.queues import Queues
from headgate.waiting_room.settings import WaitingRoomSettings

PROMOTE = script("headgate.waiting_room", "promote")

LOOK_SECONDS: Final = 0.1
RETRY_SECONDS: Final = 1.0
CLAIMS: Final = 16
MOST_VISITS: Final = 256
STEPS: Final = 25

log = get_logger()


class Promotion:
    """The worker's part of the waiting room."""

    def __init__(self, store: Store, queues: Queues, settings: WaitingRoomSettings) -> None:
        self._store = store
        self._queues = queues
        self._settings = settings

    async def step(self, thing: Thing, most: int | None = None) -> tuple[bool, int | None, int]:
        """Take one step of a queue: whether more is to do now, in how many ms it is due again, how many were called."""
        most = most or self._settings.step_people
        reply = cast(
            "list[int | bytes]",
            await self._store.run(PROMOTE, thing, most, self._settings.finished_most, new_uuid()),
        )
        more, due_in, *called = reply
        for _, waited_ms, predicted, trace in zip(*(iter(called),) * 4, strict=True):
            self._observe(thing, cast("int", waited_ms) / 1000, cast("int", predicted), cast("bytes", trace).decode())
        if called:
            log.debug("called", queue=thing.name, people=len(called) // 4)  # an anonymous id is its owner's secret
        due = cast("int", due_in)
        return bool(more), None if due < 0 else due, len(called) // 4

    async def visit(self, thing: Thing) -> int | None:
        """Do all that is due in a queue, in bounded steps; gives when it is due again."""
        started = monotonic()
        people = 0
        for _ in range(STEPS):
            more, due_in, called = await self.step(thing)
            people += called
            if not more and not called:
                break
        seconds = monotonic() - started
        if people:
            traces.past("queue tick", seconds, queue=label(thing), people=people)
        TICK_SECONDS.labels(label(thing)).observe(seconds)
        return 0 if more else due_in

    async def look(self) -> None:
        """Visit whatever is due and not taken by another worker, until nothing is."""
        while claims := await self._queues.index.claim(CLAIMS):
            await self._visit_all(claims)

    async def run(self) -> None:
        """Look for due queues for as long as the process lives; one that hangs holds up no other."""
        with suppress(HeadgateError):  # a gateway does it too
            await self._queues.index.note_age()
        visits: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:
            while True:
                claims = await self._claim() if len(visits) < MOST_VISITS else ()
                for claim in claims:
                    visit = group.create_task(self._visit_claimed(claim))
                    visits.add(visit)
                    visit.add_done_callback(visits.discard)
                if not claims:
                    await asyncio.sleep(LOOK_SECONDS)

    async def _claim(self) -> Sequence[Claim]:
        try:
            return await self._queues.index.claim(CLAIMS)
        except HeadgateError as error:
            log.warning("queues not visited", error=error.detail)
            await asyncio.sleep(RETRY_SECONDS)
            return ()

    async def _visit_all(self, claims: Sequence[Claim]) -> None:
        async with asyncio.TaskGroup() as group:
            for claim in claims:
                group.create_task(self._visit_claimed(claim))

    async def _visit_claimed(self, claim: Claim) -> None:
        try:
            await self._queues.index.done(claim, await self._due_in(claim))
        except QueueUnknown:
            pass
        except HeadgateError as error:
            log.warning("queue not visited", queue=claim.thing.name, error=error.detail)

    async def _due_in(self, claim: Claim) -> int | None:
        """Visit a queue, and strike one that was deleted; gives when it is due again."""
        try:
            return await self.visit(claim.thing)
        except QueueLost:
            # Whoever remembers it writes it back with the next call; until then there is nothing to do here.
            return None
        except QueueUnknown:
            await self._queues.index.forget(claim)
            raise

    def _observe(self, thing: Thing, waited: float, predicted: int, trace: str) -> None:
        queue = label(thing)
        WAIT_SECONDS.labels(queue).observe(waited)
        if predicted:
            ETA_ERROR_SECONDS.labels(queue).observe(abs(predicted - waited))
        if trace:
            with traces.span("queue promote", traceparent=trace, queue=queue, waited_seconds=waited):
                pass
