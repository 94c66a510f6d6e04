"""Metrics by name: a bounded number of series, none of names that are gone, and a scrape that holds up nobody."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from secrets import token_hex

import pytest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from headgate.kit import metrics
from headgate.kit.named_metrics import (
    MOST_CANDIDATES,
    MOST_NUMBERS,
    OTHER,
    RANK_AFTER,
    Across,
    LabelNames,
    NamedReadings,
)
from tests.unit.test_metrics import value


def unique(name: str) -> str:
    """Make a metric's name that no other test has."""
    return f"headgate_{name}_{token_hex(4)}"


def test_names_beyond_the_bound_are_counted_together() -> None:
    names = LabelNames("queue", most=10)
    name = unique("entered")
    counted = names.counter(f"{name}_total", "For this test.", ["how"])
    took = names.histogram(f"{name}_seconds", "For this test.", buckets=(1, 10))
    for number in range(5000):
        counted.labels(f"product-{number}", "new").inc()
        took.labels(f"product-{number}").observe(5)
    shown = metrics.exposition().decode()
    assert len([line for line in shown.splitlines() if line.startswith(f"{name}_total{{")]) == 11
    assert len([line for line in shown.splitlines() if line.startswith(f"{name}_seconds_bucket{{")]) == 11 * 3
    assert value(shown, f'{name}_total{{how="new",queue="product-3"}}') == 1
    assert value(shown, f'{name}_total{{how="new",queue="other"}}') == 4990
    assert value(shown, f'{name}_seconds_bucket{{le="10.0",queue="other"}}') == 4990
    assert value(shown, f'{name}_seconds_sum{{queue="other"}}') == 4990 * 5
    assert len(names._candidates) <= MOST_CANDIDATES


def test_a_name_that_became_busy_takes_the_series_of_one_that_is_hardly_used() -> None:
    names = LabelNames("queue", most=2)
    counted = names.counter(f"{unique('calls')}_total", "For this test.")
    for name in ("idle", "busy", "busy", "busy"):
        counted.labels(name).inc()
    for _ in range(RANK_AFTER):
        counted.labels("rising").inc()
    counted.labels("rising").inc()
    samples = {key[0]: numbers[0] for key, numbers in counted.snapshot().samples}
    assert names.shown() == {"busy", "rising"}
    assert samples["busy"] == 3
    assert samples["rising"] + samples[OTHER] == RANK_AFTER + 1, "what was counted for it under other stays there"
    assert "idle" not in samples
    counted.labels("idle").inc()
    assert dict(counted.snapshot().samples)[(OTHER,)] == [samples[OTHER] + 1]


def test_series_of_a_name_that_is_gone_go_and_it_may_come_again() -> None:
    names = LabelNames("upstream", most=2)
    name = unique("sends")
    sends, flying = names.counter(f"{name}_total", "For this test."), names.gauge(name, "For this test.")
    kept, level = sends.labels("a"), flying.labels("a")
    kept.inc(7)
    level.inc()
    names.forget("a")
    assert name not in "".join(line for line in metrics.exposition().decode().splitlines() if "{" in line)
    level.dec()
    kept.inc()
    shown = metrics.exposition().decode()
    assert value(shown, f'{name}_total{{upstream="a"}}') == 1
    assert value(shown, f'{name}{{upstream="a"}}') == 0


def test_gauges_of_names_without_series_are_added_up_and_none_is_lost() -> None:
    names = LabelNames("queue", most=1)
    streams = names.gauge(unique("streams"), "For this test.")
    with streams.labels("first").track_inprogress(), streams.labels("second").track_inprogress():
        with streams.labels("third").track_inprogress():
            assert {key: numbers[0] for key, numbers in streams.snapshot().samples} == {("first",): 1, (OTHER,): 2}
        for _ in range(RANK_AFTER):
            streams.labels("second")  # used so often that it takes the series of the first
        assert {key: numbers[0] for key, numbers in streams.snapshot().samples} == {("second",): 1, (OTHER,): 1}
    assert {key: numbers[0] for key, numbers in streams.snapshot().samples} == {("second",): 0, (OTHER,): 0}


@pytest.mark.parametrize("across", ["sum", "max", "latest"])
def test_names_that_are_gone_are_forgotten_though_they_had_no_series(across: Across) -> None:
    names = LabelNames("upstream", most=2)
    sends = names.counter(f"{unique('sends')}_total", "For this test.")
    level = names.gauge(unique("level"), "For this test.", ["state"], across=across)
    for number in range(10_000):
        sends.labels(f"u{number}").inc()
        level.labels(f"u{number}", "busy").set(number)
    assert len(names.known()) == 10_000
    names.forget(*(names.known() - {"u0", "u7"}))
    assert names.known() == {"u0", "u7"}
    assert {key: numbers[0] for key, numbers in level.snapshot().samples} == {("u0", "busy"): 0, (OTHER, "busy"): 7}
    assert {key[0]: numbers[0] for key, numbers in sends.snapshot().samples} == {"u0": 1, OTHER: 9998}, "counts stay"
    names.forget("u7")
    assert [key for key, _ in level.snapshot().samples] == [("u0", "busy")]


