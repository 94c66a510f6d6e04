"""Metrics labelled with names from outside (queues, services, upstreams), with a bounded number of series.

The busiest names have series of their own, and all others are counted under the name `other`. A deleted name loses its series.
The library's own metrics can do neither: they keep every label value until the process ends, and in shared files even longer. So
these metrics are plain numbers, which `kit.metrics` renders, and which processes that share their metrics exchange as snapshots.

Counts of a name that loses its series are not moved to `other`, because Prometheus would count them twice. Later counts of that
name go to `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from itertools import accumulate
from math import inf
from time import time
from typing import Final, Literal, TypeVar

import msgspec
from prometheus_client import REGISTRY
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MOST_NAMES: Final = 100
OTHER: Final = "other"
RANK_AFTER: Final = 1024
LEAST_USES: Final = 16  # of a name that takes another's series: those used a few times do not drive each other out
MOST_CANDIDATES: Final = 4096
MOST_NUMBERS: Final = 10_000  # of one gauge, since it keeps those of names that are not shown too

Across = Literal["sum", "max", "min", "latest"]
Kind = Literal["counter", "gauge", "histogram", "unknown"]
Key = tuple[str, ...]
_PROMETHEUS_LABELS: Final = frozenset({"job", "instance"})
_families: list[_Family] = []
_changes = [0]
F = TypeVar("F", bound="_Family")


def own_name(name: str, labels: Sequence[str]) -> str:
    """Check a metric's name and labels, and give the name."""
    if not name.startswith("headgate_"):
        raise ValueError(f"a metric's name begins with headgate_: {name}")
    if taken := sorted(_PROMETHEUS_LABELS.intersection(labels)):
        raise ValueError(f"Prometheus sets the label {taken[0]} itself: {name}")
    return name


class MetricSeries(msgspec.Struct, array_like=True):
    """A snapshot of one metric of one process: its numbers by label values.

    A counter has one number, a gauge its value and the time it was set, a histogram its buckets and the sum. `read_at` is when
    readings were replaced: of several processes' readings, the newest are shown.
    """

    name: str
    text: str
    kind: Kind
    labels: Key
    across: Across
    bounds: list[float]
    samples: list[tuple[Key, list[float]]]
    read_at: float = 0.0


