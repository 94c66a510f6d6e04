"""Any interleaving of asking, sending, answering, losing, cancelling, changes of limits and losses of all data, against a
model that knows only what was granted and answered."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from headgate.relay.invariants import inspect
from headgate.relay.jobs import REAP
from headgate.relay.model import Kind, Limit, Upstream
from headgate.relay.permits import ACQUIRE, CANCEL, COMPLETE, REPORT
from headgate.relay.problems import CostTooHigh
from headgate.relay.upstreams import Upstreams
from headgate.store import Store
from headgate.store.client.address import Endpoint
from headgate.store.client.link import Reply
from tests.store.beside import Run, store_beside
from tests.topology import Topology

T = TypeVar("T")
COUNT, WINDOW_MS, LEASE_MS, LEAST_PAUSE_MS = 4, 10_000, 20_000, 500
WINDOW = Limit(count=COUNT, seconds=WINDOW_MS / 1000)
NARROW = Limit(count=2, seconds=5.0)
BUCKET = Limit(kind=Kind.BUCKET, burst=COUNT, count=COUNT, seconds=WINDOW_MS / 1000)
AT_ONCE = Limit(kind=Kind.CONCURRENT, count=COUNT)
OUTCOMES = st.sampled_from(["unsent", "ended", "ended", "answered", "lost", "refused"])


class Flight(NamedTuple):
    """A request on its way: what it costs, when it counts as answered at the latest, and whether its end matters."""

    units: int
    until: int
    at_once: bool


class Model:
    """The model of one limit: units in flight with the end of their lease, answers that still stream, and times of answers."""

    def __init__(self) -> None:
        self.limit = WINDOW
        self.flying: dict[str, Flight] = {}
        self.streaming: dict[str, tuple[int, int]] = {}
        self.answers: list[tuple[int, int]] = []

    def settle(self, now: int) -> None:
        """A permit that nobody reported counts as answered when its lease ended."""
        for waiter, flight in list(self.flying.items()):
            if flight.until <= now:
                del self.flying[waiter]
                self.answers.append((flight.units, flight.until))
        self.streaming = {waiter: stream for waiter, stream in self.streaming.items() if stream[1] > now}

    def used(self, now: int) -> float:
        """Units that surely count now: none of them may be given to anybody else."""
        self.settle(now)
        flying = sum(flight.units for flight in self.flying.values())
        match self.limit.kind:
            case Kind.CONCURRENT:
                return flying + sum(units for units, _ in self.streaming.values())
            case Kind.BUCKET:
                return flying + self._level(now)
        window_ms = round((self.limit.seconds or 0) * 1000)
        return flying + sum(units for units, moment in self.answers if moment > now - window_ms)

    def _level(self, now: int) -> float:
        level, last = 0.0, now - WINDOW_MS
        for units, moment in sorted(self.answers, key=lambda answer: answer[1]):
            if moment > now - WINDOW_MS:
                level, last = max(0.0, level - (moment - last) * COUNT / WINDOW_MS) + units, moment
        return max(0.0, level - (now - last) * COUNT / WINDOW_MS)


class RelayMachine(RuleBasedStateMachine):
    """One user at one upstream; at first with a window of four in ten seconds."""

    run: Run
    store: Store
    primaries: Sequence[Endpoint]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.waiting: dict[str, int] = {}
        self.numbers = iter(range(1, 1_000_000))
        self.now = int(time.time() * 1000)
        self.paused_until = 0
        self.probe = ""
        self.store.prefix = f"t{secrets.token_hex(4)}"
        self.store.stop_clock(self.now)  # the model knows the very moment of everything
        self.do(self.build())

    async def build(self) -> None:
        self.upstreams = Upstreams(self.store)
        await self.upstreams.note_new_store()
        self.thing = self.upstreams.thing("a")
        await self.upstreams.put("a", policy(WINDOW))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.run(work)

    def ask(self, waiter: str) -> None:
        place = self.waiting.get(waiter, 0)
        try:
            reply = cast(
                "list[Reply]",
                self.do(self.store.run(ACQUIRE, self.thing, "u1", waiter, place, 10**9, 1000, LEASE_MS, user="u1")),
            )
        except CostTooHigh:
            assert units_of(waiter) > (self.model.limit.count or 0)
            if waiter not in self.model.flying:
                self.leave(waiter)
            return
        how, place = cast("int", reply[0]), int(cast("bytes", reply[1]))
        if how == 1 and waiter not in self.model.flying:
            self.check_grant(waiter, place)
            at_once = self.model.limit is AT_ONCE
            self.model.flying[waiter] = Flight(units_of(waiter), self.now + LEASE_MS, at_once)
            self.waiting.pop(waiter, None)
        elif how == 0:
            assert waiter not in self.model.flying
            assert self.waiting.setdefault(waiter, place) == place, "a place changed"

    def check_grant(self, waiter: str, place: int) -> None:
        most = self.model.limit.count or 0
        used = self.model.used(self.now)
        assert used + units_of(waiter) <= most + 1e-6, "more than the limit in one window"
        assert self.now >= self.paused_until, "sent while the upstream wants to be left alone"
        ahead = [other for other, theirs in self.waiting.items() if theirs < place]
        wanted = sum(units_of(other) for other in ahead)
        assert used + wanted + units_of(waiter) <= most + 1e-6, "somebody was overtaken"
        if self.probe:
            assert not self.model.flying, "sent while the probe is on its way"
            assert not ahead, "the probe is not the first in line"
            self.probe = waiter

    def leave(self, waiter: str) -> None:
        self.do(self.store.run(CANCEL, self.thing, "u1", waiter, LEASE_MS, user="u1"))
        self.waiting.pop(waiter, None)

    def tell(self, waiter: str, outcome: str, pause_ms: int = 0) -> None:
        self.do(
            self.store.run(
                COMPLETE, self.thing, "u1", waiter, outcome, 0, 500, pause_ms, LEASE_MS, 0.5, user="u1"
            )
        )  # fmt: skip

    @rule(units=st.integers(1, COUNT))
    def arrive(self, units: int) -> None:
        self.ask(f"p.{next(self.numbers)}.{units}")

    @rule(which=st.integers(0, 9))
    def ask_again(self, which: int) -> None:
        everybody = [*self.waiting, *self.model.flying]
        if everybody:
            self.ask(everybody[which % len(everybody)])

    @rule(which=st.integers(0, 9), outcome=OUTCOMES, twice=st.booleans(), asks_ms=st.sampled_from([0, 0, 3000]))
    def complete(self, which: int, outcome: str, twice: bool, asks_ms: int) -> None:
        """A refusal may ask for no pause at all, as `Retry-After: 0` or a date in the past do."""
        if not self.model.flying:
            return
        waiter = list(self.model.flying)[which % len(self.model.flying)]
        units, until, at_once = self.model.flying.pop(waiter)
        for _ in range(1 + twice):
            self.tell(waiter, outcome, asks_ms)
        if until <= self.now:
            self.model.answers.append((units, until))  # the lease had ended already
        elif outcome == "lost":
            self.model.flying[waiter] = Flight(units, self.now + 500, at_once)
        elif outcome != "unsent":
            self.model.answers.append((units, self.now))
        if outcome == "answered" and at_once and until > self.now:
            self.model.streaming[waiter] = (units, self.now + LEASE_MS if self.model.limit is AT_ONCE else until)
        if outcome == "refused":
            self.paused_until = max(self.paused_until, self.now + max(asks_ms, LEAST_PAUSE_MS))
            self.probe = "next"
        elif outcome in ("answered", "ended") and self.probe == waiter:
            self.probe = ""

    @rule(which=st.integers(0, 9))
    def end_of_answer(self, which: int) -> None:
        if self.model.streaming:
            waiter = list(self.model.streaming)[which % len(self.model.streaming)]
            del self.model.streaming[waiter]
            self.tell(waiter, "ended")

    @rule(which=st.integers(0, 9))
    def cancel(self, which: int) -> None:
        if self.waiting:
            self.leave(list(self.waiting)[which % len(self.waiting)])

    @rule(limit=st.sampled_from([WINDOW, NARROW, BUCKET, AT_ONCE]))
    def change_the_limit(self, limit: Limit) -> None:
        self.do(self.upstreams.put("a", policy(limit)))
        self.model.limit = limit
        for waiter in list(self.waiting):
            if units_of(waiter) > (limit.count or 0):
                self.ask(waiter)  # and is told that this can never be

    @rule(anew=st.booleans())
    def lose_everything(self, anew: bool) -> None:
        """The data is gone: a relay brings the policy back, or an operator who remembers nothing writes it anew."""
        self.do(self.flush())
        if anew:
            self.do(self.put_anew())
        self.do(self.upstreams.get("a", fresh=True))
        self.paused_until, self.probe = 0, ""  # what the upstream asked for is forgotten as well
        self.be_heard()
        in_hand = [*self.model.flying, *self.model.streaming]
        if in_hand:
            self.do(self.store.run(REPORT, self.thing, "u1", LEASE_MS, *in_hand, user="u1"))
        for waiter in list(self.waiting):
            self.ask(waiter)

    async def put_anew(self) -> None:
        await Upstreams(self.store).put("a", policy(self.model.limit))

    async def flush(self) -> None:
        for endpoint in self.primaries:
            link = await self.store.route.node(endpoint)
            keys = cast("list[bytes]", await link.send(("KEYS", f"{self.store.prefix}:*"), self.store.deadline()))
            for key in keys:
                await link.send(("DEL", key), self.store.deadline())

    @rule(ms=st.sampled_from([500, 1000, 1900, 4000]))
    def live(self, ms: int) -> None:
        """Time passes; whoever waits is heard of, as every relay's beat says."""
        self.now += ms
        self.store.stop_clock(self.now)
        self.be_heard()

    def be_heard(self) -> None:
        self.do(self.store.write(self.thing, "ZADD", self.thing.key("relays"), 10**15, "p", again=True))

    @rule()
    def sweep(self) -> None:
        if self.do(self.store.run(REAP, self.thing, "u1", LEASE_MS, user="u1")) == 1:
            self.probe = ""  # so long ago that nobody need go first

    @invariant()
    def line_is_as_the_model_knows_it(self) -> None:
        figures, _, _ = self.do(self.upstreams.figures("a", "u1"))
        assert figures.waiting == len(self.waiting)
        used = self.model.used(self.now)
        if self.model.limit.kind is Kind.WINDOW and not figures.held_ms:  # what was lost is waited out instead
            assert figures.in_flight + figures.cooling >= used
        assert figures.in_flight >= sum(flight.units for flight in self.model.flying.values())
        assert figures.room <= max(0.0, (self.model.limit.count or 0) - used) + 1e-6

    @invariant()
    def doctor_finds_no_contradiction(self) -> None:
        assert self.do(inspect(self.store, self.thing, ["u1"]))[1] == []


def policy(limit: Limit) -> Upstream:
    return Upstream(base_url="http://x.test", limits=(limit,))


def units_of(waiter: str) -> int:
    return int(waiter.rpartition(".")[2])


def test_no_interleaving_breaks_rule_p(server: Topology, examples: Callable[[int], int]) -> None:
    """Without the phase that explains a failure, which takes longer than anybody waits for the answer."""
    options = settings(
        max_examples=examples(60),
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=(Phase.generate, Phase.shrink),
    )
    with store_beside(server.url) as (run, store):
        # Found once: who asks a cluster for its map again and again is made to wait.
        primaries = [link.endpoint for link in run(store.route.primaries())]
        parts = {"run": staticmethod(run), "store": store, "primaries": primaries}
        machine = type("Machine", (RelayMachine,), parts)
        run_state_machine_as_test(machine, settings=options)
