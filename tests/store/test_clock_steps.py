"""Any order of steps of the server's clock, visits, and looks at that clock: a thing whose time leaps holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.store.client.link import STEP_MS, NodeClock
from tests.store.scripts import NUMBER
from tests.topology import Node, Topology

LOOK_MS: Final = 4000  # the longest that a caller goes without a look at the clock: a beat, and an answer that is late
LEASE_MS: Final = 1000
CALLERS: Final = 3
_TIME: Final = "local function server_time()\n  return TIME, TIME * 1000\nend\n"

_numbers = count()


class Visit(NamedTuple):
    """The time that a thing gave, and when that really was."""

    real_ms: int
    now_ms: int
    holding: bool


@dataclass
class World:
    """Time as it really passes, a server's clock that steps, and callers who look at it now and then."""

    node: Node
    real_ms: int = 1_700_000_000_000
    ahead_ms: int = 0
    clocks: list[NodeClock] = field(default_factory=lambda: [NodeClock() for _ in range(CALLERS)])
    looked: list[int] = field(default_factory=lambda: [0] * CALLERS)
    key: str = field(default_factory=lambda: f"clock-steps:{next(_numbers)}")

    def look(self, caller: int) -> None:
        self.clocks[caller].learn(self.real_ms + self.ahead_ms, self.real_ms / 1000)
        self.looked[caller] = self.real_ms

    def wait(self, ms: int) -> None:
        """Let time pass; nobody goes without a look for too long."""
        end = self.real_ms + ms
        while (due := min(self.looked) + LOOK_MS) <= end:
            self.real_ms = max(self.real_ms, due)
            self.look(self.looked.index(due - LOOK_MS))
        self.real_ms = end

    def visit(self, caller: int) -> Visit:
        clock = self.clocks[caller]
        source = NUMBER.render({"server_time": _TIME.replace("TIME", str(self.real_ms + self.ahead_ms))})
        context = f"one {clock.for_scripts(self.real_ms / 1000)}"
        reply = cast("list[str]", self.node.admin.eval(source, 1, self.key, context, str(LEASE_MS)))
        return Visit(self.real_ms, int(reply[3]), bool(int(reply[4])))


# However they add up, callers can tell: a step of five seconds or less is none to them, and several of those are not either.
STEPS: Final = [-3_600_000, -18_000, -12_000, -6000, 6000, 12_000, 18_000, 3_600_000]

callers = st.integers(0, CALLERS - 1)
actions = st.one_of(
    st.tuples(st.just("wait"), st.integers(0, 2500) | st.integers(0, 30_000)),
    st.tuples(st.just("step"), st.sampled_from(STEPS)),
    st.tuples(st.just("look"), callers),
    st.tuples(st.just("visit"), callers),
)


def check(node: Node, does: list[tuple[str, int]]) -> None:
    """Do all of it; compare the thing's time with the real one from visit to visit."""
    world = World(node)
    for caller in range(CALLERS):
        world.look(caller)
    last = world.visit(0)
    for what, value in does:
        if what == "wait":
            world.wait(value)
        elif what == "step":
            world.ahead_ms += value
        elif what == "look":
            world.look(value)
        else:
            visit = world.visit(value)
            assert visit.now_ms >= last.now_ms
            leapt = visit.now_ms - last.now_ms - (visit.real_ms - last.real_ms)
            assert visit.holding or leapt <= STEP_MS, f"time leapt by {leapt} ms unnoticed"
            last = visit
    node.command("DEL", world.key)


@pytest.mark.topology("standalone")
def test_no_order_of_steps_lets_time_leap_unnoticed(server: Topology, examples: Callable[[int], int]) -> None:
    node = server.primaries()[0]

    @settings(max_examples=examples(600), deadline=None)
    @given(st.lists(actions, min_size=3, max_size=20))
    def any_order(does: list[tuple[str, int]]) -> None:
        check(node, does)

    any_order()


@pytest.mark.topology("standalone")
@pytest.mark.parametrize(
    "does",
    [
        pytest.param([("step", -3_600_000), ("visit", 0), ("step", 3_600_000), ("visit", 0)], id="put-right"),
        pytest.param([("step", -3_600_000), ("visit", 0), ("step", 3_500_000), ("visit", 0)], id="put-nearly-right"),
        pytest.param([("step", -3000), ("visit", 0), ("step", 6000), ("visit", 0)], id="a-little-back-and-more-on"),
        pytest.param([("step", 9000), ("look", 0), ("step", -3000), ("visit", 0)], id="seen-and-not-quite-undone"),
        pytest.param(
            [("step", 3_600_000), ("look", 0), ("step", -9000), ("wait", 14_000), ("visit", 0)],
            id="not-quite-undone-and-long-ago",
        ),
        pytest.param(
            [("wait", 3_700_000), ("step", -3_600_000), ("look", 1), ("visit", 1), ("step", 3_600_000), ("visit", 0)],
            id="seen-by-another",
        ),
        pytest.param(
            [("step", -60_000), ("visit", 0), ("step", 20_000), ("visit", 0), ("step", 20_000), ("visit", 0)],
            id="put-right-by-halves",
        ),
        pytest.param(
            [("step", 9000), ("visit", 0), ("look", 0), ("wait", 2000), ("step", 9000), ("visit", 0)], id="two-small"
        ),
        pytest.param(
            [("step", 9000), ("visit", 0), ("look", 0), ("wait", 2000), ("step", 6000), ("look", 0), ("visit", 0)],
            id="two-small-and-seen",
        ),
        pytest.param(
            [
                ("step", 3_600_000),
                ("visit", 0),
                ("look", 0),
                ("step", -60_000),
                ("visit", 0),
                ("step", 9000),
                ("visit", 0),
            ],
            id="too-far-then-back-then-on",
        ),
    ],
)
def test_steps_that_once_went_unnoticed(server: Topology, does: list[tuple[str, int]]) -> None:
    check(server.primaries()[0], does)