def test_a_gauge_keeps_a_bounded_number_of_names_and_rather_those_that_are_not_0() -> None:
    names = LabelNames("upstream", most=2)
    level = names.gauge(unique("level"), "For this test.")
    busy = [f"busy-{number}" for number in range(100)]
    for name in ("first", "second", *busy):
        level.labels(name).set(1)
    for number in range(3 * MOST_NUMBERS):
        level.labels(f"idle-{number}")
    assert len(names.known()) <= MOST_NUMBERS + MOST_CANDIDATES
    assert {key: numbers[0] for key, numbers in level.snapshot().samples} == {
        ("first",): 1,
        ("second",): 1,
        (OTHER,): 100,
    }
    for number in range(3 * MOST_NUMBERS):
        level.labels(f"later-{number}").set(1)
    assert len(level.kept()) <= MOST_NUMBERS
    assert {"first", "second", f"later-{number}"} <= level.kept()


def test_readings_are_replaced_all_together() -> None:
    waiting = NamedReadings("queue", unique("waiting"), "For this test.")
    waiting.replace({"a": 1, "b": 2})
    waiting.replace({"b": 3})
    assert [(key, numbers[0]) for key, numbers in waiting.snapshot().samples] == [(("b",), 3)]


@pytest.mark.anyio
async def test_a_scrape_leaves_the_event_loop_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_collectors", [])
    begun, loop_ran = threading.Event(), threading.Event()
    rendered_by: list[int] = []

    def slow() -> list[Metric]:
        rendered_by.append(threading.get_ident())
        begun.set()
        assert loop_ran.wait(20), "the event loop stood still while metrics were rendered"
        return [GaugeMetricFamily("headgate_test_slow", "Slow.", value=1)]

    metrics.collect(slow)
    scraping = asyncio.ensure_future(metrics.scrape())
    while not begun.is_set():
        await asyncio.sleep(0)
    loop_ran.set()
    assert value((await scraping).decode(), "headgate_test_slow") == 1
    assert threading.get_ident() not in rendered_by


@pytest.mark.anyio
async def test_a_scrape_waits_for_numbers_that_are_brought_up_to_date_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "_preparing", [])
    waiting = NamedReadings("queue", unique("read"), "For this test.")
    stuck = asyncio.Event()

    async def read() -> None:
        waiting.replace({"main": 4})
        await stuck.wait()

    metrics.before_scrape(read)
    assert f'{waiting._series.name}{{queue="main"}} 4.0' in (await metrics.scrape()).decode()


_CHILD = """
import sys
from headgate.kit import metrics
from headgate.kit.named_metrics import LabelNames, NamedReadings
metrics.share(__import__("pathlib").Path(sys.argv[1]))
names = LabelNames("queue", most=3)
entered = names.counter("headgate_entered_total", "entered")
took = names.histogram("headgate_took_seconds", "took", buckets=(0.1, 1))
streams = names.gauge("headgate_streams", "streams")
read = NamedReadings("queue", "headgate_read", "read")
for line in sys.stdin:
    match line.split():
        case ["show"]:
            print(metrics.exposition().decode().replace("\\n", "|"), flush=True)
            continue
        case ["enter", queue]:
            entered.labels(queue).inc(); took.labels(queue).observe(0.5); streams.labels(queue).inc()
        case ["forget", queue]:
            names.forget(queue)
        case ["read", number]:
            read.replace({} if number == "nothing" else {"a": float(number)})
        case ["sole"]:
            print(metrics.sole("look"), flush=True)
            continue
    metrics.share_named()
    print("done", flush=True)
"""


class Child:
    """A process that shares its named metrics; it does as it is told, line by line."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, *words: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_processes_put_their_names_together_and_counts_outlive_a_process(tmp_path: Path) -> None:
    first, second, third = children = [Child(tmp_path) for _ in range(3)]
    try:
        for child, queues in ((first, "ab"), (second, "ac"), (third, "ad")):
            for queue in queues:
                assert child.tell("enter", queue) == "done"
        shown = first.tell("show")
        assert value(shown, 'headgate_entered_total{queue="a"}') == 3
        assert value(shown, 'headgate_took_seconds_bucket{le="1.0",queue="a"}') == 3
        assert value(shown, 'headgate_streams{queue="a"}') == 3

        third.end()
        for _ in range(2):  # asking again must not count the ended process again
            shown = first.tell("show")
            assert value(shown, 'headgate_entered_total{queue="a"}') == 3
            assert value(shown, 'headgate_streams{queue="a"}') == 2
            assert value(shown, 'headgate_entered_total{queue="d"}') is None, "nobody alive knows of it"

        for child in (first, second):
            child.tell("forget", "a")
        shown = second.tell("show")
        assert 'queue="a"' not in shown
        assert value(shown, 'headgate_entered_total{queue="c"}') == 1
    finally:
        for child in children:
            child.end()


def test_one_of_the_processes_reads_for_all_and_another_takes_over(tmp_path: Path) -> None:
    children = [Child(tmp_path) for _ in range(2)]
    try:
        assert [child.tell("sole") for child in children] == ["True", "False"]
        assert children[0].tell("sole") == "True"
        children[0].tell("read", "4")
        children[1].tell("read", "5")
        assert value(children[1].tell("show"), 'headgate_read{queue="a"}') == 5, "the newest reading"
        children[0].tell("read", "nothing")
        assert value(children[1].tell("show"), 'headgate_read{queue="a"}') is None
        children[0].end()
        assert children[1].tell("sole") == "True"
        children[1].tell("read", "6")
        assert value(children[1].tell("show"), 'headgate_read{queue="a"}') == 6
    finally:
        for child in children:
            child.end()
