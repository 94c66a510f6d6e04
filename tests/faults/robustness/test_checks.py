"""The checks themselves: each finds a history that breaks its promise, and passes one that keeps it."""

from __future__ import annotations

from typing import Any

from tests.faults.robustness import checks
from tests.faults.robustness.history import Event, History
from tests.faults.robustness.plan import draw

Row = tuple[str, str, float, dict[str, Any]]


def history(*events: Row) -> History:
    made = History()
    made.events = [Event(what, who, at, at, facts) for what, who, at, facts in events]
    return made


FLUSH = ("fault", "store", 1.5, {"fault": "flush"})


def test_a_ticket_that_lets_two_in_is_found() -> None:
    once = ("admitted", "a", 1.0, {"ticket": "t", "arena": "x"})
    assert checks.admitted_once(history(once)) == []
    assert checks.admitted_once(history(once, once)) == ["ticket t let 2 in"]


def test_too_many_inside_are_found_and_a_killed_arena_is_empty() -> None:
    events: list[Row] = [
        ("admitted", "a", 1.0, {"ticket": "t1", "arena": "x"}),
        ("admitted", "b", 2.0, {"ticket": "t2", "arena": "x"}),
        ("left", "a", 3.0, {"ticket": "t1"}),
        ("left", "b", 4.0, {"ticket": "t2"}),
    ]
    assert checks.never_over_capacity(history(*events), 2, {}) == []
    assert len(checks.never_over_capacity(history(*events), 1, {})) == 1
    assert checks.never_over_capacity(history(*events), 1, {"x": [1.5]}) == []


def test_somebody_who_is_overtaken_is_found_unless_data_was_lost() -> None:
    events: list[Row] = [
        ("entered", "a", 0.1, {}),
        ("entered", "b", 0.2, {}),
        ("status", "b", 1.0, {"status": "PROMOTED", "rank": 0}),
        ("status", "a", 2.0, {"status": "WAITING", "rank": 1}),
    ]
    assert len(checks.in_order(history(*events))) == 1
    assert checks.in_order(history(*events, FLUSH)) == []
    assert checks.in_order(history(*events[:2], *reversed(events[2:]))) == checks.in_order(history(*events))


def test_a_rank_that_rises_is_found_unless_data_was_lost() -> None:
    events: list[Row] = [
        ("status", "a", 1.0, {"status": "WAITING", "rank": 3}),
        ("status", "a", 2.0, {"status": "WAITING", "rank": 4}),
    ]
    assert len(checks.ranks_never_rise(history(*events))) == 1
    assert checks.ranks_never_rise(history(*events, FLUSH)) == []


def test_people_who_are_lost_or_told_what_is_not_true_are_found() -> None:
    reset = ("told", "a", 2.0, {"code": "queue_reset", "status": 410, "admitted": False})
    finished = ("told", "a", 2.0, {"code": "FINISHED", "status": 200, "admitted": False})
    strange = ("told", "a", 2.0, {"code": "internal", "status": 500, "admitted": False})
    entered = ("entered", "a", 1.0, {"place": 1})
    assert len(checks.nobody_lost(history(entered, reset), [])) == 1
    assert checks.nobody_lost(history(entered, reset, FLUSH), []) == []
    assert len(checks.nobody_lost(history(entered, finished), [])) == 1
    assert len(checks.nobody_lost(history(entered, strange), [])) == 1
    assert checks.nobody_lost(history(), ["b"]) == ["b still waits at the end"]


def test_two_holders_and_fences_that_go_back_are_found() -> None:
    first = ("held", "p", 1.0, {"fence": 1, "end": 2.5})
    second = ("held", "q", 2.0, {"fence": 2, "end": 3.0})
    late = ("held", "q", 3.0, {"fence": 1, "end": 3.5})
    assert len(checks.one_holder(history(first, second))) == 1
    assert checks.one_holder(history(first, second, FLUSH)) == []
    assert len(checks.one_holder(history(first, late))) == 1
    assert len(checks.one_holder(history(first, late, FLUSH))) == 1, "clocks that agree carry the fences on"
    step: Row = ("fault", "store", 0.5, {"fault": "clock step"})
    assert checks.one_holder(history(first, late, FLUSH, step)) == []


def test_a_living_instance_that_is_removed_is_found() -> None:
    alive: Row = ("alive", "i", 1.0, {})
    leaves: Row = ("leaves", "i", 2.0, {})
    removed = ("change", "w", 3.0, {"kind": "removed", "instance": "i"})
    assert len(checks.the_living_stay(history(alive, removed))) == 1
    assert checks.the_living_stay(history(alive, leaves, removed)) == []


def test_a_body_that_is_sent_twice_is_found() -> None:
    assert checks.sent_once([b"a", b"b"]) == []
    assert checks.sent_once([b"a", b"a"]) == ["b'a' arrived 2 times"]


def test_a_seed_draws_the_same_plan_again() -> None:
    names = ["gateway-1", "relay-1"]
    assert draw(7, 60, names, proxied=True, clock=True) == draw(7, 60, names, proxied=True, clock=True)
    assert draw(7, 60, names, proxied=True, clock=True) != draw(8, 60, names, proxied=True, clock=True)