class LabelNames:
    """The values of one label; at most `most` of them are shown by name, chosen by how often they are used."""

    def __init__(self, label: str, most: int = MOST_NAMES) -> None:
        self.label = label
        self._most = most
        self._shown: dict[str, int] = {}
        self._candidates: dict[str, int] = {}
        self._unranked = 0
        self._families_here: list[_Family] = []

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> NamedCounter:
        """Make a counter; `labels` come after the name, and their values are bounded."""
        return self._add(NamedCounter(self, own_name(name, labels), text, "counter", labels))

    def gauge(self, name: str, text: str, labels: Sequence[str] = (), *, across: Across = "sum") -> NamedGauge:
        """Make a gauge; `across` says how the numbers of several processes are combined."""
        return self._add(NamedGauge(self, own_name(name, labels), text, "gauge", labels, across))

    def histogram(
        self, name: str, text: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = SECONDS
    ) -> NamedHistogram:
        """Make a histogram; the buckets are for seconds unless given."""
        return self._add(NamedHistogram(self, own_name(name, labels), text, "histogram", labels, bounds=buckets))

    def shown(self) -> frozenset[str]:
        """Give the names that have series of their own."""
        return frozenset(self._shown)

    def known(self) -> frozenset[str]:
        """Give all names with stored numbers, shown or not."""
        return frozenset(self._shown).union(self._candidates, *(family.kept() for family in self._families_here))

    def shown_as(self, name: str) -> str:
        """Count a use of a name, and give its label value: the name or `other`."""
        shown = self._shown
        _changes[0] += 1
        if name in shown:
            shown[name] += 1
            return name
        if len(shown) < self._most:
            shown[name] = 1
            return name
        if name in self._candidates or len(self._candidates) < MOST_CANDIDATES:
            self._candidates[name] = self._candidates.get(name, 0) + 1
        self._unranked += 1
        if self._unranked >= RANK_AFTER:
            self._rank()
        return name if name in shown else OTHER

    def forget(self, *names: str) -> None:
        """Drop the numbers of deleted names, shown or not."""
        _changes[0] += 1
        gone = frozenset(names)
        shown = gone.intersection(self._shown)
        for name in gone:
            self._candidates.pop(name, None)
            self._shown.pop(name, None)
        for family in self._families_here:
            family.forget(gone, shown)

    def _rank(self) -> None:
        """Give the series of hardly used names to names used at least twice as often; older uses count half."""
        rising = sorted(self._candidates.items(), key=lambda item: -item[1])
        falling = sorted(self._shown.items(), key=lambda item: item[1])
        for (name, uses), (least, least_uses) in zip(rising, falling, strict=False):
            if uses <= max(LEAST_USES, 2 * least_uses):
                break
            del self._shown[least], self._candidates[name]
            for family in self._families_here:
                family.stop_showing(least)
            self._shown[name] = uses
        self._shown = {name: uses // 2 for name, uses in self._shown.items()}
        self._candidates = {name: uses // 2 for name, uses in self._candidates.items() if uses > 1}
        self._unranked = 0

    def _add(self, family: F) -> F:
        self._families_here.append(family)
        return family


class _Family:
    """One metric; the first label is the name."""

    def __init__(
        self,
        names: LabelNames,
        name: str,
        text: str,
        kind: Kind,
        labels: Sequence[str],
        across: Across = "sum",
        bounds: Sequence[float] = (),
    ) -> None:
        self._names = names
        self._series = MetricSeries(name, text, kind, (names.label, *labels), across, list(bounds), [])
        self._samples: dict[Key, list[float]] = {}
        _families.append(self)

    def kept(self) -> set[str]:
        """Give the names whose numbers are kept although they are not shown: none, since they are counted under `other`."""
        return set()

    def forget(self, gone: Set[str], shown: Set[str]) -> None:
        """Remove the series of deleted names; only `shown` ones had series."""
        self._drop(shown)

    def stop_showing(self, name: str) -> None:
        """Count a name under `other` from now on."""
        self._drop({name})

    def snapshot(self) -> MetricSeries:
        """Give the numbers now; any thread may ask."""
        samples = [(key, list(numbers)) for key, numbers in list(self._samples.items())]
        return msgspec.structs.replace(self._series, samples=samples)

    def _drop(self, names: Set[str]) -> None:
        for key in [key for key in list(self._samples) if key[0] in names]:
            self._samples.pop(key, None)


class NamedCounter(_Family):
    """Counts by name."""

    def labels(self, name: str, *labels: str) -> CounterSeries:
        """Give one counter, which starts at 0; it stays usable when its name loses its series."""
        self.add(name, labels, 0)
        return CounterSeries(self, name, labels)

    def add(self, name: str, labels: Key, amount: float) -> None:
        """Add to a count."""
        key = (self._names.shown_as(name), *labels)
        try:
            self._samples[key][0] += amount
        except KeyError:
            self._samples[key] = [amount]


class NamedHistogram(_Family):
    """Distributions by name."""

    def labels(self, name: str, *labels: str) -> HistogramSeries:
        """Give one histogram; it stays usable when its name loses its series."""
        return HistogramSeries(self, name, labels)

    def add(self, name: str, labels: Key, value: float) -> None:
        """Count a value."""
        key = (self._names.shown_as(name), *labels)
        numbers = self._samples.get(key)
        if numbers is None:
            numbers = self._samples[key] = [0.0] * (len(self._series.bounds) + 2)
        numbers[bisect_left(self._series.bounds, value)] += 1
        numbers[-1] += value


class NamedGauge(_Family):
    """Gauges by name. Each name's number is kept, and numbers of names that are not shown are combined only in the snapshot.

    Above `MOST_NUMBERS`, zeros and the numbers set longest ago are dropped.
    """

    def labels(self, name: str, *labels: str) -> GaugeSeries:
        """Give one gauge, which starts at 0; it stays usable when its name loses its series."""
        self.add(name, labels, 0)
        return GaugeSeries(self, name, labels)

    def put(self, name: str, labels: Key, value: float) -> None:
        """Set the number."""
        self._names.shown_as(name)
        key = (name, *labels)
        if len(self._samples) >= MOST_NUMBERS and key not in self._samples:
            self._make_room()
        self._samples[key] = [value, time()]

    def add(self, name: str, labels: Key, amount: float) -> None:
        """Add to a number; it never falls below 0, because a name may be dropped and used again meanwhile."""
        self.put(name, labels, max(0.0, self._samples.get((name, *labels), (0.0,))[0] + amount))

    def kept(self) -> set[str]:
        """Give the names that have a number here."""
        return {key[0] for key in list(self._samples)}

    def forget(self, gone: Set[str], shown: Set[str]) -> None:
        """Remove the numbers of deleted names, also of those that are only part of `other`."""
        self._drop(gone)

    def stop_showing(self, name: str) -> None:
        """Keep the number, which is now part of `other`."""

    def snapshot(self) -> MetricSeries:
        """Give the numbers now; those of names that are not shown are combined as `other`."""
        shown = self._names.shown()
        samples: dict[Key, list[float]] = {}
        for key, (value, when) in list(self._samples.items()):
            if key[0] in shown:
                samples[key] = [value, when]
                continue
            if not value:
                self._samples.pop(key, None)
            other = (OTHER, *key[1:])
            samples[other] = _combined(self._series.across, samples.get(other), [value, when], folding=True)
        return msgspec.structs.replace(self._series, samples=list(samples.items()))

    def _make_room(self) -> None:
        """Drop a quarter of the numbers that are not shown, so that it need not be done again for each new name."""
        shown = self._names.shown()
        unshown = [(key, numbers) for key, numbers in list(self._samples.items()) if key[0] not in shown]
        unshown.sort(key=lambda item: (item[1][0] != 0, item[1][1]))
        for key, _ in unshown[: 1 + len(unshown) // 4]:
            self._samples.pop(key, None)


class NamedReadings(_Family):
    """Gauges that are read elsewhere and replaced all together."""

    def __init__(self, label: str, name: str, text: str, kind: Literal["gauge", "unknown"] = "gauge") -> None:
        super().__init__(LabelNames(label), name, text, kind, (), "latest")

    def replace(self, values: Mapping[str, float]) -> None:
        """Replace all numbers by these."""
        _changes[0] += 1
        self._samples = {(name,): [value] for name, value in values.items()}
        self._series = msgspec.structs.replace(self._series, read_at=time())


class CounterSeries(msgspec.Struct, frozen=True):
    """One count of a family."""

    family: NamedCounter
    name: str
    labels: Key

    def inc(self, amount: float = 1) -> None:
        """Add to it."""
        self.family.add(self.name, self.labels, amount)


class HistogramSeries(msgspec.Struct, frozen=True):
    """One distribution of a family."""

    family: NamedHistogram
    name: str
    labels: Key

    def observe(self, value: float) -> None:
        """Count a value."""
        self.family.add(self.name, self.labels, value)


class GaugeSeries(msgspec.Struct, frozen=True):
    """One number of a family that goes up and down."""

    family: NamedGauge
    name: str
    labels: Key

    def set(self, value: float) -> None:
        """Set it."""
        self.family.put(self.name, self.labels, value)

    def inc(self, amount: float = 1) -> None:
        """Add to it."""
        self.family.add(self.name, self.labels, amount)

    def dec(self) -> None:
        """Take one away."""
        self.family.add(self.name, self.labels, -1)

    @contextmanager
    def track_inprogress(self) -> Iterator[None]:
        """Count a call in progress."""
        self.inc()
        try:
            yield
        finally:
            self.dec()


class _Collector(Collector):
    """Collects the named metrics of a process that does not share its metrics."""

    def collect(self) -> Iterable[Metric]:
        return rendered(snapshots())

    def describe(self) -> Iterable[Metric]:
        return ()


REGISTRY.register(_Collector())


def changes() -> int:
    """Give a number that grows with every change of a named metric."""
    return _changes[0]


def snapshots() -> list[MetricSeries]:
    """Give all named metrics of this process."""
    return [family.snapshot() for family in list(_families)]


def merged(processes: Sequence[Sequence[MetricSeries]]) -> list[MetricSeries]:
    """Merge the metrics of several processes."""
    found: dict[str, tuple[MetricSeries, dict[Key, list[float]]]] = {}
    for process in processes:
        for series in process:
            known = found.get(series.name)
            if known is None or series.read_at > known[0].read_at:
                found[series.name] = series, dict(series.samples)
                continue
            if series.read_at or known[0].read_at:
                continue
            samples = known[1]
            for key, numbers in series.samples:
                samples[key] = _combined(series.across, samples.get(key), numbers)
    return [msgspec.structs.replace(series, samples=list(samples.items())) for series, samples in found.values()]


def counts_kept(departed: Sequence[MetricSeries], living: Sequence[MetricSeries]) -> list[MetricSeries]:
    """Give the counts of ended processes that must be kept: those of `other`, and of names that a living process shows.

    The rest may be dropped: to Prometheus, a counter that disappears and starts again is a new one.
    """
    shown = {(series.name, key[0]) for series in living for key, _ in series.samples}
    kept = []
    for series in departed:
        if series.kind in ("counter", "histogram"):
            samples = [
                (key, numbers) for key, numbers in series.samples if key[0] == OTHER or (series.name, key[0]) in shown
            ]
            kept.append(msgspec.structs.replace(series, samples=samples))
    return kept


def rendered(families: Iterable[MetricSeries]) -> Iterator[Metric]:
    """Convert snapshots to the library's metric families."""
    for series in families:
        if series.kind == "histogram":
            histogram = HistogramMetricFamily(series.name, series.text, labels=series.labels)
            bounds = [floatToGoString(bound) for bound in (*series.bounds, inf)]  # type: ignore[no-untyped-call]
            for key, (*buckets, total) in series.samples:
                histogram.add_metric(key, list(zip(bounds, accumulate(buckets), strict=True)), total)
            yield histogram
        elif series.kind == "counter":
            counter = CounterMetricFamily(series.name, series.text, labels=series.labels)
            for key, numbers in series.samples:
                counter.add_metric(key, numbers[0])
            yield counter
        elif series.kind == "gauge":
            gauge = GaugeMetricFamily(series.name, series.text, labels=series.labels)
            for key, numbers in series.samples:
                gauge.add_metric(key, numbers[0])
            yield gauge
        else:
            # The library would add _total to a counter's name.
            untyped = Metric(series.name, series.text, "unknown")
            for key, numbers in series.samples:
                untyped.add_sample(series.name, dict(zip(series.labels, key, strict=True)), numbers[0])
            yield untyped


def _combined(across: Across, one: list[float] | None, other: list[float], *, folding: bool = False) -> list[float]:
    """Combine two samples of one series; `folding` several names into one adds up numbers of which else the latest is taken."""
    if one is None:
        return other
    match across:
        case "max":
            return max(one, other)
        case "min":
            return min(one, other)
        case "latest" if not folding:
            return max(one, other, key=lambda numbers: numbers[1])
        case _ if len(one) == 2 and folding:
            return [one[0] + other[0], max(one[1], other[1])]
        case _:
            return [mine + theirs for mine, theirs in zip(one, other, strict=True)]
