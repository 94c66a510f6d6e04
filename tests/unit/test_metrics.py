"""Metrics: one process, several processes, and processes that have gone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.metrics_core import GaugeMetricFamily

from headgate.kit import metrics
from tests.topology import eventually

_CHILD = """
import sys
from headgate.kit import metrics
metrics.share(__import__("pathlib").Path(sys.argv[1]))
asked = metrics.counter("headgate_asked_total", "asked", ["route"])
inside = metrics.gauge("headgate_inside", "inside")
most = metrics.gauge("headgate_most", "most", across="max")
took = metrics.histogram("headgate_took_seconds", "took", buckets=(0.1, 1))
for line in sys.stdin:
    word = line.strip()
    if word == "show":
        print(metrics.exposition().decode().replace("\\n", "|"), flush=True)
    else:
        asked.labels("a").inc(int(word)); inside.set(int(word)); most.set(int(word)); took.observe(0.5)
        print("done", flush=True)
"""


_SHARE = """
import os, pathlib, sys
from headgate.kit import metrics
print(metrics.share(pathlib.Path(sys.argv[1])) == pathlib.Path(os.environ[metrics.DIRECTORY]))
"""


class Child:
    """A process with metrics that it shares; it does as it is told, line by line."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, word: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def value(exposition: str, sample: str) -> float | None:
    found = re.search(rf"(?:^|\|){re.escape(sample)} ([^|\n]+)", exposition, re.MULTILINE)
    return float(found[1]) if found else None


def test_one_process_shows_its_own_numbers() -> None:
    counted = metrics.counter("headgate_test_single_total", "For this test.", ["kind"])
    counted.labels("a").inc(2)
    assert value(metrics.exposition().decode(), 'headgate_test_single_total{kind="a"}') == 2


def test_a_name_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ValueError, match="headgate_"):
        metrics.counter("requests_total", "whose?")


@pytest.mark.parametrize("label", ["job", "instance"])
def test_a_label_that_prometheus_sets_itself_is_refused(label: str) -> None:
    with pytest.raises(ValueError, match=label):
        metrics.gauge("headgate_test_label", "whose?", [label])


def test_numbers_that_are_looked_up_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_collectors", [])
    metrics.collect(lambda: [GaugeMetricFamily("headgate_test_waiting", "In line.", value=7)])
    assert value(metrics.exposition().decode(), "headgate_test_waiting") == 7


def test_several_processes_are_added_up_and_the_dead_keep_their_counts_but_not_their_gauges(tmp_path: Path) -> None:
    children = [Child(tmp_path) for _ in range(3)]
    try:
        for child, word in zip(children, ("1", "2", "4"), strict=True):
            assert child.tell(word) == "done\n"
        shown = children[0].tell("show")
        assert value(shown, 'headgate_asked_total{route="a"}') == 7
        assert value(shown, "headgate_inside") == 7
        assert value(shown, "headgate_most") == 4
        assert value(shown, 'headgate_took_seconds_bucket{le="1.0"}') == 3
        assert value(shown, "headgate_took_seconds_count") == 3

        children[2].end()
        for _ in range(2):  # asking again must not count the departed again
            shown = children[0].tell("show")
            assert value(shown, 'headgate_asked_total{route="a"}') == 7
            assert value(shown, "headgate_inside") == 3
            assert value(shown, "headgate_most") == 2
            assert value(shown, "headgate_took_seconds_count") == 3
        assert not list(tmp_path.glob(f"*_{children[2].process.pid}.db"))

        children[1].end()
        shown = children[0].tell("show")
        assert value(shown, 'headgate_asked_total{route="a"}') == 7
        assert value(shown, "headgate_inside") == 1
        owners = {file.stem.rpartition("_")[2] for file in tmp_path.glob("*.db")}
        assert owners == {str(children[0].process.pid), "departed"}
    finally:
        for child in children:
            child.end()


def test_the_directory_is_made_and_passed_on_to_children(tmp_path: Path) -> None:
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            _SHARE,
            str(tmp_path / "made"),
        ],
        capture_output=True,
        text=True,
        check=True,
        env={key: text for key, text in os.environ.items() if key != metrics.DIRECTORY},
    )
    assert told.stdout == "True\n"
    assert (tmp_path / "made").is_dir()


_OWNER = """
import sys
from headgate.kit import metrics
print(metrics.share(), flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_lives_stays(tmp_path: Path) -> None:
    def start() -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", _OWNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    def end(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate()

    killed, orphan = start()
    end(killed)
    living, kept = start()
    fresh_orphan_stayed = orphan.exists()  # it might be somebody's who has not locked it yet
    stranger = tmp_path / "headgate-metrics-stranger"
    stranger.mkdir()
    for directory in (orphan, kept, stranger):
        os.utime(directory, (0, 0))
    last, _ = start()
    end(last)
    end(living)
    assert fresh_orphan_stayed
    assert not orphan.exists()
    assert kept.exists()
    assert stranger.exists()


_COUNTS = """
import asyncio, pathlib, sys
from headgate.kit import metrics
metrics.share(pathlib.Path(sys.argv[1]))
sums = metrics.Sums(metrics.histogram("headgate_steps_seconds", "steps", buckets=(0.1, 1)), (0.1, 1))
async def observe():
    sums.observe(0.1); sums.observe(0.5); sums.observe(5)
asyncio.run(observe())  # a loop that ends before its timer
asyncio.run(observe())
if sys.argv[2] == "show":
    print(metrics.exposition().decode())
"""


@pytest.mark.parametrize("asked", ["show", "later"])
def test_what_was_counted_in_a_loop_that_ended_is_shown_and_outlives_its_process(tmp_path: Path, asked: str) -> None:
    command = [sys.executable, "-c", _COUNTS, str(tmp_path), asked]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if asked == "later":
        shown = subprocess.run(
            [sys.executable, "-c", _EXPOSES, str(tmp_path)], check=True, capture_output=True, text=True
        ).stdout
    assert 'headgate_steps_seconds_bucket{le="0.1"} 2.0' in shown
    assert 'headgate_steps_seconds_bucket{le="1.0"} 4.0' in shown
    assert 'headgate_steps_seconds_bucket{le="+Inf"} 6.0' in shown
    assert "headgate_steps_seconds_sum 11.2" in shown


_EXPOSES = """
import pathlib, sys
from headgate.kit import metrics
metrics.share(pathlib.Path(sys.argv[1]))
print(metrics.exposition().decode())
"""


@pytest.mark.anyio
async def test_sums_are_added_to_the_shared_numbers_by_themselves() -> None:
    shared = metrics.histogram("headgate_soon_seconds", "soon", buckets=(0.1, 1))
    sums = metrics.Sums(shared, (0.1, 1))
    for value in (0.1, 0.1001, 1, 2):
        sums.observe(value)
    assert shared._sum.get() == 0
    await eventually(lambda: shared._sum.get() == pytest.approx(3.2001), 5, "they are added")
    assert [bucket.get() for bucket in shared._buckets] == [1, 2, 1]
