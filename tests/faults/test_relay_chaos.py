"""Everything at once, at random: whatever happens in whichever order, no window ever holds more than the limit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from headgate.kit.problems import HeadgateError
from headgate.relay.judge import SlidingLog
from headgate.relay.lines import Lines
from tests.store.relay_world import Counting, Node, nodes, window
from tests.topology import FaultyProxy, Topology, eventually

Fresh = Callable[..., Topology]
LIMIT, SECONDS, FAULTS = 4, 1.0, 10


@pytest.mark.topology("standalone", "redis")
async def test_any_faults_in_any_order(fresh_server: Fresh, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flushes, steps of the clock, lost replies, cut and silent links, lost hints and cancels, while requests go on."""
    seed = random.SystemRandom().randrange(1_000_000)
    chance = random.Random(seed)
    heard = Lines.hear

    def lossy(self: Lines, words: str | None) -> None:
        if chance.random() > 0.2:
            heard(self, words)

    monkeypatch.setattr(Lines, "hear", lossy)
    server = fresh_server()
    store = server.primaries()[0]
    async with (
        FaultyProxy(store.port) as left,
        FaultyProxy(store.port) as right,
        nodes(left.url, prefix, 2) as some,
        nodes(right.url, prefix, 1) as others,
    ):
        relays = [*some, *others]
        await relays[0].upstreams.put("a", window(LIMIT, SECONDS))
        upstream = Counting(seed, 0.01, 0.2, limiter=SlidingLog(LIMIT, SECONDS, strict=True))
        stop = asyncio.Event()
        answered = 0

        async def client(relay: Node) -> None:
            nonlocal answered
            while not stop.is_set():
                try:
                    async with asyncio.timeout(chance.choice((0.3, 2.0, 20.0))):
                        await relay.send("a", "u1", upstream)
                    answered += 1
                except (TimeoutError, HeadgateError):
                    await asyncio.sleep(0.01)

        def step() -> None:
            ms = chance.choice((-1, 1)) * chance.randrange(6_000, 3_600_000)
            for relay in relays:
                relay.store.step_clock(ms)

        faults: list[Callable[[], object]] = [
            lambda: store.command("FLUSHALL"),
            step,
            left.cut,
            right.blackhole,
            lambda: left.drop_replies(cut=True),
        ]
        clients = [asyncio.ensure_future(client(relays[number % 3])) for number in range(18)]
        for _ in range(FAULTS):
            chance.choice(faults)()
            await asyncio.sleep(chance.random() * 1.5)
            left.heal()
            right.heal()
            await asyncio.sleep(chance.random() * 1.5)
        # Left alone, it goes on as if nothing had been.
        before = answered
        await eventually(lambda: answered >= before + 2 * LIMIT, 30)
        stop.set()
        await asyncio.gather(*clients)
        assert (upstream.refused, seed) == (0, seed)
        assert (upstream.largest("u1", SECONDS) <= LIMIT, seed) == (True, seed)
