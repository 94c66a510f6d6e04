"""Prometheus metrics that are correct with several processes.

A parent calls `share()` before it makes metrics and starts children. Then each process writes its numbers to files of its own in
one directory, and the process that is scraped adds them up. Without it, only the numbers of this process are shown.

The gauges of a dead process are dropped. Its counts are moved to one file of ended processes, so that totals never decrease and
the number of files stays bounded however often a worker restarts.

Metrics with a label whose values come from outside are made with `LabelNames` of `kit.named_metrics`, which bounds their number.

prometheus_client has no public way to choose its files after its import, to merge them, or to add many values to a histogram at
once. So this module uses its `values`, `mmap_dict`, `Histogram._sum` and `_buckets`; pyproject.toml bounds its version.
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
_ENDED = "departed"
_NAMED = "named"
_UPDATE_SECONDS = 1.0
_process = [os.getpid()]


def _this_process() -> int:
    """Give our process id without a system call, which the library would make for every increment."""
    return _process[0]


def _note_process() -> None:
    _process[0] = os.getpid()


def _use_shared_files() -> None:
    """Have metrics that are made from now on write to the shared files."""
    values.ValueClass = values.MultiProcessValue(_this_process)  # type: ignore[no-untyped-call]


os.register_at_fork(after_in_child=_note_process)
if DIRECTORY in os.environ:
    _use_shared_files()
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
    """Make a counter."""
    return Counter(own_name(name, labels), text, labels)


def gauge(name: str, text: str, labels: Sequence[str] = (), *, across: Across = "sum") -> Gauge:
    """Make a gauge; `across` says how the numbers of several processes are combined."""
    return Gauge(own_name(name, labels), text, labels, multiprocess_mode=_MODES[across])


def histogram(name: str, text: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = SECONDS) -> Histogram:
    """Make a histogram; the buckets are for seconds unless given."""
    return Histogram(own_name(name, labels), text, labels, buckets=buckets)


class Sums:
    """A histogram for hot paths: counts values in plain numbers and adds them to the shared histogram a little later.

    `observe` schedules the flush itself; a caller with many histograms uses `count` and flushes them together.
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
        """Add the counted values to the shared histogram."""
        self._due_in = None
        _unflushed.discard(self)
        counts, self._counts = self._counts, [0] * len(self._counts)
        total, self._sum = self._sum, 0.0
        # The two fields that the library's own observe() adds to.
        self._shared._sum.inc(total)
        for index, number in enumerate(counts):
            if number:
                self._shared._buckets[index].inc(number)


@atexit.register
def flush() -> None:
    """Flush all histograms and named metrics of this process; at its exit, no loop is left to do it."""
    for sums in tuple(_unflushed):
        sums.flush()
    share_named()


def share_named() -> None:
    """Write this process's named metrics to the shared directory, if they have changed."""
    shared = os.environ.get(DIRECTORY)
    state = (_this_process(), changes())
    if shared and changes() and state != _shared[0]:
        with suppress(FileNotFoundError):  # the directory is removed with the last process
            _write_series(Path(shared), str(_this_process()), snapshots())
            _shared[0] = state


def before_scrape(prepare: Callable[[], Awaitable[object]]) -> None:
    """Register a coroutine function that updates metrics before a scrape, which waits at most a second for it."""
    _preparing.append(prepare)


def sole(what: str) -> bool:
    """Tell whether this process is the one that reads something for all that share its metrics; once True, it stays so."""
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
    """Add metrics that are computed at each scrape; `source` runs in the process that is scraped."""
    _collectors.append(_Source(source))


def share(directory: Path | None = None) -> Path:
    """Make the directory in which this process and its children share their metrics.

    Metrics made before this call are not shared. The caller removes the directory after the last process has ended.
    """
    if directory is None:
        _remove_orphans(Path(tempfile.gettempdir()))
    made = Path(tempfile.mkdtemp(prefix=_PREFIX)) if directory is None else directory
    made.mkdir(parents=True, exist_ok=True)
    _own(made)
    os.environ[DIRECTORY] = str(made)
    if values.ValueClass is values.MutexValue:  # the library read the environment when it was imported
        _use_shared_files()
    return made


