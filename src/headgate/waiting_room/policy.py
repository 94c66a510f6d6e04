"""A queue's policy, which its operator sets; it is validated before it is written."""

from __future__ import annotations

import math
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headgate.http.networks import read_networks
from headgate.http.path_rules import check_globs
from headgate.kit.ids import display_text
from headgate.kit.problems import InvalidRequest
from headgate.kit.validation import explain
from headgate.kit.wire import Wire

Count = Annotated[int, Meta(ge=0, le=10_000_000)]
Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
MANY_SEATS: Final = 10_000_000
FASTEST: Final = 1_000_000
SOONEST_SECONDS: Final = 0.1
LEAST_BATCH: Final = 100
MOST_BATCH: Final = 10_000
MOST_ADDRESSES: Final = 1000


class Seats(StrEnum):
    """The source of seats: one fixed number, or the live servers."""

    FIXED = "fixed"
    SERVERS = "servers"


class Placement(StrEnum):
    """Which server gets the next user: the one with the most free seats, or the fullest with a free seat."""

    MOST_FREE = "most-free"
    PACKED = "packed"


class FailMode(StrEnum):
    """The gate's answer while the store is unavailable: pass or refuse."""

    OPEN = "open"
    CLOSED = "closed"


class Bypass(Wire):
    """Requests that pass the gate without waiting."""

    paths: list[str] = []
    addresses: list[str] = []
    header: str = ""


class Theme(Wire):
    """The operator's colours and logo; colours are #rrggbb, the logo is a path or an https address."""

    color: str | None = None
    background: str | None = None
    logo: str | None = None


class Auto(Wire):
    """When a queue switches itself on, and for which resources it creates queues."""

    resource: Annotated[str, Meta(min_length=1, max_length=256)]
    event_type: Annotated[str, Meta(max_length=64)] = ""
    threshold: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 100
    window_seconds: Annotated[float, Meta(ge=1, le=3600)] = 10
    cooldown_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 60
    max_queues: Annotated[int, Meta(ge=1, le=10_000)] = 100

    @property
    def own_rate(self) -> float:
        """Give the admissions a second that keep traffic at the threshold."""
        return min(max(0.1, self.threshold / self.window_seconds), FASTEST)


class Policy(Wire, kw_only=True):
    """The whole policy of a queue."""

    seats: Seats = Seats.SERVERS
    capacity: Count | None = None
    rate_per_second: Annotated[float, Meta(ge=0, le=1_000_000)] | None = None
    burst: Annotated[float, Meta(ge=1, le=1_000_000)] | None = None
    batch: Annotated[int, Meta(ge=1, le=MOST_BATCH)] = LEAST_BATCH
    tick_ms: Annotated[int, Meta(ge=100, le=60_000)] = 1000
    ticket_ttl_seconds: Annotated[float, Meta(ge=1, le=86_400)] = 60
    session_ttl_seconds: Annotated[float, Meta(ge=1, le=31_536_000)] = 600
    grace_seconds: Annotated[float, Meta(ge=1, le=86_400)] = 120
    keep_seconds: Seconds = 900
    reentry_seconds: Seconds = 120
    max_length: Count | None = None
    opens_at: datetime | None = None
    placement: Placement = Placement.MOST_FREE
    fail_mode: FailMode = FailMode.CLOSED
    finished_seconds: Seconds = 3600
    paths: list[str] = []
    bypass: Bypass = Bypass()
    queue_all: bool = False
    return_hosts: list[str] = []
    auto: Auto | None = None
    message: str = ""
    theme: Theme = Theme()
    # The automatic queue that created this one; operators cannot set it.
    template: str = ""

    def checked(self) -> Policy:
        """Validate a policy, also one that was made in Python; raises InvalidRequest."""
        try:
            msgspec.convert(msgspec.to_builtins(self), Policy)
        except (msgspec.ValidationError, TypeError) as error:
            sentence, field = explain(error, Policy)
            raise InvalidRequest(sentence, field=field or "policy") from error
        if self.message:
            display_text(self.message, "message", 500)
        check_globs(self.paths, "paths")
        check_globs(self.bypass.paths, "bypass.paths")
        if len(self.bypass.addresses) > MOST_ADDRESSES:
            raise InvalidRequest(
                f"A queue has at most {MOST_ADDRESSES} networks in bypass.addresses; these are {len(self.bypass.addresses)}.",
                field="bypass.addresses",
            )
        read_networks(self.bypass.addresses)
        if self.opens_at is not None and self.opens_at.tzinfo is None:
            raise InvalidRequest("opensAt needs a time zone, such as 2026-01-01T09:00:00Z.", field="opensAt")
        if self.seats == Seats.FIXED and self.capacity is None:
            raise InvalidRequest("Seats are fixed, so capacity must say how many.", field="capacity")
        least = math.ceil((self.rate_per_second or 0) * SOONEST_SECONDS)
        if self.burst is not None and self.burst < least:
            raise InvalidRequest(
                f"People are called at most ten times a second, so {self.burst:g} at once never make {self.rate_per_second:g} a "
                f"second; burst must be at least {least}, or be left out.",
                field="burst",
            )
        return self

    @property
    def own_batch(self) -> int:
        """Give the default batch: the users that the rate admits in a tick, and at least a hundred."""
        brought = math.ceil((self.rate_per_second or 0) * self.tick_ms / 1000)
        return min(MOST_BATCH, max(LEAST_BATCH, brought))

    def for_script(self) -> list[str | int | float]:
        """Give the fields that scripts read as field, value, …; times are in milliseconds, empty means no limit."""
        rate = self.rate_per_second
        burst = self.burst if self.burst is not None else max(1, math.ceil((rate or 0) * self.tick_ms / 1000))
        opens_ms = "" if self.opens_at is None else int(self.opens_at.timestamp() * 1000)
        return [
            *("fixed", int(self.seats == Seats.FIXED)),
            *("capacity", _or_empty(self.capacity)),
            *("rate", _or_empty(rate)),
            *("burst", burst),
            *("batch", self.batch),
            *("tick", self.tick_ms),
            *("ticket", int(self.ticket_ttl_seconds * 1000)),
            *("session", int(self.session_ttl_seconds * 1000)),
            *("grace", int(self.grace_seconds * 1000)),
            *("keep", int(self.keep_seconds * 1000)),
            *("reentry", int(self.reentry_seconds * 1000)),
            *("longest", _or_empty(self.max_length)),
            *("opens", opens_ms),
            *("packed", int(self.placement == Placement.PACKED)),
            *("finished", int(self.finished_seconds * 1000)),
        ]


