"""Metrics that are right with several processes.

After `share()`, which is for the parent before it makes metrics and starts children, each process writes its numbers to files of its own there, and whoever is asked adds them up. Without it, the
numbers of this one process are shown.

A dead process's gauges vanish and its counts must not: they are moved to one file of the departed, so that totals never
go back and files do not pile up however often a worker is started again.

Metrics with a label whose values come from outside are made with `Names` of `kit.named_metrics`, which bounds their number.
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
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from headgate.kit.named_metrics import (
    SECONDS,
    Across,
    MetricSeries,
    changes,
    counts_kept,
    merged,
    own_name,
    rendered,
    snapshots,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"

SOON_SECONDS = 0.25

_MODES: dict[Across, Literal["livesum", "livemax", "livemin", "livemostrecent"]] = {
    "sum": "livesum",
    "max": "livemax",
    "min": "livemin",
    "latest": "livemostrecent",
}
_DEPARTED = "departed"
_NAMED = "named"
_PATIENCE_SECONDS = 1.0
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
_preparing: list[Callable[[], Awaitable[object]]] = []
_shared: list[tuple[int, int]] = [(0, 0)]
_sole: dict[str, IO[bytes]] = {}


def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
    """Make a count that only grows."""
    return Counter(own_name(name, labels), text, labels)


def gauge(name: str, text: str, labels: Sequence[str] = (), *, across: Across = "sum") -> Gauge:
    """Make a number that goes up and down; `across` says what several processes' numbers make together."""
    return Gauge(own_name(name, labels), text, labels, multiprocess_mode=_MODES[across])


def histogram(name: str, text: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = SECONDS) -> Histogram:
    """Make a distribution; the buckets are for seconds unless given."""
    return Histogram(own_name(name, labels), text, labels, buckets=buckets)


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
    share_named()


def share_named() -> None:
    """Write this process's named metrics where the processes that share them find them, if they have changed."""
    shared = os.environ.get(DIRECTORY)
    state = (_this_process(), changes())
    if shared and changes() and state != _shared[0]:
        with suppress(FileNotFoundError):  # the directory goes with the last process that needs it
            _write_series(Path(shared), str(_this_process()), snapshots())
            _shared[0] = state


def before_scrape(prepare: Callable[[], Awaitable[object]]) -> None:
    """Have numbers brought up to date before they are shown; a scrape waits a second for it at most."""
    _preparing.append(prepare)


def sole(what: str) -> bool:
    """Tell whether it is this process that reads something for all that share its metrics; once True, it stays so."""
    shared = os.environ.get(DIRECTORY)
    if not shared or what in _sole:
        return True
    lock = (Path(shared) / f".{what}").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return False
    _sole[what] = lock
    return True


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


async def scrape() -> bytes:
    """Give all metrics in Prometheus' text format, without holding up the event loop: they are rendered in a thread."""
    if _preparing:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await asyncio.gather(*(prepare() for prepare in _preparing))
    flush()
    return await asyncio.to_thread(_rendered)


def exposition() -> bytes:
    """Give all metrics in Prometheus' text format, at once; where an event loop runs, `scrape` is for that."""
    flush()
    return _rendered()


def _rendered() -> bytes:
    shared = os.environ.get(DIRECTORY)
    if not shared:
        return generate_latest(REGISTRY) + _looked_up()
    directory = Path(shared)
    registry = CollectorRegistry()
    with _locked(directory):
        _retire(directory)
        MultiProcessCollector(registry, path=shared)  # type: ignore[no-untyped-call]
        named = merged([_read_series(file) for file in sorted(directory.glob(f"{_NAMED}_*"))])
        registry.register(_Source(lambda: rendered(named)))
        return generate_latest(registry) + _looked_up()


class _Source(Collector):
    def __init__(self, source: Callable[[], Iterable[Metric]]) -> None:
        self._source = source

    def collect(self) -> Iterable[Metric]:
        return self._source()

    def describe(self) -> Iterable[Metric]:
        return ()


def _looked_up() -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    for collector in _collectors:
        registry.register(collector)
    return generate_latest(registry) if _collectors else b""


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
    _retire_named(directory)


def _retire_named(directory: Path) -> None:
    """Do the same for named metrics; the counts of names that nobody alive shows go as well."""
    living: list[Sequence[MetricSeries]] = []
    departed: list[Sequence[MetricSeries]] = []
    ended = []
    for file in sorted(directory.glob(f"{_NAMED}_*")):
        owner = file.stem.rpartition("_")[2]
        if owner.isdigit() and _alive(int(owner)):
            living.append(_read_series(file))
        else:
            departed.append(_read_series(file))
            ended.append(file)
    if departed:
        _write_series(directory, _DEPARTED, counts_kept(merged(departed), merged(living)))
    for file in ended:
        if file.stem != f"{_NAMED}_{_DEPARTED}":
            file.unlink(missing_ok=True)


def _read_series(file: Path) -> Sequence[MetricSeries]:
    return msgspec.msgpack.decode(file.read_bytes(), type=list[MetricSeries])


def _write_series(directory: Path, owner: str, series: Sequence[MetricSeries]) -> None:
    """Write a file that readers see either as it was or as it is."""
    new = directory / f".{_NAMED}_{owner}"
    new.write_bytes(msgspec.msgpack.encode(series))
    new.replace(directory / f"{_NAMED}_{owner}.msgpack")


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
