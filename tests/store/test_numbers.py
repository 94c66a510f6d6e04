"""Numbers that never repeat: any order of calls, clock steps, lost replies and lost writes."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from headgate.kit.problems import StoreUnavailable
from headgate.store import Store
from tests.store.beside import Run, store_beside
from tests.store.scripts import NUMBER, take_number
from tests.topology import Node, Standalone


class NumbersMachine(RuleBasedStateMachine):
    """One thing, whose server may lose what it wrote since any moment after its last loss.

    Clocks are up to 20 s off: a loss makes numbers jump by 60 s, so that much is promised.
    """

    run: Run
    store: Store
    node: Node
    things = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).things += 1
        self.thing = self.store.thing("t", "default", f"x{self.things}")
        self.given: list[int] = []
        self.kept: list[dict[str, str]] = []
        self.store.step_clock(0)
        self.take(1)

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        for _ in range(count):
            number = self._number()
            assert number > max(self.given, default=0)
            assert number < 2**53
            self.given.append(number)
        self.kept.append(dict(self.node.admin.hgetall(self.thing.key("meta"))))  # type: ignore[arg-type]

    @rule(seconds=st.integers(-20, 20))
    def step(self, seconds: int) -> None:
        self.store.step_clock(seconds * 1000)

    @rule()
    def lose_a_reply(self) -> None:
        """A number that nobody got is gone; the next is another."""
        keys = [self.thing.key("meta")]
        link = self.store.route.ready(0)
        context = link.context() if link is not None else "? 0 0 0"
        self.node.admin.eval(NUMBER.source, 1, *keys, context, "1000")

    @rule(data=st.data())
    def lose_writes(self, data: st.DataObject) -> None:
        """The server comes back as another history, which ends at an earlier moment."""
        earlier = data.draw(st.sampled_from(range(len(self.kept))))
        key = self.thing.key("meta")
        self.node.command("DEL", key)
        self.node.command("HSET", key, *(word for pair in self.kept[earlier].items() for word in pair))
        self.node.command("DEBUG", "CHANGE-REPL-ID")
        self.node.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        self.kept = []
        self.take(1)

    def _number(self) -> int:
        for _ in range(20):
            try:
                return self.run(take_number(self.store, self.thing)).number
            except StoreUnavailable:  # the killed connection was noticed only now
                continue
        raise AssertionError("the store did not come back")


@pytest.mark.topology("standalone")
def test_no_order_of_calls_steps_and_losses_repeats_a_number() -> None:
    with Standalone(options={"enable-debug-command": "yes"}) as server, store_beside(server.url) as (run, store):
        parts = {"run": staticmethod(run), "store": store, "node": server.node}
        machine = type("Machine", (NumbersMachine,), parts)
        run_state_machine_as_test(machine, settings=settings(max_examples=40, stateful_step_count=20, deadline=None))
