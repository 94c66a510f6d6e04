"""One trace follows one player from the entry, over the call by a worker, to the redeemed ticket."""

from __future__ import annotations

import asyncio

from headgate.kit import traces
from headgate.kit.traces import TraceSettings
from headgate.store import Store
from tests.store.waiting_world import World
from tests.unit.test_traces import Collector, collector, spans_of

__all__ = ["collector"]


async def test_one_trace_from_entry_to_redeem(store: Store, collector: Collector) -> None:
    world = World(store)
    await world.configure(capacity=2)
    traces.configure(TraceSettings(endpoint=collector.url), "tests", "1")
    try:
        with traces.span("player enters"):
            await world.enter("a")
        await world.enter("somebody-without-a-trace")
        await world.tick()
        await world.redeem(await world.ticket("a"), "s1")
    finally:
        await asyncio.to_thread(traces.close)
    spans = spans_of(collector)
    trace = spans["player enters"][0]
    assert spans["queue promote"][0] == trace
    assert spans["queue redeem"][0] == trace
    assert spans["queue tick"][0] != trace
