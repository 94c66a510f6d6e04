"""Queues that switch themselves on and off: when, for what, and what becomes of those made from a template."""

from __future__ import annotations

import pytest

from headgate.gate.gate import Gate, VerdictReason
from headgate.store import Store
from headgate.waiting_room.model import State
from headgate.waiting_room.policy import Auto, Bypass
from headgate.waiting_room.problems import QueueUnknown
from tests.steps import count_steps
from tests.store.gate_world import NS, ask, configure


async def test_crossing_the_threshold_makes_a_queue_and_cooling_down_removes_it(gate: Gate, store: Store) -> None:
    auto = Auto(resource="product-*", threshold=10, window_seconds=5, cooldown_seconds=30)
    await configure(gate, "products", auto=auto, rate_per_second=0.0)
    for _ in range(9):
        assert (await ask(gate, "product-7")).reason is VerdictReason.OFF
    await gate.traffic.flush()
    assert (await ask(gate, "product-7")).reason is VerdictReason.OFF
    await gate.traffic.flush()
    verdict = await ask(gate, "product-7")
    assert verdict.reason is VerdictReason.WAITING
    assert verdict.queue == "product-7"
    assert (await ask(gate, "product-8")).reason is VerdictReason.OFF

    # Quiet, but somebody is in line: it stays on. Then the line is empty, and it goes off.
    store.advance_clock(60_000)
    await gate.traffic.cool()
    assert (await ask(gate, "product-7", verdict.visitor)).reason is VerdictReason.WAITING
    assert verdict.visitor is not None
    await gate._room.leave(NS, "product-7", verdict.visitor.id, trusted=True)
    store.advance_clock(120_000)
    await gate.traffic.cool()
    assert (await ask(gate, "product-7")).reason is VerdictReason.OFF
    assert gate.rules.guard(store.thing("queue", NS, "product-7")) is None


async def switch_on(gate: Gate, **policy: object) -> None:
    """Make a template, and let so many ask for product-7 that it has a queue."""
    auto = Auto(resource="product-*", threshold=5, window_seconds=5, cooldown_seconds=30)
    await configure(gate, "products", auto=auto, paths=["/product/*"], **policy)
    for _ in range(5):
        await ask(gate, "product-7")
    await gate.traffic.flush()


@pytest.mark.parametrize("template", [True, False])
async def test_an_automatic_queue_goes_off_while_a_ticket_of_somebody_who_left_is_held(
    gate: Gate, store: Store, template: bool
) -> None:
    resource = "product-*" if template else "product-7"
    auto = Auto(resource=resource, threshold=5, window_seconds=5, cooldown_seconds=30)
    await configure(gate, "products", auto=auto, rate_per_second=0.0, ticket_ttl_seconds=3600)
    for _ in range(5):
        await ask(gate, "product-7")
    await gate.traffic.flush()
    waiting = await ask(gate, "product-7")
    assert waiting.visitor is not None
    queue = gate._room.queues.thing(NS, waiting.queue)
    await gate._room.queues.operate(queue, "admit", who="test", number=1)
    await gate._room.promotion.step(queue, 16)
    called = await gate._room.status(NS, queue.name, waiting.visitor.id, trusted=True)
    assert called.status is State.PROMOTED
    store.advance_clock(60_000)
    for _ in range(2):
        await gate.traffic.cool()
    assert (await ask(gate, "product-7")).reason is VerdictReason.OFF
    # The ticket is good all the same; when it is used, nothing keeps a queue that was made from a template.
    assert isinstance(called.ticket_id, str)
    await gate._room.redeem(NS, queue.name, called.ticket_id, "session")
    await gate.traffic.cool()
    assert (gate.rules.guard(queue) is None) == template


