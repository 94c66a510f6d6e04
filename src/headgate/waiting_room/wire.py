"""Requests and answers of the waiting room, shared by the server and the SDK."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from headgate.kit.ids import MemberId, ThingName
from headgate.kit.wire import Wire
from headgate.waiting_room.model import DEFAULT_QUEUE, LEASE_MS, MOST_SESSIONS, Eta, Reason, State
from headgate.waiting_room.policy import Policy

# The schema states the maximum; `QueueServers` checks it, with a message that says what to do instead.
SeatCount = Annotated[int, Meta(ge=0, extra_json_schema={"maximum": MOST_SESSIONS})]


class EntryRequest(Wire):
    """A request to join a queue."""

    nickname: Annotated[str, Meta(min_length=1, max_length=64, examples=["Ryan"])]
    queue: ThingName = DEFAULT_QUEUE
    user_id: MemberId | None = None
    proof: Annotated[str, Meta(max_length=4096)] | None = None


class PersonQuery(Wire):
    """A user of a queue; the place token may also be sent in X-Place-Token."""

    user_id: MemberId
    queue: ThingName = DEFAULT_QUEUE
    place_token: Annotated[str, Meta(max_length=4096)] | None = None


class QueueQuery(Wire):
    """A queue."""

    queue: ThingName = DEFAULT_QUEUE


class HeartbeatRequest(Wire):
    """The seats that a server offers; `sessions` are all its sessions, as far as the server knew at `asOf`."""

    queue: ThingName = DEFAULT_QUEUE
    capacity: SeatCount | None = None
    max_capacity: SeatCount | None = None
    address: Annotated[str, Meta(max_length=256)] = ""
    sessions: list[MemberId] | None = None
    as_of: Annotated[int, Meta(ge=0, le=9_007_199_254_740_992)] = 0


class RemoveServerQuery(Wire):
    """The queue that a server leaves; with drain it keeps its sessions and only gets no new ones."""

    queue: ThingName = DEFAULT_QUEUE
    drain: bool = False


class RedeemRequest(Wire):
    """The session that a ticket is redeemed for."""

    session_id: MemberId
    queue: ThingName = DEFAULT_QUEUE
    instance_id: MemberId | None = None


class EndRequest(Wire):
    """Which session ends and why."""

    queue: ThingName = DEFAULT_QUEUE
    instance_id: MemberId | None = None
    reason: Reason = Reason.LEFT


class RenewRequest(Wire):
    """The queue of the session to renew."""

    queue: ThingName = DEFAULT_QUEUE


class AdmitRequest(Wire):
    """How many users to promote beyond what rate and pause allow; there must still be seats for them."""

    count: Annotated[int, Meta(ge=1, le=1_000_000)]


class HistoryQuery(Wire):
    """How many minutes to show."""

    minutes: Annotated[int, Meta(ge=1, le=10_080)] = 60


class Seat(Wire):
    """The server on which a ticket holds a seat."""

    instance_id: str
    address: str


class Status(Wire, kw_only=True, omit_defaults=True):
    """A user's state in a queue; `rank` is 1 for the first in line and 0 once promoted.

    While there is no `eta`, `leastSeconds` is the shortest possible wait, if that is known. `paused` is true while
    nobody is promoted and all places are kept. Fields without a value are None in Python and absent on the wire, as is
    `paused` if false.
    """

    status: State
    queue: str
    user_id: str
    rank: int
    place: int
    eta: Eta | None
    poll_after_ms: int
    least_seconds: float | None = None
    paused: bool = False
    ticket_id: str | None = None
    ticket: str | None = None
    server: Seat | None = None
    expires_in_ms: int | None = None
    advice: str | None = None


class Entry(Status, kw_only=True, omit_defaults=True):
    """The answer to an entry: a status, and the signed proof of the place."""

    place_token: str


class User(Wire):
    """The user that a ticket was issued to."""

    user_id: str
    nickname: str


class Redeemed(Wire, omit_defaults=True):
    """A ticket that was redeemed, now or before by the same session.

    `traceparent` is that of the entry, if it was traced: the server that lets the user in continues this trace.
    """

    ticket_id: str
    user: User
    queue: str
    seq: int
    session_id: str
    instance_id: str
    traceparent: str | None = None


class RenewedSession(Wire):
    """A renewed session: its user, and when it ends unless it is renewed again."""

    session_id: str
    queue: str
    user_id: str
    expires_in_ms: int


class Beat(Wire):
    """The answer to a server's heartbeat: its latest `seq`, and whether it should drain or report its sessions."""

    drain: bool
    report: bool
    seq: int
    lease_ms: int = LEASE_MS


class ServerView(Wire):
    """One server of a queue, as an operator sees it."""

    instance_id: str
    address: str
    capacity: int
    max_capacity: int
    sessions: int
    holds: int
    draining: bool
    reported: bool


class Servers(Wire):
    """All servers that offer seats in a queue."""

    queue: str
    servers: list[ServerView]


class Board(Wire):
    """The public view of a queue; `marks` are pairs [place, rank], from which each user finds their own rank."""

    queue: str
    epoch: str
    generation: int
    serving: int
    waiting: int
    rate_per_second: float
    marks: list[tuple[int, int]]
    at: str


class Figures(Wire, kw_only=True):
    """The numbers of a queue; `capacity` is the seats in force, `rate_per_second` the admissions measured lately."""

    waiting: int
    live: int
    away: int
    holds: int
    kept: int
    sessions: int
    servers: int
    capacity: int
    rate_per_second: float
    entered_total: int
    admitted_total: int
    issued_total: int
    expired_total: int
    redeemed_total: int
    finished_total: int
    left_total: int
    abandoned_total: int
    moved_total: int


class QueueView(Policy, kw_only=True):
    """A queue as an operator sees it: the policy, its version, its switches, and the current numbers."""

    queue: str
    namespace: str
    version: int
    generation: int
    epoch: str
    serving: int
    paused: bool
    draining: bool
    waiting: int
    away: int
    holds: int
    sessions: int
    admitted_total: int
    figures: Figures


class QueueList(Wire):
    """All queues of a namespace."""

    queues: list[QueueView]


class AuditRecord(Wire):
    """One entry of a queue's audit trail; `old` and `new` are policies, or an operator's switches."""

    at: str
    who: str
    action: str
    old: dict[str, object]
    new: dict[str, object]


class Audit(Wire):
    """A queue's audit trail, newest first."""

    queue: str
    records: list[AuditRecord]


class Minute(Wire):
    """The events of one minute, and the numbers at its end."""

    minute: str
    entered: int
    admitted: int
    issued: int
    expired: int
    redeemed: int
    finished: int
    left: int
    abandoned: int
    moved: int
    waiting: int
    away: int
    holds: int
    sessions: int
    mean_wait_seconds: float | None
    mean_eta_error_seconds: float | None


class History(Wire):
    """A queue's minutes, oldest first."""

    queue: str
    minutes: list[Minute]
