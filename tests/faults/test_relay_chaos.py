"""Everything at once, at random: whatever happens in whichever order, no window ever holds more than the limit.

What is drawn is told when it fails. `HEADGATE_CHAOS_SEED=421243` draws the same faults, hints that are lost and clients'
patience again; how they fall among the calls is up to the machine.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import anyio.to_thread
import pytest

from headgate.cli.trial.strict_limits import SlidingLog
from headgate.kit.problems import HeadgateError
from headgate.relay.model import Kind, Limit, Per
from headgate.relay.upstreams import Upstreams
from headgate.relay.waiters import UserLines
from tests.store.relay_world import Counting, Node, nodes, window
from tests.topology import FakeClock, FaultyProxy, Standalone, Topology, eventually
from tests.topology.node import Node as Server

Fresh = Callable[..., Topology]
LIMIT, SECONDS, FAULTS = 4, 1.0, 10
KINDS = ("step", "flush", "flush and anew", "other limits", "cut", "silence", "lost replies")
# Each of these keeps the upstream's own limit.
LIMITS = (
    (Limit(count=LIMIT, seconds=SECONDS),),
    (Limit(count=LIMIT, seconds=SECONDS), Limit(kind=Kind.CONCURRENT, count=3)),
    (Limit(count=LIMIT, seconds=1.5 * SECONDS),),
    (Limit(kind=Kind.PACED, every_ms=round(1000 * SECONDS / LIMIT)),),
    (Limit(count=LIMIT, seconds=SECONDS, per=Per.UPSTREAM),),
)


class Fault(NamedTuple):
    """What happens, for how long, how long it is calm afterwards, and by how much the clock steps if it does."""

    kind: str
    lasts: float
    calm: float
    step: float


def draw(chance: random.Random, kinds: Sequence[str]) -> Iterator[Fault]:
    """Draw the faults of one run; steps of the clock are as often of seconds as of an hour, and in either direction."""
    for _ in range(FAULTS):
        step = chance.choice((-1, 1)) * 6 * 600 ** chance.random()
        yield Fault(chance.choice(kinds), chance.random() * 1.5, chance.random() * 1.5, round(step, 1))


@pytest.mark.topology("standalone")
async def test_any_faults_in_any_order(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flushes, also with a policy written anew, other kinds of limits, steps of the clock, lost replies, cut and silent
    links, lost hints, refusals and cancels, while requests of different costs go on."""
    clock = FakeClock()
    with Standalone(environment=clock.environment) as server:
        await survive(server.node, prefix, monkeypatch, clock)


@pytest.mark.topology("redis")
async def test_any_faults_but_steps(fresh_server: Fresh, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on Redis, whose clock cannot be set: its allocator and libfaketime do not go together."""
    await survive(fresh_server().primaries()[0], prefix, monkeypatch, None)


async def survive(store: Server, prefix: str, monkeypatch: pytest.MonkeyPatch, clock: FakeClock | None) -> None:
    seed = int(os.environ.get("HEADGATE_CHAOS_SEED") or random.SystemRandom().randrange(1_000_000))
    faults = list(draw(random.Random(seed), KINDS if clock is not None else KINDS[1:]))
    losses, patience = random.Random(f"{seed} hints"), random.Random(f"{seed} clients")
    choices = random.Random(f"{seed} limits")
    heard = UserLines.on_hint

    def lossy(self: UserLines, words: str | None) -> None:
        if losses.random() > 0.2:
            heard(self, words)

    monkeypatch.setattr(UserLines, "on_hint", lossy)
    loop = asyncio.get_running_loop()
    async with (
        FaultyProxy(store.port) as left,
        FaultyProxy(store.port) as right,
        nodes(left.url, prefix, 2) as some,
        nodes(right.url, prefix, 1) as others,
        nodes(f"valkey://127.0.0.1:{store.port}", prefix, 1, new=False) as (admin,),
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
                    async with asyncio.timeout(patience.choice((0.3, 2.0, 20.0))):
                        units = patience.choice((1, 1, 1, 2, 3, LIMIT))
                        await relay.send("a", "u1", upstream, units=units, refused=lambda: patience.random() < 0.03)
                    answered += units
                except (TimeoutError, HeadgateError):
                    await asyncio.sleep(0.01)

        async def write(upstreams: Upstreams) -> None:
            with suppress(HeadgateError):
                await upstreams.put("a", window(LIMIT, SECONDS, limits=choices.choice(LIMITS)))

        async def strike(fault: Fault) -> None:
            match fault.kind:
                case "flush":
                    store.command("FLUSHALL")
                case "flush and anew":
                    store.command("FLUSHALL")
                    await write(Upstreams(admin.store))  # an operator, who remembers nothing
                case "other limits":
                    await write(admin.upstreams)
                case "step" if clock is not None:
                    # The server's own clock, which the relays read as well: only then do they expect what they would.
                    await anyio.to_thread.run_sync(clock.step, store, fault.step)
                case "cut":
                    left.cut()
                case "silence":
                    right.blackhole()
                case "lost replies":
                    left.drop_replies(cut=True)

        started = loop.time()
        struck: list[str] = []
        clients = [asyncio.ensure_future(client(relays[number % 3])) for number in range(18)]
        for fault in faults:
            struck.append(f"{loop.time() - started:.3f} {fault}")
            await strike(fault)
            await asyncio.sleep(fault.lasts)
            left.heal()
            right.heal()
            await asyncio.sleep(fault.calm)
        # Left alone, it goes on as if nothing had been.
        await admin.upstreams.put("a", window(LIMIT, SECONDS))
        before = answered
        await eventually(lambda: answered >= before + 2 * LIMIT, 30)
        stop.set()
        await asyncio.gather(*clients)
        arrivals = [f"{moment - started:.3f}" for moment in upstream.arrivals["u1"]]
        told = "\n".join((f"seed {seed}", *struck, f"arrivals {' '.join(arrivals)}"))
        assert upstream.refused == 0, told
        assert upstream.largest("u1", SECONDS) <= LIMIT, told
