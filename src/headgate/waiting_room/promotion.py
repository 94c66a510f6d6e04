"""Promotion: any number of workers visit the queues that are due, and a script decides each step atomically."""

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

IDLE_SECONDS: Final = 0.1
RETRY_SECONDS: Final = 1.0
CLAIMS: Final = 16
MOST_VISITS: Final = 256
STEPS: Final = 25

log = get_logger()


class Promotion:
    """Promotes the first waiting users of all queues; every worker runs it."""

    def __init__(self, store: Store, queues: Queues, settings: WaitingRoomSettings) -> None:
        self._store = store
        self._queues = queues
        self._settings = settings

    async def step(self, thing: Thing, most: int | None = None) -> tuple[bool, int | None, int]:
        """Run one step: give whether more is due now, in how many ms it is due again, and how many were promoted."""
        most = most or self._settings.step_people
        reply = cast(
            "list[int | bytes]",
            await self._store.run(PROMOTE, thing, most, self._settings.finished_most, new_uuid()),
        )
        more, due_in, *promoted = reply
        for _, waited_ms, predicted, trace in zip(*(iter(promoted),) * 4, strict=True):
            self._observe(thing, cast("int", waited_ms) / 1000, cast("int", predicted), cast("bytes", trace).decode())
        if promoted:
            log.debug("called", queue=thing.name, people=len(promoted) // 4)  # no ids: an anonymous id is a secret
        due = cast("int", due_in)
        return bool(more), None if due < 0 else due, len(promoted) // 4

    async def visit(self, thing: Thing) -> int | None:
        """Run all due steps of a queue, with a bound on their number; give in how many ms it is due again."""
        started = monotonic()
        people = 0
        for _ in range(STEPS):
            more, due_in, promoted = await self.step(thing)
            people += promoted
            if not more and not promoted:
                break
        seconds = monotonic() - started
        if people:
            traces.past("queue tick", seconds, queue=label(thing), people=people)
        TICK_SECONDS.labels(label(thing)).observe(seconds)
        return 0 if more else due_in

    async def visit_due(self) -> None:
        """Visit the queues that are due and not claimed by another worker, until there are none."""
        while claims := await self._queues.index.claim(CLAIMS):
            await self._visit_all(claims)

    async def run(self) -> None:
        """Visit due queues for the life of the process, each in its own task, so that a slow one delays no other."""
        with suppress(HeadgateError):  # gateways note it too
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
                    await asyncio.sleep(IDLE_SECONDS)

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
        """Visit a queue and remove a deleted one from the index; give in how many ms it is due again."""
        try:
            return await self.visit(claim.thing)
        except QueueLost:
            # A process that remembers the queue restores it with its next call.
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
