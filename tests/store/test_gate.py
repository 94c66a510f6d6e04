"""The gate's decisions on a real store: who passes and who waits."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, time

import pytest

from headgate.gate.gate import Gate, GateRequest, VerdictReason
from headgate.gate.passes import VISITOR_SECONDS
from headgate.gate.problems import RevocationsFull
from headgate.kit.problems import InvalidRequest
from headgate.store import Store, StoreSettings, open_store
from headgate.waiting_room.policy import Auto, Bypass, FailMode
from headgate.waiting_room.waiting_room import WaitingRoom
from tests.store.gate_world import NS, ask, configure, enter
from tests.topology import Topology


async def test_what_nobody_guards_passes(gate: Gate) -> None:
    assert (await ask(gate, "anything")).reason is VerdictReason.UNGUARDED


async def test_a_free_seat_lets_the_first_in_and_the_next_one_waits(gate: Gate) -> None:
    await configure(gate, "sale", capacity=1)
    inside = await enter(gate, "sale")
    verdict = await ask(gate, "sale")
    assert not verdict.passes
    assert verdict.status is not None
    assert verdict.status.rank == 1
    assert (await ask(gate, "sale", inside)).reason is VerdictReason.INSIDE


async def test_someone_inside_costs_no_store_call(gate: Gate, store: Store) -> None:
    await configure(gate, "sale", capacity=1)
    inside = await enter(gate, "sale")
    before = await scripts_run(store)
    for _ in range(20):
        assert (await ask(gate, "sale", inside)).reason is VerdictReason.INSIDE
    assert await scripts_run(store) == before


async def test_a_newcomer_does_not_overtake_the_line_when_a_seat_frees(gate: Gate) -> None:
    await configure(gate, "sale", capacity=1)
    inside = await enter(gate, "sale")
    first = (await ask(gate, "sale")).visitor
    assert first is not None
    await gate._room.end(NS, "sale", inside.id)
    gate._full_at.clear()
    newcomer = await ask(gate, "sale")
    assert not newcomer.passes
    gate._full_at.clear()
    assert (await ask(gate, "sale", first)).reason is VerdictReason.ADMITTED


async def test_a_pass_in_its_last_third_is_renewed_with_its_session(gate: Gate, store: Store) -> None:
    await configure(gate, "sale", capacity=1, session_ttl_seconds=300)
    inside = await enter(gate, "sale")
    store.advance_clock(250_000)
    await gate.rules.read(gate._room.queues.thing(NS, "sale"))
    verdict = await ask(gate, "sale", inside)
    assert verdict.reason is VerdictReason.INSIDE
    assert verdict.visitor is not None
    assert verdict.visitor.passes[0].expires > inside.passes[0].expires


async def test_passes_of_another_generation_or_revoked_are_refused(gate: Gate) -> None:
    await configure(gate, "sale", capacity=5)
    inside, other = await enter(gate, "sale"), await enter(gate, "sale")
    thing = gate._room.queues.thing(NS, "sale")
    await gate.revoke(thing, inside.id, who="test")
    await gate.rules.read(thing)
    assert (await ask(gate, "sale", inside)).reason is VerdictReason.ADMITTED
    assert (await ask(gate, "sale", other)).reason is VerdictReason.INSIDE
    await gate._room.queues.operate(thing, "reset", who="test")
    await gate.rules.read(thing)
    assert (await ask(gate, "sale", other)).reason is not VerdictReason.INSIDE


async def test_revocations_of_passes_that_have_ended_are_forgotten_some_at_a_time(gate: Gate, store: Store) -> None:
    await configure(gate, "sale", capacity=1, session_ttl_seconds=60)
    thing = gate._room.queues.thing(NS, "sale")
    for number in range(130):
        await gate.revoke(thing, f"user-{number}", who="test")
    store.advance_clock(61_000)
    await gate.revoke(thing, "late", who="test")
    assert await store.read(thing, "ZCARD", thing.key("revoked")) == 31
    await gate.revoke(thing, "later", who="test")
    assert await store.read(thing, "ZCARD", thing.key("revoked")) == 2


async def test_more_revocations_than_gates_can_know_of_are_refused(
    gate: Gate, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("gate", "rules"):
        monkeypatch.setattr(f"headgate.gate.{module}.MOST_REVOKED", 3)
    await configure(gate, "sale", capacity=10, session_ttl_seconds=60)
    thing = gate._room.queues.thing(NS, "sale")
    inside = [await enter(gate, "sale") for _ in range(4)]
    for visitor in (*inside[:3], inside[0]):  # the last one again, which is no more
        await gate.revoke(thing, visitor.id, who="test")
    with pytest.raises(RevocationsFull):
        await gate.revoke(thing, inside[3].id, who="test")
    await gate.rules.read(thing)
    assert [(await ask(gate, "sale", visitor)).reason for visitor in inside] == [VerdictReason.ADMITTED] * 3 + [
        VerdictReason.INSIDE
    ]
    store.advance_clock(61_000)
    await gate.revoke(thing, inside[3].id, who="test")


async def test_a_pass_for_one_queue_is_none_for_another(gate: Gate) -> None:
    await configure(gate, "sale", capacity=5)
    await configure(gate, "drop", capacity=0)
    inside = await enter(gate, "sale")
    assert not (await ask(gate, "drop", inside)).passes


async def test_whoever_is_inside_stays_inside_when_the_inflow_changes(gate: Gate) -> None:
    await configure(gate, "sale", capacity=5, rate_per_second=100.0)
    inside = await enter(gate, "sale")
    for change in ({"rate_per_second": 0.0}, {"capacity": 0}, {"batch": 1, "tick_ms": 60_000}):
        await configure(gate, "sale", **change)
        await gate.rules.read(gate._room.queues.thing(NS, "sale"))
        assert (await ask(gate, "sale", inside)).reason is VerdictReason.INSIDE
        assert not (await ask(gate, "sale")).passes
    await gate._room.queues.operate(gate._room.queues.thing(NS, "sale"), "pause", who="test")
    await gate.rules.read(gate._room.queues.thing(NS, "sale"))
    assert (await ask(gate, "sale", inside)).reason is VerdictReason.INSIDE


async def test_a_cookie_found_good_is_not_good_for_ever(gate: Gate, store: Store) -> None:
    await configure(gate, "sale", capacity=1)
    cookie = (await gate.keys()).seal(await enter(gate, "sale"))
    assert await gate.read_visitor((cookie,)) is not None
    store.advance_clock((VISITOR_SECONDS + 60) * 1000)
    await gate.rules.read(gate._room.queues.thing(NS, "sale"))
    assert await gate.read_visitor((cookie,)) is None


async def test_paths_choose_the_queue_and_what_the_star_stands_for(gate: Gate) -> None:
    auto = Auto(resource="product-*", threshold=1)
    await configure(gate, "products", auto=auto, paths=["/product/*"], rate_per_second=0.0)
    assert (await ask(gate, target=b"/product/42?size=9")).reason is VerdictReason.OFF
    await gate.traffic.flush()
    assert (await ask(gate, target=b"/PRODUCT//42")).queue == "product-42"
    assert (await ask(gate, target=b"/about")).reason is VerdictReason.UNGUARDED


async def test_a_path_that_cannot_be_read_is_guarded_by_any_queue_that_is_on(gate: Gate) -> None:
    unreadable = (b"/item/4\xff2", b"/about/%ff", b"/" + b"a" * 5000)
    await configure(gate, "named", capacity=0)  # guards no paths
    await configure(gate, "items", auto=Auto(resource="item-*", threshold=9), paths=["/item/*"], rate_per_second=0.0)
    for target in unreadable:
        assert (await ask(gate, target=target)).passes
    for _ in range(9):
        await ask(gate, target=b"/item/42")
    await gate.traffic.flush()
    for target in unreadable:
        assert (await ask(gate, target=target)).queue == "item-42", target
    await configure(gate, "sale", capacity=0, paths=["/sale/**"])
    assert (await ask(gate, target=b"/sale/\xff")).queue == "sale"
    assert (await ask(gate, target=b"/item/41")).passes


async def test_a_foreign_cookie_of_the_same_name_in_front_takes_no_pass_away(gate: Gate) -> None:
    await configure(gate, "sale", capacity=1)
    good = (await gate.keys()).seal(await enter(gate, "sale"))
    for cookies in (("forged", good), ("", "a.b.c", good), (good, "forged")):
        assert (await gate.check(GateRequest(NS, resource="sale", cookies=cookies))).reason is VerdictReason.INSIDE


async def test_what_is_known_of_paths_does_not_grow_with_what_visitors_send(gate: Gate) -> None:
    await configure(gate, "sale", paths=["/sale/**"], capacity=0)
    for number in range(50):
        assert (await ask(gate, target=b"/sale/x?n=%d" % number)).queue == "sale"
        assert (await ask(gate, target=b"/sale/%d" % number + b"x" * 4000)).queue == "sale"
    assert len(gate.rules._matches) == 1


async def test_bypasses(gate: Gate) -> None:
    bypass = Bypass(paths=["/sale/rules"], addresses=["10.0.0.0/8"], header="X-Pass")
    await configure(gate, "sale", capacity=0, paths=["/sale/**"], bypass=bypass)
    assert not (await ask(gate, target=b"/sale/shoes")).passes
    assert (await ask(gate, target=b"/sale/rules")).reason is VerdictReason.BYPASS
    assert not (await ask(gate, target=b"/sale/rules/../shoes")).passes
    assert (await ask(gate, target=b"/sale/shoes", client="10.2.3.4")).reason is VerdictReason.BYPASS
    thing = gate._room.queues.thing(NS, "sale")
    value = (await gate.keys()).seal_bypass(thing.tag, int(gate.rules.now()) + 60)
    assert (await ask(gate, target=b"/sale/shoes", headers={b"x-pass": value.encode()})).reason is VerdictReason.BYPASS
    other = (await gate.keys()).seal_bypass("default/other", int(gate.rules.now()) + 60)
    assert not (await ask(gate, target=b"/sale/shoes", headers={b"x-pass": other.encode()})).passes
    late = (await gate.keys()).seal_bypass(thing.tag, int(gate.rules.now()) - 1)
    assert not (await ask(gate, target=b"/sale/shoes", headers={b"x-pass": late.encode()})).passes


async def test_an_account_that_the_site_vouches_for_needs_no_cookie(gate: Gate) -> None:
    await configure(gate, "sale", capacity=1)
    assert (await ask(gate, "sale", user_id="ryan")).reason is VerdictReason.ADMITTED
    assert (await ask(gate, "sale", user_id="ryan")).reason is VerdictReason.INSIDE
    assert not (await ask(gate, "sale", user_id="mary")).passes


async def test_deleting_a_queue_lets_its_waiters_pass(gate: Gate) -> None:
    await configure(gate, "sale", capacity=0)
    waiting = (await ask(gate, "sale")).visitor
    await gate._room.queues.operate(gate._room.queues.thing(NS, "sale"), "delete", who="test")
    assert (await ask(gate, "sale", waiting)).passes


async def test_a_policy_that_cannot_work_is_refused(gate: Gate) -> None:
    with pytest.raises(InvalidRequest):
        await configure(gate, "sale", paths=["product/*"])
    with pytest.raises(InvalidRequest):
        await configure(gate, "sale", bypass=Bypass(addresses=["somewhere"]))


async def scripts_run(store: Store) -> int:
    """Count the script calls that the server has answered, on all primaries."""
    total = 0
    for link in await store.route.primaries():
        reply = await link.send(("INFO", "commandstats"), store.deadline())
        assert isinstance(reply, bytes)
        for line in reply.decode().splitlines():
            if line.startswith("cmdstat_evalsha:calls="):
                total += int(line.split("=")[1].split(",")[0])
    return total


async def test_a_gates_queue_without_seats_of_its_own_admits_by_rate(gate: Gate, store: Store) -> None:
    store.stop_clock(int(time() * 1000))  # within one and the same second
    await configure(gate, "sale", paths=["/sale/**"], rate_per_second=1.0, burst=1.0)
    assert (await ask(gate, target=b"/sale/a")).reason is VerdictReason.ADMITTED
    assert (await ask(gate, target=b"/sale/a")).reason is VerdictReason.WAITING
    await configure(gate, "seated", paths=["/seated/**"], capacity=0)
    assert (await ask(gate, target=b"/seated/a")).reason is VerdictReason.WAITING


async def test_a_store_that_was_away_a_moment_ago_is_not_waited_for_again(
    fresh_server: Callable[..., Topology],
) -> None:
    server = fresh_server()
    async with open_store(StoreSettings(url=server.url)) as store:
        room = WaitingRoom(store)
        gate = Gate(store, room)
        await configure(gate, "sale", capacity=0, fail_mode=FailMode.OPEN)
        assert not (await ask(gate, "sale")).passes
        queue = room.queues.thing(NS, "sale")
        node = server.primary_of(queue.key("waiting"))
        try:
            node.pause()
            assert (await ask(gate, "sale")).reason is VerdictReason.FAIL_OPEN
        finally:
            node.resume()
        # Had it been asked, it would have said that one must wait.
        gate._unavailable[queue] = monotonic() + 60
        assert (await ask(gate, "sale")).reason is VerdictReason.FAIL_OPEN
        gate._unavailable[queue] = monotonic()
        assert (await ask(gate, "sale")).reason is VerdictReason.WAITING
        assert not gate._unavailable
        gate.rules.close()
        room.queues.close()


async def test_a_forecast_that_another_version_wrote_stops_nobody(gate: Gate, store: Store, server: Topology) -> None:
    await configure(gate, "sale", capacity=1)
    await enter(gate, "sale")
    meta = store.thing("queue", NS, "sale").key("meta")
    server.primary_of(meta).command("HSET", meta, "forecast", "0" * 28)
    verdict = await ask(gate, "sale")
    assert verdict.reason is VerdictReason.WAITING
    assert verdict.status is not None
    assert verdict.status.eta is None
    await gate._room.promotion.step(store.thing("queue", NS, "sale"), 16)