class PolicyChange(Wire, kw_only=True):
    """A change of a policy; absent fields stay as they are, null removes a limit."""

    seats: Seats | UnsetType = UNSET
    capacity: Count | UnsetType | None = UNSET
    rate_per_second: Annotated[float, Meta(ge=0, le=1000000)] | UnsetType | None = UNSET
    burst: Annotated[float, Meta(ge=1, le=1000000)] | UnsetType | None = UNSET
    batch: Annotated[int, Meta(ge=1, le=10_000)] | UnsetType = UNSET
    tick_ms: Annotated[int, Meta(ge=100, le=60_000)] | UnsetType = UNSET
    ticket_ttl_seconds: Annotated[float, Meta(ge=1, le=86_400)] | UnsetType = UNSET
    session_ttl_seconds: Annotated[float, Meta(ge=1, le=31_536_000)] | UnsetType = UNSET
    grace_seconds: Annotated[float, Meta(ge=1, le=86_400)] | UnsetType = UNSET
    keep_seconds: Seconds | UnsetType = UNSET
    reentry_seconds: Seconds | UnsetType = UNSET
    max_length: Count | UnsetType | None = UNSET
    opens_at: datetime | UnsetType | None = UNSET
    placement: Placement | UnsetType = UNSET
    fail_mode: FailMode | UnsetType = UNSET
    finished_seconds: Seconds | UnsetType = UNSET
    paths: list[str] | UnsetType = UNSET
    bypass: Bypass | UnsetType = UNSET
    queue_all: bool | UnsetType = UNSET
    return_hosts: list[str] | UnsetType = UNSET
    auto: Auto | UnsetType | None = UNSET
    message: str | UnsetType = UNSET
    theme: Theme | UnsetType = UNSET

    def applied_to(self, policy: Policy | None) -> Policy:
        """Give the changed policy; a new one with a capacity has fixed seats unless it sets `seats`."""
        wanted = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not UNSET}
        if policy is None and wanted.get("capacity") is not None:
            wanted.setdefault("seats", Seats.FIXED)
        if policy is None and not wanted.keys() & {"seats", "capacity"} and (wanted.get("auto") or wanted.get("paths")):
            # A gate's queue has no servers, and visitors inside were never counted: it admits by rate.
            wanted.update(seats=Seats.FIXED, capacity=MANY_SEATS)
            if isinstance(auto := wanted.get("auto"), Auto):
                wanted.setdefault("rate_per_second", auto.own_rate)
        before = policy or Policy()
        after = msgspec.structs.replace(before, **wanted)
        if "batch" not in wanted and before.batch == before.own_batch:
            after = msgspec.structs.replace(after, batch=after.own_batch)
        return after.checked()


def _or_empty(value: float | None) -> str | int | float:
    return "" if value is None else value
