"""The registration of a server that offers seats, renewed by the heartbeats of its seats."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headgate.kit.logs import get_logger
from headgate.registry.model import Record
from headgate.registry.problems import Evicted, UnknownInstance
from headgate.sdk.offer import Offer
from headgate.sdk.registry import Registry
from headgate.waiting_room.model import LEASE_MS

log = get_logger()


class SeatRegistration:
    """Registers the server that offers seats, under the same id and with the same lease, with the data of the offer.

    `figures` gives further metrics, which each heartbeat reports with seats and sessions.
    """

    def __init__(
        self, registry: Registry, record: Record, figures: Callable[[], dict[str, float]] | None = None
    ) -> None:
        self._registry = registry
        self._record = record
        self._figures = figures
        self._registered = False

    async def beat(self, offer: Offer) -> bool:
        """Renew the registration, or register again if the registry has lost it; False if an operator has evicted it."""
        metrics = {
            "seats": offer.capacity,
            "sessions": len(offer.sessions),
            **(self._figures() if self._figures else {}),
        }
        healthy = not offer.draining.is_set()
        try:
            if self._registered:
                try:
                    await self._registry.heartbeat(offer.instance_id, metrics=metrics, healthy=healthy)
                    return True
                except UnknownInstance:
                    await self._registry.come_back(offer.instance_id)
                    return True
            record = msgspec.structs.replace(
                self._record,
                instance_id=offer.instance_id,
                metadata={**self._record.metadata, "queue": offer.queue, "address": offer.address},
                metrics=metrics,
                healthy=healthy,
                ttl_seconds=LEASE_MS / 1000,
            )
            await self._registry.register(record)
        except Evicted as error:
            log.warning("evicted", instance=offer.instance_id, detail=error.detail)
            return False
        self._registered = True
        return True

    async def leave(self, offer: Offer) -> None:
        """Remove the registration, if there is one."""
        if self._registered:
            self._registered = False  # a second call could remove a successor's
            await self._registry.remove(offer.instance_id, self._record.type, self._record.group)
