"""The registry against a short model: whatever happens in whatever order, lists and history agree with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from secrets import token_hex
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from headgate.registry.invariants import inspect
from headgate.registry.model import InstanceBeat, OverrideChange, Record
from headgate.registry.problems import Superseded, UnknownInstance
from headgate.registry.registry import Registry
from headgate.registry.sweep import Sweeper
from headgate.store import StoreSettings, open_store
from tests.store.stopped_clock import StoppedClock
from tests.topology import Topology

T = TypeVar("T")
NAMES = st.sampled_from(["a", "b", "c", "d"])
TTL_MS = 10_000
STEP_MS = 2000


class Member:
    """An instance in the model."""

    def __init__(self, deadline: int, host: str, persistent: bool) -> None:
        self.deadline, self.host, self.persistent = deadline, host, persistent
        self.healthy, self.lapsed = True, False
        self.registration = 0


class Machine(RuleBasedStateMachine):
    """Registers, beats, removes and waits; a worker visits every two seconds, as in a running system."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        settings_ = StoreSettings(url=self.url, prefix=f"t{token_hex(4)}", deadline_ms=10_000)
        self.store = self.run(self.stack.enter_async_context(open_store(settings_, wait_seconds=30)))
        self.clock = StoppedClock(self.store)
        self.registry = self.run(self._registry())
        self.sweeper = Sweeper(self.registry)
        self.thing = self.registry.service("default", "game", "g")
        self.now = 0
        self.members: dict[str, Member] = {}
        self.drained: set[str] = set()
        self.events: list[tuple[str, str]] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    async def _registry(self) -> Registry:
        return Registry(self.store)

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.runner.close()

    @rule(name=NAMES, host=st.sampled_from(["x", "y"]), persistent=st.booleans())
    def register(self, name: str, host: str, persistent: bool) -> None:
        record = Record(
            type="game", group="g", instance_id=name, hostname=host, ephemeral=not persistent, ttl_seconds=TTL_MS / 1000
        )
        made = self.run(self.registry.register("default", record))
        before = self.members.get(name)
        same = (
            before and before.host == host and before.persistent == persistent and before.healthy and not before.lapsed
        )
        member = self.members[name] = Member(self.now + TTL_MS, host, persistent)
        member.registration = made.registration
        if not same:
            self.events.append(("put", name))

    @rule(name=NAMES, healthy=st.none() | st.booleans(), stale=st.booleans())
    def heartbeat(self, name: str, healthy: bool | None, stale: bool) -> None:
        member = self.members.get(name)
        number = member.registration - 1 if member and stale else None
        beat = InstanceBeat(name, healthy=healthy, registration=number)
        work = self.registry.heartbeat("default", "game", "g", beat)
        if member is None:
            with pytest.raises(UnknownInstance):
                self.run(work)
        elif stale:
            with pytest.raises(Superseded):
                self.run(work)
        else:
            self.run(work)
            if member.lapsed or (healthy is not None and healthy != member.healthy):
                self.events.append(("put", name))
            member.deadline, member.lapsed = self.now + TTL_MS, False
            member.healthy = member.healthy if healthy is None else healthy

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        there = self.run(self.registry.remove("default", "game", "g", name))
        assert there == (name in self.members)
        if self.members.pop(name, None):
            self.events.append(("removed", name))

    @rule(name=NAMES, drain=st.booleans())
    def override(self, name: str, drain: bool) -> None:
        work = self.registry.override("default", "game", "g", name, OverrideChange(drain=drain or None))
        if name not in self.members:
            with pytest.raises(UnknownInstance):
                self.run(work)
            return
        self.run(work)
        if drain != (name in self.drained):
            self.events.append(("put", name))
        (self.drained.add if drain else self.drained.discard)(name)

    @rule(steps=st.integers(1, 7))
    def wait(self, steps: int) -> None:
        for _ in range(steps):
            self.now += STEP_MS
            self.clock.set(self.now)
            swept = self.run(self.sweeper.sweep(self.thing))
            due = {name for name, each in self.members.items() if each.deadline <= self.now and not each.lapsed}
            assert set(swept.removed) | set(swept.marked) == due
            for name in [*swept.removed, *swept.marked]:
                member = self.members[name]
                self.events.append(("put" if member.persistent else "removed", name))
                member.lapsed = True
                if not member.persistent:
                    del self.members[name]
            # The order in which those due together go is the store's; the model follows it.
            seen = self._history()
            self.events[-len(due) or len(self.events) :] = seen[-len(due) or len(seen) :]

    @precondition(lambda self: bool(self.events))
    @invariant()
    def history_is_the_models(self) -> None:
        assert self._history() == self.events

    @invariant()
    def doctor_finds_no_contradiction(self) -> None:
        assert self.run(inspect(self.registry.store, self.thing)) == (len(self.members), [])

    @invariant()
    def lists_are_the_models(self) -> None:
        listing = self.run(self.registry.discover("default", "game", "g"))
        assert {each.instance_id: each.hostname for each in listing.instances} == {
            name: each.host for name, each in self.members.items()
        }
        able = {
            name for name, each in self.members.items() if each.healthy and not each.lapsed and name not in self.drained
        }
        healthy = self.run(self.registry.discover("default", "game", "g", healthy=True))
        assert {each.instance_id for each in healthy.instances} == able

    def _history(self) -> list[tuple[str, str]]:
        page = self.run(self.registry.feed.read(self.thing, 0, 10_000))
        return [(change.kind, change.member) for change in page.changes]


def test_the_registry_is_its_model(server: Topology, examples: Callable[[int], int]) -> None:
    Machine.url = server.url
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples(25), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
