"""Upstreams, their limits and how scripts read them, and the states of permits and jobs: rules without I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from math import ceil
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from headgate.kit.ids import thing_name
from headgate.kit.problems import InvalidRequest
from headgate.kit.wire import Wire

RESERVED: Final = frozenset({"jobs", "permits"})
NAMESPACE: Final = "default"
SEND_MS: Final = 2000
MOST_TIMEOUT_SECONDS: Final = 3600
MOST_DELIVERY_SECONDS: Final = 600
LONGEST_LEASE_MS: Final = SEND_MS + (MOST_TIMEOUT_SECONDS + MOST_DELIVERY_SECONDS) * 1000
MOST_UNITS: Final = 1000
LONGEST_USER: Final = 256
LONGEST_HOST: Final = 253

FRAMING: Final = frozenset(
    {"connection", "content-length", "expect", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding",
     "upgrade"}
)  # fmt: skip

# Headers that cannot name a user: secrets, which would be stored as the user's id, and those the relay uses itself.
NO_USER: Final = FRAMING | {
    "authorization", "cookie", "forwarded", "host", "prefer", "proxy-authenticate", "proxy-authorization", "set-cookie",
    "x-api-token", "x-deadline-ms", "x-permits",
}  # fmt: skip

Count = Annotated[int, Meta(ge=1, le=10_000)]
Seconds = Annotated[float, Meta(ge=0.001, le=86_400)]


_VALUE = re.compile(r"[\t -~\xa0-\xff]*")
_PATH = re.compile(r"[!-~]*")


class Per(StrEnum):
    """The scope of a limit: each user has a limit of their own, or all users of the upstream share one."""

    USER = "user"
    UPSTREAM = "upstream"


class Kind(StrEnum):
    """The form of a limit."""

    WINDOW = "window"
    BUCKET = "bucket"
    PACED = "paced"
    CONCURRENT = "concurrent"


class Counter(StrEnum):
    """The algorithm by which the upstream counts; only a sliding counter needs a stricter limit than its own."""

    LOG = "log"
    FIXED = "fixed"
    BUCKET = "bucket"
    SLIDING_COUNTER = "sliding-counter"


class Limit(Wire, frozen=True, omit_defaults=True):
    """One limit: a window of `count` in `seconds`, a bucket, a pace, or so many at once."""

    kind: Kind = Kind.WINDOW
    per: Per = Per.USER
    count: Count | None = None
    seconds: Seconds | None = None
    burst: Count | None = None
    every_ms: Annotated[int, Meta(ge=1, le=86_400_000)] | None = None

    def check(self, field: str) -> None:
        """Refuse a limit whose fields are not exactly those that its kind needs."""
        given = {name for name in ("count", "seconds", "burst", "every_ms") if getattr(self, name) is not None}
        needed = _NEEDS[self.kind]
        if given != needed:
            words = ", ".join(sorted(_CAMEL[name] for name in needed))
            raise InvalidRequest(f"{field}: a {self.kind} limit takes exactly {words}.", field=field)

    def rules(self, counter: Counter) -> list[str]:
        """Encode this limit for the scripts: kind, count, milliseconds, burst."""
        count = self.count or 1
        ms = ceil(round((self.seconds or 0) * 1000, 6))  # a window may be longer than the upstream's, never shorter
        match self.kind:
            case Kind.PACED:
                return [f"w 1 {self.every_ms} 0;"]
            case Kind.CONCURRENT:
                return [f"c {count} 0 0;"]
            case Kind.BUCKET:
                return [f"b {count} {ms} {self.burst};"]
            case _:
                rules = [f"w {count} {ms} 0;"]
                if counter is Counter.SLIDING_COUNTER:
                    # Arrivals W/(N-1) apart are the fastest stream that a weighted count never refuses.
                    rules.append(f"w 1 {-(-ms // (count - 1)) if count > 1 else 2 * ms} 0;")
                return rules


_NEEDS: Final = {
    Kind.WINDOW: {"count", "seconds"},
    Kind.BUCKET: {"burst", "count", "seconds"},
    Kind.PACED: {"every_ms"},
    Kind.CONCURRENT: {"count"},
}
_CAMEL: Final = {"count": "count", "seconds": "seconds", "burst": "burst", "every_ms": "everyMs"}


class Retry(Wire, frozen=True, omit_defaults=True):
    """When a repeatable request is sent again: after a closed connection, and after these statuses."""

    attempts: Annotated[int, Meta(ge=0, le=5)] = 1
    statuses: tuple[Annotated[int, Meta(ge=500, le=599)], ...] = ()
    refused: bool = True


class Upstream(Wire, frozen=True):
    """The policy of an upstream (another party's API): its address and limits."""

    base_url: str
    limits: tuple[Limit, ...]
    user_header: str = "X-User-Id"
    forward_user: bool = False
    counter: Counter = Counter.LOG
    plans: dict[str, tuple[Limit, ...]] = {}
    user_plans: dict[str, str] = {}
    timeout_seconds: Annotated[float, Meta(gt=0, le=MOST_TIMEOUT_SECONDS)] = 30.0
    deadline_seconds: Annotated[float, Meta(gt=0, le=86_400)] = 300.0
    delivery_seconds: Annotated[float, Meta(ge=0, le=MOST_DELIVERY_SECONDS)] = 5.0
    connect_seconds: Annotated[float, Meta(gt=0, le=60)] = 5.0
    max_waiting: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    max_connections: Annotated[int, Meta(ge=1, le=10_000)] = 256
    headers: dict[str, str] = {}
    retry: Retry = Retry()
    verify_tls: bool = True

    def check(self) -> None:
        """Refuse a policy that cannot work; the messages name the field."""
        _check_url(self.base_url)
        if not self.limits:
            raise InvalidRequest("limits must have at least one limit.", field="limits")
        for number, limit in enumerate(self.limits):
            limit.check(f"limits[{number}]")
        for plan, limits in self.plans.items():
            thing_name(plan, "plans")
            for number, limit in enumerate(limits):
                limit.check(f"plans.{plan}[{number}]")
                if limit.per is Per.UPSTREAM:
                    raise InvalidRequest("A plan has limits per user only.", field=f"plans.{plan}[{number}]")
        for user, plan in self.user_plans.items():
            user_id(user, "userPlans")
            if plan not in self.plans:
                raise InvalidRequest(f"userPlans names the plan {plan}, which plans does not have.", field="userPlans")
        if not _is_token(self.user_header) or self.user_header.lower() in NO_USER:
            raise InvalidRequest(f"{self.user_header[:80]!r} is no header that can name a user.", field="userHeader")
        for name, value in self.headers.items():
            if not _is_token(name) or not _VALUE.fullmatch(value):
                raise InvalidRequest(f"{name!r} is not a header.", field="headers")
            if name.lower() in FRAMING:
                raise InvalidRequest(f"{name} is written by the relay itself.", field="headers")

    def rules(self) -> dict[str, str]:
        """Return the fields of the policy that scripts read."""
        fields = {
            "rules": self._written(limit for limit in self.limits if limit.per is Per.USER),
            "shared": self._written(limit for limit in self.limits if limit.per is Per.UPSTREAM),
        }
        fields |= {f"rules:{plan}": self._written(limits) for plan, limits in self.plans.items()}
        return fields | {f"plan:{user}": plan for user, plan in self.user_plans.items()}

    @property
    def hold_ms(self) -> int:
        """Return how long nothing may be sent after a loss of data: the longest window of any limit."""
        hold = 1
        for field, rules in self.rules().items():
            for rule in [] if field.startswith("plan:") else rules.split(";")[:-1]:
                _, count, ms, burst = rule.split(" ")
                hold = max(hold, -(-int(burst) * int(ms) // int(count)) if burst != "0" else int(ms))
        return hold

    @property
    def lease_ms(self) -> int:
        """Return how long a permit lasts without a report: time to begin, to be answered, and to arrive."""
        return SEND_MS + round((self.timeout_seconds + self.delivery_seconds) * 1000)

    @property
    def concurrent(self) -> bool:
        """Whether any limit counts concurrent requests, so that the end of an answer matters too."""
        every = [*self.limits, *(limit for limits in self.plans.values() for limit in limits)]
        return any(limit.kind is Kind.CONCURRENT for limit in every)

    def window_of(self, user: str) -> Limit | None:
        """Return the user's first window, which the rate-limit headers describe."""
        limits = self.plans.get(self.user_plans.get(user, ""), self.limits)
        return next((limit for limit in limits if limit.kind is Kind.WINDOW and limit.per is Per.USER), None)

    def _written(self, limits: Iterable[Limit]) -> str:
        return "".join(rule for limit in limits for rule in limit.rules(self.counter))


def upstream_name(value: str) -> str:
    """Check an upstream's name; a few names are reserved for our own routes."""
    thing_name(value, "upstream")
    if value in RESERVED:
        raise InvalidRequest(f"The name {value} is reserved.", field="upstream")
    return value


def user_id(value: str, field: str = "user") -> str:
    """Check a user's id, which callers choose, such as an e-mail address or `tenant/7`."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:  # a lone surrogate
        size = 0
    if not 1 <= size <= LONGEST_USER or not value.isprintable() or " " in value:
        raise InvalidRequest(
            f"{field} must have 1 to {LONGEST_USER} bytes of UTF-8, without spaces and invisible characters.",
            field=field,
        )
    return value


def _check_url(base_url: str) -> None:
    """Refuse an address to which no request could be sent; the messages say what is wrong with it."""
    try:
        parts = urlsplit(base_url)
        host = parts.hostname
    except ValueError as error:  # such as brackets around an invalid IPv6 address
        raise InvalidRequest("baseUrl must be http://host… or https://host….", field="baseUrl") from error
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidRequest("baseUrl must be http://host… or https://host….", field="baseUrl")
    if "@" in parts.netloc or parts.query or parts.fragment or any(sign <= " " for sign in base_url):
        raise InvalidRequest("baseUrl must have no user, query or fragment.", field="baseUrl")
    if not _PATH.fullmatch(parts.path):
        raise InvalidRequest("baseUrl has a path with signs that must be percent-encoded.", field="baseUrl")
    try:
        _ = parts.port
    except ValueError as error:
        raise InvalidRequest("baseUrl has a port that is none.", field="baseUrl") from error
    try:
        size = len(host.removesuffix(".").encode("idna"))
    except UnicodeError:
        size = 0
    if not 1 <= size <= LONGEST_HOST:
        raise InvalidRequest(
            f"baseUrl has a host that is none: its labels have 1 to 63 characters, and all of it {LONGEST_HOST} at most.",
            field="baseUrl",
        )


def _is_token(name: str) -> bool:
    return bool(name) and all(sign.isascii() and (sign.isalnum() or sign in "!#$%&'*+-.^_`|~") for sign in name)


class Outcome(StrEnum):
    """The outcome of the request of a permit."""

    UNSENT = "unsent"
    ANSWERED = "answered"
    ENDED = "ended"
    LOST = "lost"
    REFUSED = "refused"


class JobState(StrEnum):
    """The state of a job; the last four are final."""

    WAITING = "waiting"
    SENDING = "sending"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"
    CANCELLED = "cancelled"


class Order(msgspec.Struct, frozen=True, array_like=True):
    """A request that was accepted to be sent later."""

    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    body: bytes
    user: str
    units: int
    wait_ms: int
