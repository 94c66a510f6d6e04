"""Any interleaving of asking, sending, answering, losing and cancelling, against a model that knows only Rule P."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar, cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from headgate.relay.model import Limit, Upstream
from headgate.relay.permits import ACQUIRE, CANCEL, COMPLETE
from headgate.relay.sweep import REAP
from headgate.relay.upstreams import Upstreams
from headgate.store import Store, StoreSettings, open_store
from headgate.store.link import Reply
from tests.topology import Topology

T = TypeVar("T")
COUNT, WINDOW_MS, LEASE_MS = 4, 10_000, 20_000
OUTCOMES = st.sampled_from(["unsent", "ended", "ended", "answered", "lost", "refused"])


class Model:
    """What uses the limit: units in flight until when at the latest, and moments of answers."""

    def __init__(self) -> None:
        self.flying: dict[str, tuple[int, int]] = {}
        self.answers: list[tuple[int, int]] = []

    def settle(self, now: int) -> None:
        """What nobody reported counts as answered when its lease ended."""
        for waiter, (units, until) in list(self.flying.items()):
            if until <= now:
                del self.flying[waiter]
                self.answers.append((units, until))

    def used(self, now: int) -> int:
        """Units that surely count now: none of them may be given to anybody else."""
        self.settle(now)
        flying = sum(units for units, _ in self.flying.values())
        return flying + sum(units for units, moment in self.answers if moment > now - WINDOW_MS)


class RelayMachine(RuleBasedStateMachine):
    """One user at one upstream with a window of four in ten seconds."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.model = Model()
        self.waiting: dict[str, int] = {}
        self.numbers = iter(range(1, 1_000_000))
        self.now = int(time.time() * 1000)
        self.paused_until = 0
        self.store = self.do(self.build())

    async def build(self) -> Store:
        options = StoreSettings(url=self.url, prefix=f"t{secrets.token_hex(4)}")
        store = await self.stack.enter_async_context(open_store(options))
        store.stop_clock(self.now)  # the model knows the very moment of everything
        self.upstreams = Upstreams(store)
        self.thing = self.upstreams.thing("a")
        limits = (Limit(count=COUNT, seconds=WINDOW_MS / 1000),)
        await self.upstreams.put("a", Upstream(base_url="http://x.test", limits=limits))
        return store

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.do(self.stack.aclose())
        self.runner.close()

    def ask(self, waiter: str) -> int:
        place = self.waiting.get(waiter, 0)
        reply = cast(
            "list[Reply]",
            self.do(self.store.run(ACQUIRE, self.thing, "u1", waiter, place, 10**9, 1000, LEASE_MS, user="u1")),
        )
        how, place = cast("int", reply[0]), int(cast("bytes", reply[1]))
        units = int(waiter.rpartition(".")[2])
        if how == 1 and waiter not in self.model.flying:
            assert self.model.used(self.now) + units <= COUNT, "more than the limit in one window"
            assert self.now >= self.paused_until, "sent while the upstream wants to be left alone"
            ahead = [other for other, theirs in self.waiting.items() if theirs < place]
            wanted = sum(int(other.rpartition(".")[2]) for other in ahead)
            assert self.model.used(self.now) + wanted + units <= COUNT, "somebody was overtaken"
            self.model.flying[waiter] = (units, self.now + LEASE_MS)
            self.waiting.pop(waiter, None)
        elif how == 0:
            assert waiter not in self.model.flying
            assert self.waiting.setdefault(waiter, place) == place, "a place changed"
        return how

    @rule(units=st.integers(1, COUNT))
    def arrive(self, units: int) -> None:
        self.ask(f"p.{next(self.numbers)}.{units}")

    @rule(which=st.integers(0, 9))
    def ask_again(self, which: int) -> None:
        everybody = [*self.waiting, *self.model.flying]
        if everybody:
            self.ask(everybody[which % len(everybody)])

    @rule(which=st.integers(0, 9), outcome=OUTCOMES, twice=st.booleans())
    def complete(self, which: int, outcome: str, twice: bool) -> None:
        if not self.model.flying:
            return
        waiter = list(self.model.flying)[which % len(self.model.flying)]
        units, until = self.model.flying.pop(waiter)
        pause = 3000 if outcome == "refused" else 0
        for _ in range(1 + twice):
            self.do(
                self.store.run(
                    COMPLETE, self.thing, "u1", waiter, outcome, 0, 500, pause, LEASE_MS, user="u1"
                )
            )  # fmt: skip
        if until <= self.now:
            self.model.answers.append((units, until))  # the lease had ended already
        elif outcome == "lost":
            self.model.flying[waiter] = (units, self.now + 500)
        elif outcome != "unsent":
            self.model.answers.append((units, self.now))
        if outcome == "refused":
            self.paused_until = max(self.paused_until, self.now + 3000)

    @rule(which=st.integers(0, 9))
    def cancel(self, which: int) -> None:
        if self.waiting:
            waiter = list(self.waiting)[which % len(self.waiting)]
            self.do(self.store.run(CANCEL, self.thing, "u1", waiter, LEASE_MS, user="u1"))
            del self.waiting[waiter]

    @rule(ms=st.sampled_from([500, 1000, 1900]))
    def live(self, ms: int) -> None:
        """Time passes; whoever waits is heard of, as every relay's beat says."""
        self.now += ms
        self.store.stop_clock(self.now)
        self.do(self.store.write(self.thing, "ZADD", self.thing.key("relays"), 10**15, "p", again=True))

    @rule()
    def sweep(self) -> None:
        self.do(self.store.run(REAP, self.thing, "u1", LEASE_MS, user="u1"))

    @invariant()
    def line_is_as_the_model_knows_it(self) -> None:
        figures, _, _ = self.do(self.upstreams.figures("a", "u1"))
        assert figures.waiting == len(self.waiting)
        assert figures.in_flight + figures.cooling >= self.model.used(self.now)


def test_no_interleaving_breaks_rule_p(server: Topology) -> None:
    RelayMachine.url = server.url
    options = settings(
        max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    run_state_machine_as_test(RelayMachine, settings=options)
