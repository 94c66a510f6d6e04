"""Metrics that are right with several processes.

After `share()`, which is for the parent before it makes metrics and starts children, each process writes its numbers to files of its own there, and whoever is asked adds them up. Without it, the
numbers of this one process are shown.

A dead process's gauges vanish and its counts must not: they are moved to one file of the departed, so that totals never
go back and files do not pile up however often a worker is started again.
"""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import os
import shutil
import stat
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"

SOON_SECONDS = 0.25
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Across = Literal["sum", "max", "min", "latest"]
_MODES: dict[Across, Literal["livesum", "livemax", "livemin", "livemostrecent"]] = {
    "sum": "livesum",
    "max": "livemax",
    "min": "livemin",
    "latest": "livemostrecent",
}
_DEPARTED = "departed"
_process = [os.getpid()]


def _this_process() -> int:
    """Give our process id without a call to the system, which the library would make at every step of a counter."""
    return _process[0]


def _note_process() -> None:
    _process[0] = os.getpid()


os.register_at_fork(after_in_child=_note_process)
if DIRECTORY in os.environ:
    values.ValueClass = values.MultiProcessValue(_this_process)  # type: ignore[no-untyped-call]
_PREFIX = "headgate-metrics-"
_OWNER = ".owner"
_NEW_SECONDS = 60.0
_owned: list[IO[bytes]] = []
_collectors: list[Collector] = []
_unflushed: set[Sums] = set()


def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
    """Make a count that only grows."""
    return Counter(_ours(name), text, labels)


def gauge(name: str, text: str, labels: Sequence[str] = (), *, across: Across = "sum") -> Gauge:
    """Make a number that goes up and down; `across` says what several processes' numbers make together."""
    return Gauge(_ours(name), text, labels, multiprocess_mode=_MODES[across])


def histogram(name: str, text: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = SECONDS) -> Histogram:
    """Make a distribution; the buckets are for seconds unless given."""
    return Histogram(_ours(name), text, labels, buckets=buckets)


class Sums:
    """A distribution on a hot path: values are counted in plain numbers and added to the shared ones a little later.

    That costs less. Whoever counts many values of many kinds flushes them all together; `observe` sees to it by itself.
    """

    __slots__ = ("_bounds", "_counts", "_due_in", "_shared", "_sum")

    def __init__(self, shared: Histogram, bounds: Sequence[float] = SECONDS) -> None:
        self._shared = shared
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        self._due_in: asyncio.AbstractEventLoop | None = None

    def count(self, value: float) -> None:
        """Count a value until the next flush."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def observe(self, value: float) -> None:
        """Count a value, and flush it soon."""
        self.count(value)
        loop = asyncio.get_running_loop()
        if self._due_in is not loop:
            self._due_in = loop
            _unflushed.add(self)
            loop.call_later(SOON_SECONDS, self.flush)

    def flush(self) -> None:
        """Add what was counted to the shared numbers."""
        self._due_in = None
        _unflushed.discard(self)
        counts, self._counts = self._counts, [0] * len(self._counts)
        total, self._sum = self._sum, 0.0
        # The library has no way to observe many values at once; these are the two fields its own observe() adds to.
        self._shared._sum.inc(total)
        for index, number in enumerate(counts):
            if number:
                self._shared._buckets[index].inc(number)


@atexit.register
def flush() -> None:
    """Add what was counted everywhere in this process to the shared numbers; no loop is left to do it at its end."""
    for sums in tuple(_unflushed):
        sums.flush()


def collect(source: Callable[[], Iterable[Metric]]) -> None:
    """Add numbers that are looked up when somebody asks; `source` runs in the process that answers."""
    _collectors.append(_Source(source))


def share(directory: Path | None = None) -> Path:
    """Make the directory where this process and those it starts keep their numbers together.

    Metrics made before this call stay out of it. The caller removes the directory when the last process has gone.
    """
    if directory is None:
        _remove_orphans(Path(tempfile.gettempdir()))
    made = Path(tempfile.mkdtemp(prefix=_PREFIX)) if directory is None else directory
    made.mkdir(parents=True, exist_ok=True)
    _own(made)
    os.environ[DIRECTORY] = str(made)
    if values.ValueClass is values.MutexValue:  # the library looked at the environment when it was imported
        values.ValueClass = values.MultiProcessValue(_this_process)  # type: ignore[no-untyped-call]
    return made


def exposition() -> bytes:
    """Give all metrics in Prometheus' text format."""
    flush()
    shared = os.environ.get(DIRECTORY)
    if not shared:
        return generate_latest(REGISTRY) + _looked_up()
    directory = Path(shared)
    registry = CollectorRegistry()
    with _locked(directory):
        _retire(directory)
        MultiProcessCollector(registry, path=shared)  # type: ignore[no-untyped-call]
        return generate_latest(registry) + _looked_up()


class _Source(Collector):
    def __init__(self, source: Callable[[], Iterable[Metric]]) -> None:
        self._source = source

    def collect(self) -> Iterable[Metric]:
        return self._source()


def _looked_up() -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    for collector in _collectors:
        registry.register(collector)
    return generate_latest(registry) if _collectors else b""


def _ours(name: str) -> str:
    if not name.startswith("headgate_"):
        raise ValueError(f"a metric's name begins with headgate_: {name}")
    return name


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep other readers out: between the move of a count and the removal of its file it would be counted twice."""
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _retire(directory: Path) -> None:
    """Drop the gauges of dead processes, and move their counts to the file of the departed."""
    for file in directory.glob("*.db"):
        kind, _, owner = file.stem.rpartition("_")
        if not owner.isdigit() or _alive(int(owner)):
            continue
        if not kind.startswith("gauge"):
            departed = MmapedDict(str(directory / f"{kind}_{_DEPARTED}.db"))  # type: ignore[no-untyped-call]
            for key, value, _time, _position in MmapedDict.read_all_values_from_file(str(file)):  # type: ignore[no-untyped-call]
                before, _ = departed.read_value(key)  # type: ignore[no-untyped-call]
                departed.write_value(key, before + value, 0.0)  # type: ignore[no-untyped-call]
            departed.close()  # type: ignore[no-untyped-call]
        file.unlink(missing_ok=True)


def _own(directory: Path) -> None:
    """Hold a lock in the directory for as long as this process lives, however it ends."""
    owner = (directory / _OWNER).open("wb")
    fcntl.flock(owner, fcntl.LOCK_SH)
    _owned.append(owner)


def _remove_orphans(beside: Path) -> None:
    """Remove directories of ours whose owner was killed before it could."""
    for directory in beside.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            facts = directory.lstat()
            ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
            if not ours or time.time() - facts.st_mtime < _NEW_SECONDS:  # one that is being made is not locked yet
                continue
            with (directory / _OWNER).open("rb") as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
