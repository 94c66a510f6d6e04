"""Metrics labelled with names from outside (queues, services, upstreams): a bounded number of series for any number of names.

The busiest names have series of their own, and everything else is counted under the name `other`. A name that is gone takes its
series along. The library's own metrics can do neither: they keep every label value for as long as the process lives, and in
shared files even longer. So these are plain numbers, which `kit.metrics` renders, and which processes that share their metrics
exchange as snapshots.

Counts of a name that loses its own series are not moved to `other`: Prometheus has counted them already, and would count
them twice. What happens to the name from then on is counted there.
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
    """One family of one process, as processes tell each other: by label values, its numbers.

    A count has one number, a gauge its value and when it was set, a histogram its buckets and the sum. `read_at` is when
    readings were replaced: of several processes' readings, the newest count.
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
        self._mine: list[_Family] = []

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> NamedCounter:
        """Make a count that only grows; `labels` come after the name, and their values are bounded."""
        return self._add(NamedCounter(self, own_name(name, labels), text, "counter", labels))

    def gauge(self, name: str, text: str, labels: Sequence[str] = (), *, across: Across = "sum") -> NamedGauge:
        """Make a number that goes up and down; `across` says what several processes' numbers make together."""
        return self._add(NamedGauge(self, own_name(name, labels), text, "gauge", labels, across))

    def histogram(
        self, name: str, text: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = SECONDS
    ) -> NamedHistogram:
        """Make a distribution; the buckets are for seconds unless given."""
        return self._add(NamedHistogram(self, own_name(name, labels), text, "histogram", labels, bounds=buckets))

    def shown(self) -> frozenset[str]:
        """Give the names that have series of their own."""
        return frozenset(self._shown)

    def known(self) -> frozenset[str]:
        """Give the names of which anything is kept, shown or not."""
        return frozenset(self._shown).union(self._candidates, *(family.kept() for family in self._mine))

    def shown_as(self, name: str) -> str:
        """Count a use of a name, and give the label value that it is shown under."""
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
        """Drop all that is kept of names that are gone, shown or not."""
        _changes[0] += 1
        gone = frozenset(names)
        shown = gone.intersection(self._shown)
        for name in gone:
            self._candidates.pop(name, None)
            self._shown.pop(name, None)
        for family in self._mine:
            family.forget(gone, shown)

    def _rank(self) -> None:
        """Give the series of names that are hardly used to those used at least twice as often; older uses count half."""
        rising = sorted(self._candidates.items(), key=lambda item: -item[1])
        falling = sorted(self._shown.items(), key=lambda item: item[1])
        for (name, uses), (least, least_uses) in zip(rising, falling, strict=False):
            if uses <= max(LEAST_USES, 2 * least_uses):
                break
            del self._shown[least], self._candidates[name]
            for family in self._mine:
                family.stop_showing(least)
            self._shown[name] = uses
        self._shown = {name: uses // 2 for name, uses in self._shown.items()}
        self._candidates = {name: uses // 2 for name, uses in self._candidates.items() if uses > 1}
        self._unranked = 0

    def _add(self, family: F) -> F:
        self._mine.append(family)
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
        """Give the names whose numbers are kept though they are not shown: none, since they are counted under `other`."""
        return set()

    def forget(self, gone: Set[str], shown: Set[str]) -> None:
        """Remove all series of names that are gone; those of them that were shown had series of their own."""
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
        """Give one count, which begins at 0; it stays good whatever becomes of its series."""
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
        """Give one distribution; it stays good whatever becomes of its series."""
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
    """Numbers that go up and down, by name. Each name's own is kept, and they are put together only when shown.

    Of more names than anybody looks at, those that are 0 and those that were set longest ago are not kept.
    """

    def labels(self, name: str, *labels: str) -> GaugeSeries:
        """Give one number, which begins at 0; it stays good whatever becomes of its series."""
        self.add(name, labels, 0)
        return GaugeSeries(self, name, labels)

    def put(self, name: str, labels: Key, value: float) -> None:
        """Say what the number is now."""
        self._names.shown_as(name)
        key = (name, *labels)
        if len(self._samples) >= MOST_NUMBERS and key not in self._samples:
            self._make_room()
        self._samples[key] = [value, time()]

    def add(self, name: str, labels: Key, amount: float) -> None:
        """Add to a number of things in progress, which is never below 0: a name may be dropped and used again meanwhile."""
        self.put(name, labels, max(0.0, self._samples.get((name, *labels), (0.0,))[0] + amount))

    def kept(self) -> set[str]:
        """Give the names that have a number here."""
        return {key[0] for key in list(self._samples)}

    def forget(self, gone: Set[str], shown: Set[str]) -> None:
        """Remove the numbers of names that are gone, also of those that are only part of `other`."""
        self._drop(gone)

    def stop_showing(self, name: str) -> None:
        """Keep the number: it is part of `other` whenever it is asked for."""

    def snapshot(self) -> MetricSeries:
        """Give the numbers now, those of names that are not shown together as `other`."""
        shown = self._names.shown()
        samples: dict[Key, list[float]] = {}
        for key, (value, when) in list(self._samples.items()):
            if key[0] in shown:
                samples[key] = [value, when]
                continue
            if not value:
                self._samples.pop(key, None)
            other = (OTHER, *key[1:])
            samples[other] = _together(self._series.across, samples.get(other), [value, when], folding=True)
        return msgspec.structs.replace(self._series, samples=list(samples.items()))

    def _make_room(self) -> None:
        """Drop a quarter of the numbers that are not shown, so that this is done once for many new names."""
        shown = self._names.shown()
        unshown = [(key, numbers) for key, numbers in list(self._samples.items()) if key[0] not in shown]
        unshown.sort(key=lambda item: (item[1][0] != 0, item[1][1]))
        for key, _ in unshown[: 1 + len(unshown) // 4]:
            self._samples.pop(key, None)


class NamedReadings(_Family):
    """Numbers that are read elsewhere and replaced all together, by whoever reads them."""

    def __init__(self, label: str, name: str, text: str, kind: Literal["gauge", "unknown"] = "gauge") -> None:
        super().__init__(LabelNames(label), name, text, kind, (), "latest")

    def replace(self, values: Mapping[str, float]) -> None:
        """Show these, and no others."""
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
        """Say what it is now."""
        self.family.put(self.name, self.labels, value)

    def inc(self, amount: float = 1) -> None:
        """Add to it."""
        self.family.add(self.name, self.labels, amount)

    def dec(self) -> None:
        """Take one away."""
        self.family.add(self.name, self.labels, -1)

    @contextmanager
    def track_inprogress(self) -> Iterator[None]:
        """Count something for as long as it goes on."""
        self.inc()
        try:
            yield
        finally:
            self.dec()


class _Collector(Collector):
    """Collects the named metrics of a process that shares them with nobody."""

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
    """Put the metrics of several processes together."""
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
                samples[key] = _together(series.across, samples.get(key), numbers)
    return [msgspec.structs.replace(series, samples=list(samples.items())) for series, samples in found.values()]


def counts_kept(departed: Sequence[MetricSeries], living: Sequence[MetricSeries]) -> list[MetricSeries]:
    """Give those counts of ended processes that go on: under `other`, and of names that a living process shows.

    The rest may go: a count that vanishes as a whole and begins anew is a new count to Prometheus.
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
    """Give families as the library writes them."""
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


def _together(across: Across, one: list[float] | None, other: list[float], *, folding: bool = False) -> list[float]:
    """Put the numbers of one series together; `folding` several names into one adds up what only the latest would tell."""
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
