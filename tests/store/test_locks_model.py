"""The lock's scripts against a short model: any sequence of calls, dead waiters and passing time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from headgate.locks import NotHolder
from headgate.locks.locks import ACQUIRE, RELEASE, RENEW, SHOW
from headgate.store import Store, StoreSettings, open_store
from tests.store.stopped_clock import StoppedClock
from tests.topology import Topology

GRACE_MS = 2000
TTL_MS = 10_500
DELAYS_MS = (0, 3000)
WAITING, HANDED = 1, 2
HOLDERS = [f"{owner}-{n}" for owner in ("p", "q", "r") for n in (1, 2)]
T = TypeVar("T")


@dataclass
class Model:
    """One lock, as its documentation describes it."""

    now: int = 0
    holder: str | None = None
    ends: int = 0
    delay: int = 0
    free: int = -1_000_000
    recalled: bool = False
    line: list[str] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)
    delays: dict[str, int] = field(default_factory=dict)
    """Of those who may be given the lock by a release of their own process."""
    count: int = 0

    @property
    def held(self) -> bool:
        return self.holder is not None and self.now < self.ends

    @property
    def opens(self) -> int:
        return self.free if self.holder is None else self.ends + self.delay

    def ask(self, holder: str, *, join: int, former: bool, delay: int) -> bool:
        """Say whether the holder has the lock now."""
        if self.held and self.holder == holder:
            self.ends = self.now + TTL_MS
            return True
        had_place = holder in self.line
        newcomer = not had_place and not former
        if join and not had_place and (self.line or self.held or self.now < self.opens):
            if newcomer:
                self.count += 1
                self.places[holder] = self.count
            self.line.append(holder)
            self.delays.pop(holder, None)
            if join == HANDED:
                self.delays[holder] = delay
            self.line.sort(key=lambda one: self.places[one])
        rank = self.line.index(holder) if holder in self.line else len(self.line)
        owners = {one[0] for one in self.line}
        alone = holder in self.line and sum(one[0] == holder[0] for one in self.line) == 1
        ahead = min(rank, len(owners) - alone) if rank else 0
        if self.held or self.now < self.opens + ahead * GRACE_MS:
            return False
        if newcomer and rank and not self.recalled:
            self.holder, self.free, self.recalled = None, self.now, True
            return False
        del self.line[: rank + (holder in self.line)]
        self.holder, self.ends, self.delay, self.recalled = holder, self.now + TTL_MS, delay, False
        return True

    def release(self, holder: str) -> str | None:
        """Give back what is held; say who of the same process has it at once."""
        heir = self.line[0] if self.line else None
        self.leave(holder)
        if heir is None or heir[0] != holder[0] or heir not in self.delays:
            return None
        self.line.remove(heir)
        self.holder, self.ends, self.delay = heir, self.now + TTL_MS, self.delays[heir]
        return heir

    def leave(self, holder: str) -> int:
        if self.held and self.holder == holder:
            self.holder, self.free, self.recalled = None, self.now, False
            return 1
        if holder not in self.line:
            return 0
        first = self.line[0] == holder
        self.line.remove(holder)
        if first and not self.held and self.now >= self.opens:
            self.holder, self.free, self.recalled = None, self.now, False
        return 2


class LockMachine(RuleBasedStateMachine):
    """Runs every step in the store and in the model, and compares."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.model = Model()
        self.fences: list[int] = []
        self.places: dict[str, int] = {}
        self.store = self.run(self.open())
        self.clock = StoppedClock(self.store)
        self.lock = self.store.thing("lock", "default", "a")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    async def open(self) -> Store:
        from secrets import token_hex

        settings = StoreSettings(url=self.url, prefix=f"t{token_hex(4)}", deadline_ms=10_000)
        return await self.stack.enter_async_context(open_store(settings, wait_seconds=30))

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.runner.close()

    def _ask(self, holder: str, *, join: int, former: bool, delay: int) -> None:
        place = self.places.get(holder, 0) if former else 0
        expected = self.model.ask(holder, join=join, former=bool(place), delay=delay)
        reply = cast(
            "list[Any]",
            self.run(
                self.store.run(ACQUIRE, self.lock, holder, holder[0], TTL_MS, delay, GRACE_MS, join, place, "", 0, "-")
            ),
        )
        assert bool(reply[0]) == expected
        if reply[0]:
            fence = int(reply[1])
            if not self.fences or fence != self.fences[-1]:
                assert not self.fences or fence > self.fences[-1]
                self.fences.append(fence)
        elif holder in self.model.line:
            self.places[holder] = int(reply[1])

    @rule(
        holder=st.sampled_from(HOLDERS),
        delay=st.sampled_from(DELAYS_MS),
        former=st.booleans(),
        join=st.sampled_from([WAITING, HANDED, HANDED]),
    )
    def wait(self, holder: str, delay: int, former: bool, join: int) -> None:
        self._ask(holder, join=join, former=former, delay=delay)

    @rule(holder=st.sampled_from(HOLDERS))
    def try_lock(self, holder: str) -> None:
        self._ask(holder, join=0, former=False, delay=0)

    @rule(holder=st.sampled_from(HOLDERS))
    def renew(self, holder: str) -> None:
        mine = self.model.held and self.model.holder == holder
        try:
            self.run(self.store.run(RENEW, self.lock, holder, 0))
        except NotHolder:
            assert not mine
        else:
            assert mine
            self.model.ends = self.model.now + TTL_MS

    @rule(holder=st.sampled_from(HOLDERS), nonce=st.uuids())
    def release(self, holder: str, nonce: object) -> None:
        if not (self.model.held and self.model.holder == holder):
            for _ in range(2):
                with pytest.raises(NotHolder):
                    self._release(holder, str(nonce))
            return
        heir = self.model.release(holder)
        for _ in range(2):  # the second is what a lost reply makes of it
            held, *given = self._release(holder, str(nonce))
            assert held == 1
            assert [given[0].decode()] == [heir] if heir else not given
            if given:
                assert int(given[3]) == TTL_MS + self.model.delay
        if heir:
            assert int(given[1]) > self.fences[-1]
            self.fences.append(int(given[1]))
            assert self._release(holder, "") == [0, heir.encode()]  # what is left of a cancelled release tells it too

    @rule(holder=st.sampled_from(HOLDERS))
    def leave(self, holder: str) -> None:
        assert self._release(holder, "")[0] == self.model.leave(holder)

    def _release(self, holder: str, nonce: str) -> list[Any]:
        return cast("list[Any]", self.run(self.store.run(RELEASE, self.lock, holder, nonce, holder[0], 0, "-")))

    @rule(seconds=st.sampled_from([1, 2, 4, 11]))
    def pass_time(self, seconds: int) -> None:
        self.model.now += seconds * 1000
        self.clock.set(self.model.now)

    @invariant()
    def the_store_and_the_model_agree(self) -> None:
        reply = cast("list[Any]", self.run(self.store.run(SHOW, self.lock)))
        assert bool(reply[0]) == self.model.held
        assert self.line() == self.model.line
        owners = cast("list[bytes]", self.run(self.store.read(self.lock, "HVALS", self.lock.key("owners"))))
        assert sum(map(int, owners)) == len(self.model.line)
        assert self.run(self.store.read(self.lock, "HLEN", self.lock.key("waiters"))) == len(self.model.line)
        if self.model.line:  # else the short way would pass by those who wait
            assert self.run(self.store.read(self.lock, "HGET", self.lock.key("meta"), "lined")) == b"1"

    def line(self) -> list[str]:
        members = self.run(self.store.read(self.lock, "ZRANGE", self.lock.key("line"), 0, -1))
        return [member.decode() for member in cast("list[bytes]", members)]


def test_the_scripts_do_what_the_model_says(server: Topology, examples: Callable[[int], int]) -> None:
    machine = type("Machine", (LockMachine,), {"url": server.url})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(40),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