async def scrape() -> bytes:
    """Give all metrics in Prometheus' text format, rendered in a thread so that the event loop is not blocked."""
    if _preparing:
        with suppress(TimeoutError):
            async with asyncio.timeout(_UPDATE_SECONDS):
                await asyncio.gather(*(prepare() for prepare in _preparing))
    flush()
    return await asyncio.to_thread(_rendered)


def exposition() -> bytes:
    """Give all metrics in Prometheus' text format, without an event loop."""
    flush()
    return _rendered()


def _rendered() -> bytes:
    shared = os.environ.get(DIRECTORY)
    if not shared:
        return generate_latest(REGISTRY) + _computed()
    directory = Path(shared)
    registry = CollectorRegistry()
    with _locked(directory):
        _retire(directory)
        MultiProcessCollector(registry, path=shared)  # type: ignore[no-untyped-call]
        named = merged([_read_series(file) for file in sorted(directory.glob(f"{_NAMED}_*"))])
        registry.register(_Source(lambda: rendered(named)))
        return generate_latest(registry) + _computed()


class _Source(Collector):
    def __init__(self, source: Callable[[], Iterable[Metric]]) -> None:
        self._source = source

    def collect(self) -> Iterable[Metric]:
        return self._source()

    def describe(self) -> Iterable[Metric]:
        return ()


def _computed() -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    for collector in _collectors:
        registry.register(collector)
    return generate_latest(registry) if _collectors else b""


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock the directory: a count would be read twice between its move and the removal of its file."""
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _retire(directory: Path) -> None:
    """Drop the gauges of dead processes, and move their counts to the file of ended processes."""
    for file in directory.glob("*.db"):
        kind, _, owner = file.stem.rpartition("_")
        if not owner.isdigit() or _alive(int(owner)):
            continue
        if not kind.startswith("gauge"):
            ended_counts = MmapedDict(str(directory / f"{kind}_{_ENDED}.db"))  # type: ignore[no-untyped-call]
            for key, value, _time, _position in MmapedDict.read_all_values_from_file(str(file)):  # type: ignore[no-untyped-call]
                before, _ = ended_counts.read_value(key)  # type: ignore[no-untyped-call]
                ended_counts.write_value(key, before + value, 0.0)  # type: ignore[no-untyped-call]
            ended_counts.close()  # type: ignore[no-untyped-call]
        file.unlink(missing_ok=True)
    _retire_named(directory)


def _retire_named(directory: Path) -> None:
    """Do the same for named metrics; the counts of names that no living process shows are dropped too."""
    living: list[Sequence[MetricSeries]] = []
    ended_counts: list[Sequence[MetricSeries]] = []
    ended = []
    for file in sorted(directory.glob(f"{_NAMED}_*")):
        owner = file.stem.rpartition("_")[2]
        if owner.isdigit() and _alive(int(owner)):
            living.append(_read_series(file))
        else:
            ended_counts.append(_read_series(file))
            ended.append(file)
    if ended_counts:
        _write_series(directory, _ENDED, counts_kept(merged(ended_counts), merged(living)))
    for file in ended:
        if file.stem != f"{_NAMED}_{_ENDED}":
            file.unlink(missing_ok=True)


def _read_series(file: Path) -> Sequence[MetricSeries]:
    return msgspec.msgpack.decode(file.read_bytes(), type=list[MetricSeries])


def _write_series(directory: Path, owner: str, series: Sequence[MetricSeries]) -> None:
    """Write a file atomically."""
    new = directory / f".{_NAMED}_{owner}"
    new.write_bytes(msgspec.msgpack.encode(series))
    new.replace(directory / f"{_NAMED}_{owner}.msgpack")


def _own(directory: Path) -> None:
    """Hold a lock in the directory until this process ends."""
    owner = (directory / _OWNER).open("wb")
    fcntl.flock(owner, fcntl.LOCK_SH)
    _owned.append(owner)


def _remove_orphans(beside: Path) -> None:
    """Remove directories whose owner was killed before it could remove them."""
    for directory in beside.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            facts = directory.lstat()
            ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
            if not ours or time.time() - facts.st_mtime < _NEW_SECONDS:  # a new one may not be locked yet
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