async def test_deleting_a_template_lets_newcomers_pass_and_calls_those_in_line(gate: Gate, store: Store) -> None:
    await switch_on(gate, rate_per_second=1.0, burst=1.0)
    queues, queue = gate._room.queues, gate._room.queues.thing(NS, "product-7")
    line = [await ask(gate, "product-7") for _ in range(4)]
    waiting = [verdict.visitor for verdict in line if not verdict.passes and verdict.visitor is not None]
    await queues.operate(queues.thing(NS, "products"), "delete", who="test")
    await gate.rules.refresh()
    await gate.traffic.cool()
    view = await queues.view(queue)
    assert (view.draining, view.template, view.waiting) == (True, "products", len(waiting))
    assert (await ask(gate, "product-7")).reason is VerdictReason.UNGUARDED
    assert (await ask(gate, target=b"/product/7")).reason is VerdictReason.UNGUARDED
    for second in range(1, 10):
        store.advance_clock(second * 1_000)
        await gate._room.promotion.step(queue, 16)
        await gate.traffic.cool()
    for visitor in waiting:
        status = await gate._room.status(NS, queue.name, visitor.id, trusted=True)
        assert isinstance(status.ticket_id, str), status
        await gate._room.redeem(NS, queue.name, status.ticket_id, visitor.id)
    await gate.traffic.cool()
    with pytest.raises(QueueUnknown):
        await queues.view(queue)


async def test_a_queue_that_calls_nobody_ends_with_its_template(gate: Gate) -> None:
    await switch_on(gate, rate_per_second=0.0)
    assert (await ask(gate, "product-7")).reason is VerdictReason.WAITING
    queues = gate._room.queues
    await queues.operate(queues.thing(NS, "products"), "delete", who="test")
    await gate.rules.refresh()
    await gate.traffic.cool()
    with pytest.raises(QueueUnknown):
        await queues.view(queues.thing(NS, "product-7"))


async def test_a_template_made_anew_takes_its_old_queue_back(gate: Gate) -> None:
    await switch_on(gate, rate_per_second=1.0, burst=1.0)
    queues, queue = gate._room.queues, gate._room.queues.thing(NS, "product-7")
    line = [await ask(gate, "product-7") for _ in range(3)]
    assert not line[-1].passes
    await queues.operate(queues.thing(NS, "products"), "delete", who="test")
    await gate.rules.refresh()
    await gate.traffic.cool()
    assert (await queues.view(queue)).draining
    await switch_on(gate, rate_per_second=1.0, burst=1.0)
    assert not (await queues.view(queue)).draining
    assert not (await ask(gate, "product-7")).passes


async def test_load_that_hovers_at_the_threshold_does_not_flap(gate: Gate, store: Store) -> None:
    auto = Auto(resource="product-*", threshold=10, window_seconds=5, cooldown_seconds=30)
    # Those who bypass are counted too, and stand in no line that would keep the queue on.
    await configure(gate, "products", auto=auto, rate_per_second=0.0, bypass=Bypass(addresses=["10.0.0.0/8"]))
    template, seen = store.thing("queue", NS, "products"), []
    for cycle in range(14):
        for _ in range(12 if cycle % 2 else 8):
            assert (await ask(gate, "product-7", client="10.0.0.1")).reason is VerdictReason.BYPASS
        await gate.traffic.flush()
        await gate.traffic.cool()
        guard = gate.rules.guard(template)
        assert guard is not None
        seen.append("product-7" in guard.on)
        store.advance_clock(6_000)
    assert seen == [False] + [True] * 13
    # Nobody is in line, and it is quiet for the whole cooldown: now it goes off.
    store.advance_clock(60_000)
    await gate.traffic.cool()
    assert (await ask(gate, "product-7")).reason is VerdictReason.OFF


async def test_a_huge_threshold_makes_no_rate_that_is_too_high(gate: Gate) -> None:
    await configure(gate, "products", auto=Auto(resource="product-*", threshold=1_000_000_000, window_seconds=1))
    guard = gate.rules.guard(gate._room.queues.thing(NS, "products"))
    assert guard is not None
    assert guard.policy.rate_per_second == 1_000_000


