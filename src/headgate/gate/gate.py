"""The gate: decides pass or wait for each request that a site, a proxy or a page asks about.

Most answers need no store call: no queue guards the resource, its queue is off, or the visitor has a valid pass. Only a
visitor who must wait, or whose pass is in its last third, costs a call.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum
from time import monotonic
from typing import Final, Self

import msgspec

from headgate.gate.passes import VISITOR_SECONDS, Pass, PassKeys, Visitor
from headgate.gate.rules import MOST_REVOKED, GateRules, Match
from headgate.gate.traffic import Traffic
from headgate.http.networks import within
from headgate.kit.ids import new_uuid
from headgate.kit.metrics import counter
from headgate.kit.problems import RateLimited, StoreFull, StoreUnavailable
from headgate.store import Store, Thing, script
from headgate.waiting_room.metrics import QUEUES, label
from headgate.waiting_room.model import EntryArguments, State
from headgate.waiting_room.policy import FailMode
from headgate.waiting_room.problems import QueueUnknown, SessionUnknown, TicketInvalid
from headgate.waiting_room.waiting_room import WaitingRoom
from headgate.waiting_room.wire import Status

REVOKE = script("headgate.waiting_room", "revoke")

FULL_SECONDS: Final = 0.1
FLUSH_SECONDS: Final = 0.25
RETRY_SECONDS: Final = 1.0
STEP_PEOPLE: Final = 16
MOST_ACCOUNTS: Final = 100_000
MOST_VERIFIED: Final = 20_000
NICKNAME: Final = "visitor"

VERDICTS = counter("headgate_gate_verdicts_total", "What gates answered, and why.", ["verdict", "reason"])
FAIL_MODE = QUEUES.counter(
    "headgate_gate_fail_mode_total", "Answers given while the store was away, by the queue's own choice.", ["mode"]
)


class VerdictReason(StrEnum):
    """The reason of a verdict."""

    UNGUARDED = "unguarded"
    OFF = "off"
    BYPASS = "bypass"
    INSIDE = "inside"
    ADMITTED = "admitted"
    WAITING = "waiting"
    LIMITED = "limited"
    FAIL_OPEN = "fail_open"


class GateRequest(msgspec.Struct, frozen=True):
    """One request to check; `user_id` is an account that the site vouches for.

    `spend` counts an entry against the limit of the visitor's address; raises RateLimited.
    """

    namespace: str
    resource: str = ""
    event_type: str = ""
    target: bytes = b""
    client: str = ""
    user_id: str = ""
    cookies: tuple[str, ...] = ()
    headers: dict[bytes, bytes] = msgspec.field(default_factory=dict)
    spend: Callable[[str], None] | None = None


class Verdict(msgspec.Struct, frozen=True):
    """Pass or wait; `visitor` is set when the cookie must be written, `refusal` when the visitor has no place yet."""

    passes: bool
    reason: VerdictReason
    queue: str = ""
    status: Status | None = None
    visitor: Visitor | None = None
    refusal: RateLimited | None = None


_UNGUARDED: Final = Verdict(True, VerdictReason.UNGUARDED)


class Gate:
    """The main class: checks requests against all queues of a store."""

    def __init__(self, store: Store, room: WaitingRoom) -> None:
        self._store = store
        self._room = room
        self.rules = GateRules(store, room.queues)
        self.traffic = Traffic(store, room.queues, self.rules)
        self._keys: PassKeys | None = None
        self._full_at: dict[Thing, float] = {}
        # Queues whose store node is unavailable, and when to try it again.
        self._unavailable: dict[Thing, float] = {}
        # Verdicts since the last flush, because a metric costs too much on the hot path.
        self._verdicts: dict[VerdictReason, int] = {}
        # A cache of verified cookies, because the same cookie comes with each request of a page.
        self._verified: dict[str, Visitor] = {}
        # Passes of accounts, which have no cookie because a site's backend asks for them.
        self._account_passes: OrderedDict[tuple[Thing, str], Pass] = OrderedDict()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.rules.close()

    async def keys(self) -> PassKeys:
        """Give the keys that sign visitors' cookies."""
        if self._keys is None:
            self._keys = PassKeys((await self._room.signing_keys()).secrets())
        return self._keys

    async def check(self, request: GateRequest) -> Verdict:
        """Check one request."""
        match = self.rules.match(request.namespace, request.resource, request.event_type, request.target)
        if match is None:
            verdict = _UNGUARDED
        else:
            if match.counted is not None:
                self.traffic.count(match.counted)
            verdict = self._decide_locally(match, request) or await self._decide_with_store(match, request)
        verdicts = self._verdicts
        verdicts[verdict.reason] = verdicts.get(verdict.reason, 0) + 1
        return verdict

    async def run(self) -> None:
        """Flush the counters of verdicts and traffic for the life of the process."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            verdicts, self._verdicts = self._verdicts, {}
            for reason, number in verdicts.items():
                VERDICTS.labels(
                    "wait" if reason in (VerdictReason.WAITING, VerdictReason.LIMITED) else "pass", reason
                ).inc(number)
            await self.traffic.flush()

    async def revoke(self, thing: Thing, user_id: str, *, who: str) -> None:
        """End a user's pass on every gate; the user may enter the queue again."""
        await self._room.queues.with_restore(thing, lambda: self._store.run(REVOKE, thing, user_id, who, MOST_REVOKED))
        await self._room.queues.mark_changed(thing)
        self._account_passes.pop((thing, user_id), None)

    async def read_visitor(self, cookies: tuple[str, ...]) -> Visitor | None:
        """Give the visitor of the first valid cookie; None if no cookie is valid."""
        return self._open_cookies(await self.keys(), cookies, self.rules.now()) if cookies else None

    def new_visitor(self) -> Visitor:
        """Make a visitor with a new id."""
        return Visitor(new_uuid(), int(self.rules.now()) + VISITOR_SECONDS)

    def _decide_locally(self, match: Match, request: GateRequest) -> Verdict | None:
        """Decide without a store call; None if that is not possible."""
        if match.bypassed or (match.bypasses and self._is_bypassed(match, request)):
            return Verdict(True, VerdictReason.BYPASS, match.queue.name)
        if not match.active:
            return Verdict(True, VerdictReason.OFF, match.queue.name)
        now = self.rules.now()
        held = self._valid_pass(match, request.user_id, self._visitor_of(request, now), now)
        if held is None or held.renewable(now):
            return None
        return Verdict(True, VerdictReason.INSIDE, match.queue.name)

    async def _decide_with_store(self, match: Match, request: GateRequest) -> Verdict:
        """Decide with store calls."""
        held = None
        try:
            if self._keys is None:
                await self.keys()
                verdict = self._decide_locally(match, request)
                if verdict is not None:
                    return verdict
            now = self.rules.now()
            visitor = self._visitor_of(request, now)
            held = self._valid_pass(match, request.user_id, visitor, now)
            if self._unavailable:
                self._probe(match.queue)
            verdict = await self._renew(match, request.user_id, visitor) if held is not None else None
            if verdict is None and visitor is None and not request.user_id and request.spend is not None:
                verdict = _limited(match, request.spend)
            if verdict is None:
                verdict = await self._enter(match, request.user_id, visitor or self.new_visitor())
            if self._unavailable:
                self._unavailable.pop(match.queue, None)
            return verdict
        except StoreUnavailable as error:
            if not isinstance(error, StoreFull):  # a full store still answers for users that it knows
                self._unavailable.setdefault(match.queue, monotonic() + RETRY_SECONDS)
            mode = match.guard.policy.fail_mode
            FAIL_MODE.labels(label(match.guard.thing), mode).inc()
            if held is not None or mode is FailMode.OPEN:
                return Verdict(True, VerdictReason.FAIL_OPEN, match.queue.name)
            raise
        except QueueUnknown:
            # The queue was switched off or deleted a moment ago.
            return Verdict(True, VerdictReason.OFF, match.queue.name)

    def _probe(self, queue: Thing) -> None:
        """Let one request a second try an unavailable queue; raise StoreUnavailable at once for the others."""
        now = monotonic()
        until = self._unavailable.get(queue)
        if until is None:
            return
        if now < until:
            raise StoreUnavailable
        self._unavailable[queue] = now + RETRY_SECONDS

    def _is_bypassed(self, match: Match, request: GateRequest) -> bool:
        guard = match.guard
        if request.client and guard.bypass_networks and within(request.client, guard.bypass_networks):
            return True
        name = guard.policy.bypass.header.lower().encode()
        value = request.headers.get(name) if name else None
        if value is None or self._keys is None:
            return False
        return self._keys.bypasses(value.decode("latin-1"), guard.thing.tag, self.rules.now())

    def _visitor_of(self, request: GateRequest, now: float) -> Visitor | None:
        """Give the visitor of a request's cookies; None without a valid one, or if the request names an account."""
        if self._keys is None or not request.cookies or request.user_id:
            return None
        return self._open_cookies(self._keys, request.cookies, now)

    def _open_cookies(self, keys: PassKeys, cookies: tuple[str, ...], now: float) -> Visitor | None:
        for cookie in cookies:
            visitor = self._verified.get(cookie)
            if visitor is None:
                visitor = keys.open(cookie, now)
                if visitor is None:
                    continue
                if len(self._verified) >= MOST_VERIFIED:
                    self._verified.clear()
                self._verified[cookie] = visitor
            if visitor.expires > now:
                return visitor
        return None

    def _valid_pass(self, match: Match, user_id: str, visitor: Visitor | None, now: float) -> Pass | None:
        """Find a pass that is valid for the queue's current generation."""
        held = self._account_passes.get((match.queue, user_id)) if user_id else None
        if visitor is not None:
            held = visitor.pass_for(match.tag)
        if held is None:
            return None
        guard = (self.rules.guard(match.queue) or match.guard) if match.derived else match.guard
        if held.expires <= now or held.generation != guard.generation:
            return None
        if guard.revoked:
            revoked_ms = guard.revoked.get(user_id or (visitor.id if visitor else ""), 0.0)
            return held if held.issued * 1000 > revoked_ms else None
        return held

    async def _renew(self, match: Match, user_id: str, visitor: Visitor | None) -> Verdict | None:
        """Renew a session and its pass together, so that no pass outlives its seat; None if the session is over."""
        who = user_id or (visitor.id if visitor else "")
        try:
            _, seconds = await self._room.renew(match.queue.namespace, match.queue.name, who)
        except SessionUnknown:
            return None
        return self._grant(match, user_id, visitor, seconds, VerdictReason.INSIDE)

    async def _enter(self, match: Match, user_id: str, visitor: Visitor) -> Verdict:
        """Enter the queue, and pass at once if the visitor is promoted."""
        namespace, name, who = match.queue.namespace, match.queue.name, user_id or visitor.id
        if match.derived and self.rules.guard(match.queue) is None:
            await self.traffic.create_queue(match.guard, name)
        status: Status = await self._room.entry(namespace, name, EntryArguments(NICKNAME, who, trusted=True))
        if status.status is State.WAITING and await self._promote(match.queue):
            status = await self._room.status(namespace, name, who, trusted=True)
        if status.status is State.PROMOTED and isinstance(status.ticket_id, str):
            try:
                await self._room.redeem(namespace, name, status.ticket_id, who)
            except TicketInvalid:
                return Verdict(False, VerdictReason.WAITING, name, status, visitor)
        if status.status in (State.PROMOTED, State.ACTIVE):
            try:
                _, seconds = await self._room.renew(namespace, name, who)
            except SessionUnknown:
                return Verdict(False, VerdictReason.WAITING, name, status, visitor)
            return self._grant(match, user_id, visitor, seconds, VerdictReason.ADMITTED)
        return Verdict(False, VerdictReason.WAITING, name, status, None if user_id else visitor)

    def _grant(
        self, match: Match, user_id: str, visitor: Visitor | None, seconds: float, reason: VerdictReason
    ) -> Verdict:
        guard = self.rules.guard(match.queue) or match.guard
        now = int(self.rules.now())
        new = Pass(match.queue.tag, guard.generation, now, now + int(seconds))
        if user_id:
            self._account_passes[(match.queue, user_id)] = new
            self._account_passes.move_to_end((match.queue, user_id))
            if len(self._account_passes) > MOST_ACCOUNTS:
                self._account_passes.popitem(last=False)
            return Verdict(True, reason, match.queue.name)
        return Verdict(True, reason, match.queue.name, visitor=(visitor or self.new_visitor()).with_pass(new))

    async def _promote(self, queue: Thing) -> bool:
        """Run a promotion step, unless one a moment ago found no free seat; tell whether anybody was promoted."""
        now = monotonic()
        if now - self._full_at.get(queue, 0.0) < FULL_SECONDS:
            return False
        _, _, promoted = await self._room.promotion.step(queue, STEP_PEOPLE)
        if not promoted:
            if len(self._full_at) > MOST_ACCOUNTS:
                self._full_at.clear()
            self._full_at[queue] = now
        return promoted > 0


def _limited(match: Match, spend: Callable[[str], None]) -> Verdict | None:
    """Count a new visitor's entry against the rate limit; beyond it the visitor waits without a place."""
    try:
        spend("entry")
    except RateLimited as error:
        return Verdict(False, VerdictReason.LIMITED, match.queue.name, refusal=error)
    return None
