"""One trace follows one player from the entry, over the call and the redeem, to the handshake of an arena."""

from __future__ import annotations

import asyncio

from headgate.kit import traces
from headgate.kit.traces import TraceSettings
from headgate.store import Store
from headgate.waiting_room.model import EntryArguments, State
from tests.http.arena_world import open_world, visiting
from tests.unit.test_traces import Collector, collector, spans_of

__all__ = ["collector"]


async def test_a_players_trace_ends_at_the_arena(store: Store, collector: Collector) -> None:
    traces.configure(TraceSettings(endpoint=collector.url), "tests", "1")
    try:
        async with open_world(store) as world, world.arena() as arena:
            with traces.span("player enters"):
                entry = await world.room.entry("default", "main", EntryArguments("Ryan"))
            status = await world.status_until(entry.user_id, State.PROMOTED)
            async with visiting(arena.url, str(status.ticket_id)):
                pass
    finally:
        await asyncio.to_thread(traces.close)
    spans = spans_of(collector)
    trace, entered, _, _ = spans["player enters"]
    for name in ("queue promote", "queue redeem", "arena enter"):
        assert spans[name][0] == trace
        assert spans[name][2] == entered
