"""Metrics of the waiting room, for a user who enters and for users who do not come."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from msgspec.structs import replace
from prometheus_client import REGISTRY

from headgate.cli.processes.metric_names import MetricNames
from headgate.gate.gate import Gate
from headgate.kit import metrics
from headgate.kit.named_metrics import MOST_NAMES, OTHER
from headgate.store import Index, Store, Thing
from headgate.waiting_room.metrics import QUEUES, QueueNumbers
from headgate.waiting_room.model import EntryArguments
from headgate.waiting_room.policy import Auto, PolicyChange
from headgate.waiting_room.wire import Figures
from tests.store.waiting_world import World
from tests.topology import Topology, eventually


@pytest.fixture(autouse=True)
def no_queue_has_series_yet() -> None:
    QUEUES.forget(*QUEUES.shown())


def shown(name: str) -> dict[str, float]:
    """Give what this process shows for a metric, by queue."""
    return {
        sample.labels["queue"]: sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == name
    }


async def test_one_players_wait_hold_and_estimate_are_measured(store: Store) -> None:
    queue = f"measured-{secrets.token_hex(4)}"  # histograms are this whole process's
    world = World(store, queue)

    def sample(name: str) -> float:
        return REGISTRY.get_sample_value(name, {"queue": queue}) or 0.0

    await world.configure(capacity=1000, rate_per_second=2, grace_seconds=1000)
    for number in range(30):
        await world.enter(f"u{number}")
    await world.live(6)  # a pace is known by now
    await world.enter("late")
    await world.live(15)
    told = {name: sample(f"headgate_queue_{name}_seconds_count") for name in ("wait", "eta_error", "hold", "tick")}
    assert (told["wait"], told["eta_error"], told["hold"]) == (31, 1, 0)
    assert told["tick"] >= 21
    assert sample("headgate_queue_eta_error_seconds_sum") < 5
    waited = sample("headgate_queue_wait_seconds_sum")
    assert 31 * 4 < waited < 31 * 16

    world.wait(3000)
    await world.redeem(await world.ticket("late"), "x1")
    assert sample("headgate_queue_hold_seconds_count") == 1
    assert 3 <= sample("headgate_queue_hold_seconds_sum") <= 10
    await world.redeem((await world.look()).people["late"].ticket, "x1")
    assert sample("headgate_queue_hold_seconds_count") == 1, "asking again is not entering again"


READ = (
    "headgate_queue_waiting",
    "headgate_queue_live_waiting",
    "headgate_queue_away",
    "headgate_queue_holds",
    "headgate_queue_sessions",
    "headgate_queue_capacity",
    "headgate_queue_entered_total",
    "headgate_queue_admitted_total",
    "headgate_queue_abandoned_total",
    "ticket_issued_count",
    "ticket_expired_count",
)


async def test_those_who_did_not_come_are_counted(store: Store) -> None:
    world = World(store, "counted")
    await world.configure(capacity=1, grace_seconds=2, keep_seconds=20, ticket_ttl_seconds=5)
    await world.enter("called")
    await world.tick()
    await world.ticket("called")  # seen, and then not used
    await world.enter("ghost")
    await world.enter("present")
    for _ in range(7):  # the ticket of the first runs out, the second is called while away
        await world.live(1)
        await world.state("present")
    numbers = world.room.numbers
    await numbers.read()
    assert {name: shown(name)["counted"] for name in READ} | {"headgate_queue_live_waiting": 0} == {
        "headgate_queue_waiting": 0,
        "headgate_queue_live_waiting": 0,
        "headgate_queue_away": 1,
        "headgate_queue_holds": 1,
        "headgate_queue_sessions": 0,
        "headgate_queue_capacity": 1,
        "headgate_queue_entered_total": 3,
        "headgate_queue_admitted_total": 2,
        "headgate_queue_abandoned_total": 0,
        "ticket_issued_count": 2,
        "ticket_expired_count": 1,
    }
    await world.live(22)
    await numbers.read()
    assert [shown(f"headgate_queue_{name}")["counted"] for name in ("abandoned_total", "away", "admitted_total")] == [
        1,
        0,
        2,
    ]


def script_calls(server: Topology) -> int:
    """Count the scripts that the store has run."""
    told = server.primaries()[0].info("commandstats")
    return sum(int(told.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("evalsha", "evalsha_ro"))


@pytest.mark.topology("standalone")
async def test_numbers_of_idle_queues_are_read_once_and_only_as_many_as_are_shown(
    server: Topology, store: Store
) -> None:
    world = World(store, "busy")
    await world.configure(capacity=0)
    await world.enter("a")
    things = [store.thing("queue", "default", f"idle-{number:04}") for number in range(MOST_NAMES + 50)]
    change = PolicyChange(capacity=1)
    await asyncio.gather(*(world.room.queues.configure(thing, change, who="test") for thing in things))
    await world.room.promotion.visit_due()
    assert await world.room.queues.index.due(5000, 10) == [world.thing]
    before = script_calls(server)
    await world.room.numbers.read()
    assert script_calls(server) - before <= MOST_NAMES + 3, "one for each that is shown, and for those in line"
    waiting = shown("headgate_queue_waiting")
    assert len(waiting) == MOST_NAMES
    assert (waiting["busy"], shown("headgate_queue_live_waiting")["busy"]) == (1, 1)

    await world.enter("b")
    before = script_calls(server)
    await world.room.numbers.read()
    assert script_calls(server) - before <= 3, "the idle ones are not read again"
    assert shown("headgate_queue_waiting")["busy"] == 2


async def test_the_fullest_queues_are_shown_by_name_and_the_count_of_the_rest_never_goes_back(store: Store) -> None:
    index = Index(store, "queue")
    nothing = Figures(**dict.fromkeys(Figures.__struct_fields__, 0))
    figures = {
        store.thing("queue", "default", f"q{number}"): replace(nothing, waiting=number, entered_total=100)
        for number in range(5)
    }
    await asyncio.gather(*(index.put(thing, 0) for thing in figures))

    async def read(thing: Thing) -> Figures | None:
        return figures.get(thing)

    def change(queue: str, **changes: int) -> None:
        thing = store.thing("queue", "default", queue)
        figures[thing] = replace(figures[thing], **changes)

    numbers = QueueNumbers(index, read, most=2)
    await numbers.read()
    assert shown("headgate_queue_waiting") == {"q4": 4, "q3": 3, OTHER: 3}
    assert shown("headgate_queue_entered_total") == {"q4": 100, "q3": 100, OTHER: 0}

    change("q0", entered_total=107)
    await numbers.read()
    assert shown("headgate_queue_entered_total")[OTHER] == 7

    change("q0", waiting=50, entered_total=150)  # from now on it is one of the fullest
    await numbers.read()
    assert shown("headgate_queue_entered_total") == {"q0": 150, "q4": 100, OTHER: 7}

    change("q0", waiting=0, entered_total=160)
    change("q1", entered_total=101)
    await numbers.read()
    assert shown("headgate_queue_entered_total") == {"q4": 100, "q3": 100, OTHER: 8}
    change("q0", entered_total=163)
    await numbers.read()
    assert shown("headgate_queue_entered_total")[OTHER] == 11
    assert shown("headgate_queue_waiting")[OTHER] == 3


@pytest.mark.topology("standalone")
async def test_a_thousand_queues_of_a_pattern_come_and_go_and_leave_no_series(store: Store) -> None:
    stem = f"p{secrets.token_hex(4)}"  # other tests of this process have products too
    world = World(store, "products", real_time=True)
    queues, rounds, each = world.room.queues, 5, 200
    gate = Gate(store, world.room)
    await world.configure(auto=Auto(resource=f"{stem}-*", threshold=10, window_seconds=10, max_queues=each))
    guard = await gate.rules.read(world.thing)
    assert guard is not None
    names = MetricNames(queues.index, Index(store, "service"), Index(store, "upstream"))

    async def come(number: int) -> None:
        thing = await gate.traffic.create_queue(guard, f"{stem}-{number}")
        await world.room.entry("default", thing.name, EntryArguments("u", user_id="u", trusted=True))
        await world.room.promotion.visit(thing)
        await queues.operate(thing, "delete", who="test")

    def lines() -> int:
        return sum(f"{stem}-" in line for line in metrics.exposition().decode().splitlines())

    before = sum(shown("headgate_queue_wait_seconds_count").values())  # of other tests in this process
    most = 0
    for first in range(0, rounds * each, each):
        await asyncio.gather(*(come(number) for number in range(first, first + each)))
        most = max(most, lines())
    assert 0 < most <= MOST_NAMES * 60, "a bounded number, whatever the number of queues"
    assert sum(shown("headgate_queue_wait_seconds_count").values()) - before == rounds * each

    async def gone() -> bool:
        await world.room.promotion.visit_due()  # a worker strikes those that were deleted
        await names.forget_gone()
        await world.room.numbers.read()
        return lines() == 0

    await eventually(gone, 20)
    gate.rules.close()