async def test_at_most_so_many_queues_are_made_from_a_template(gate: Gate) -> None:
    await configure(gate, "products", auto=Auto(resource="product-*", threshold=1, max_queues=2), rate_per_second=0.0)
    for number in range(5):
        await ask(gate, f"product-{number}")
    await gate.traffic.flush()
    waiting = [number for number in range(5) if not (await ask(gate, f"product-{number}")).passes]
    assert len(waiting) == 2


async def test_an_unknown_path_costs_the_same_however_many_queues_a_template_has_made(gate: Gate) -> None:
    auto = Auto(resource="item-*", threshold=1)
    await configure(gate, "items", auto=auto, paths=["/item/*"], rate_per_second=0.0)

    def steps(path: bytes) -> int:
        gate.rules.match(NS, "", "", b"/first" + path)
        return count_steps(lambda: gate.rules.match(NS, "", "", path))

    few = steps(b"/a")
    for number in range(20):
        await ask(gate, target=b"/item/%d" % number)
    await gate.traffic.flush()
    assert len(gate.rules.derived()) == 20
    assert steps(b"/b") <= few + 10


async def test_an_automatic_queue_that_is_off_does_not_hide_one_that_is_on(gate: Gate) -> None:
    auto = Auto(resource="sale-*", threshold=2, window_seconds=10, cooldown_seconds=60)
    await configure(gate, "crowded", paths=["/sale/*"], auto=auto)
    await configure(gate, "sale", paths=["/sale/**"], capacity=0)
    verdict = await ask(gate, target=b"/sale/1")
    assert (verdict.passes, verdict.queue) == (False, "sale")
    # Its traffic counts all the same: past the threshold, the product has a line of its own.
    for _ in range(3):
        await ask(gate, target=b"/sale/1")
    await gate.traffic.flush()
    assert (await ask(gate, target=b"/sale/1")).queue == "sale-1"
    assert (await ask(gate, target=b"/sale/2")).queue == "sale"


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
async def test_of_two_automatic_queues_for_the_same_the_lower_threshold_protects(
    gate: Gate, names: tuple[str, str]
) -> None:
    low, high = names
    for name, threshold in ((high, 500), (low, 20)):
        await configure(
            gate, name, paths=["/product/*"], auto=Auto("product-*", threshold=threshold, window_seconds=10)
        )
    for _ in range(25):
        await ask(gate, target=b"/product/42")
    await gate.traffic.flush()
    on = {name for name in names if (guard := gate.rules.guard(gate._room.queues.thing(NS, name))) and guard.on}
    assert on == {low}
    assert (await ask(gate, target=b"/product/42")).queue == "product-42"


async def test_an_automatic_queue_of_one_resource_comes_before_one_of_a_pattern(gate: Gate) -> None:
    await configure(gate, "all", auto=Auto("product-*", threshold=20, window_seconds=10))
    await configure(gate, "one", auto=Auto("product-1", threshold=500, window_seconds=10))
    for resource in ("product-1", "product-2"):
        for _ in range(25):
            await ask(gate, resource)
    await gate.traffic.flush()
    assert gate.rules.match(NS, "product-1", "", b"").active is False  # type: ignore[union-attr]
    assert gate.rules.match(NS, "product-2", "", b"").active  # type: ignore[union-attr]


async def test_two_products_whose_names_need_other_letters_have_queues_of_their_own(gate: Gate) -> None:
    await configure(gate, "products", paths=["/product/*"], auto=Auto("product-*", threshold=1, window_seconds=10))
    paths = ["사과", "바나", "a b", "a+b", "x" * 300, "x" * 301, "plain-7"]
    found = [gate.rules.match(NS, "", "", f"/product/{path}".encode()) for path in paths]
    names = [match.queue.name for match in found if match is not None]
    assert len(set(names)) == len(paths)
    assert names[-1] == "product-plain-7"
