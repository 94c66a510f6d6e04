"""Drops the metrics of queues, services and upstreams that do not exist any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from headgate.kit.logs import get_logger
from headgate.kit.named_metrics import LabelNames
from headgate.kit.problems import HeadgateError
from headgate.registry.metrics import SERVICES, service_label
from headgate.relay.metrics import UPSTREAMS
from headgate.store import Index, Thing
from headgate.waiting_room.metrics import QUEUES
from headgate.waiting_room.metrics import label as queue_label

EVERY_SECONDS: Final = 10.0

log = get_logger()


class MetricNames:
    """Compares the label values of metrics with the things that the store lists."""

    def __init__(self, queues: Index, services: Index, upstreams: Index) -> None:
        self._lists: tuple[tuple[LabelNames, Index, Callable[[Thing], str]], ...] = (
            (QUEUES, queues, queue_label),
            (SERVICES, services, service_label),
            (UPSTREAMS, upstreams, lambda thing: thing.name),
        )

    async def keep(self) -> None:
        """Run `forget_gone` every few seconds for as long as the process lives."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            try:
                await self.forget_gone()
            except HeadgateError as error:
                log.debug("names not read", error=error.detail)

    async def forget_gone(self) -> None:
        """Drop labels of things that are not listed; a thing is listed before it is used, so new things keep theirs."""
        for names, index, label in self._lists:
            known = names.known()
            if known:
                living = {label(thing) for thing in await index.list(None)}
                names.forget(*(known - living))
