"""The gate: pass or wait, for each request that a site, a proxy or a page asks about.

Most answers cost no store call: nobody guards this, its queue is off, or the visitor shows a pass that is still good. Only
somebody who must stand in line, or whose pass is in its last third, is looked up.
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
from headgate.kit.life import Job
from headgate.kit.metrics import counter
from headgate.kit.problems import RateLimited, StoreFull, StoreUnavailable
from headgate.store import Store, Thing, script
from headgate.waiting_room.metrics import QUEUES, label
from headgate.waiting_room.model import State, Status
from headgate.waiting_room.policy import FailMode
from headgate.waiting_room.problems import QueueUnknown, SessionUnknown, TicketInvalid
from headgate.waiting_room.waiting_room import WaitingRoom

REVOKE = script("headgate.waiting_room", "revoke")

FULL_SECONDS: Final = 0.1
FLUSH_SECONDS: Final = 0.25
COOL_SECONDS: Final = 1.0
AWAY_SECONDS: Final = 1.0
STEP_PEOPLE: Final = 16
MOST_INSIDE: Final = 100_000
MOST_RECOGNISED: Final = 20_000
NICKNAME: Final = "visitor"

VERDICTS = counter("headgate_gate_verdicts_total", "What gates answered, and why.", ["verdict", "reason"])
FAIL_MODE = QUEUES.counter(
    "headgate_gate_fail_mode_total", "Answers given while the store was away, by the queue's own choice.", ["mode"]
)


class VerdictReason(StrEnum):
    """Why a gate said what it said."""

    UNGUARDED = "unguarded"
    OFF = "off"
    BYPASS = "bypass"
    INSIDE = "inside"
    ADMITTED = "admitted"
    WAITING = "waiting"
    LIMITED = "limited"
    FAIL_OPEN = "fail_open"


class Question(msgspec.Struct, frozen=True):
    """One request: what it is about, and who asks. `user_id` is an account that the site vouches for.

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
    """Pass or wait; `visitor` is set when the cookie must be written anew, `refusal` when the visitor is not in line yet."""

    passes: bool
    reason: VerdictReason
    queue: str = ""
    status: Status | None = None
    visitor: Visitor | None = None
    refusal: RateLimited | None = None


_UNGUARDED: Final = Verdict(True, VerdictReason.UNGUARDED)


class Gate:
    """Answers for all queues of a store."""

    def __init__(self, store: Store, room: WaitingRoom) -> None:
        self._store = store
        self._room = room
        self.rules = GateRules(store, room.queues)
        self.traffic = Traffic(store, room.queues, self.rules)
        self._keys: PassKeys | None = None
        self._full: dict[Thing, float] = {}
        # Queues whose part of the store was away, and until when nobody asks there.
        self._away: dict[Thing, float] = {}
        # Answers since the last flush: a hot path must not pay for its figures.
        self._figures: dict[VerdictReason, int] = {}
        # Cookies that were found good: the same few bytes come with every picture of a page.
        self._recognised: dict[str, Visitor] = {}
        # Accounts that a site's backend vouches for bring no cookie, so their passes are kept here.
        self._inside: OrderedDict[tuple[Thing, str], Pass] = OrderedDict()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.rules.close()

    async def keys(self) -> PassKeys:
        """Give what signs the visitors' cookies."""
        if self._keys is None:
            self._keys = PassKeys((await self._room.signing_keys()).secrets())
        return self._keys

    async def ask(self, question: Question) -> Verdict:
        """Decide one request."""
        match = self.rules.match(question.namespace, question.resource, question.event_type, question.target)
        if match is None:
            verdict = _UNGUARDED
        else:
            if match.counted is not None:
                self.traffic.count(match.counted)
            verdict = self._at_once(match, question) or await self._decide(match, question)
        figures = self._figures
        figures[verdict.reason] = figures.get(verdict.reason, 0) + 1
        return verdict

    async def keep(self) -> None:
        """Tell what was counted, again and again."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            figures, self._figures = self._figures, {}
            for reason, number in figures.items():
                VERDICTS.labels(
                    "wait" if reason in (VerdictReason.WAITING, VerdictReason.LIMITED) else "pass", reason
                ).inc(number)
            await self.traffic.flush()

    async def revoke(self, thing: Thing, user_id: str, *, who: str) -> None:
        """End somebody's pass on every gate; they may stand in line again."""
        await self._room.queues.kept(thing, lambda: self._store.run(REVOKE, thing, user_id, who, MOST_REVOKED))
        await self._room.queues.mark(thing)
        self._inside.pop((thing, user_id), None)

    async def visitor(self, cookies: tuple[str, ...]) -> Visitor | None:
        """Read a visitor's cookies; None if none of them is good."""
        return self._recognise(await self.keys(), cookies, self.rules.now()) if cookies else None

    def jobs(self) -> list[Job]:
        """Give what a worker does for the gate."""
        return [Job("gate cooling", self.traffic.cool, COOL_SECONDS)]

    def newcomer(self) -> Visitor:
        """Make a visitor whom we have not seen before."""
        return Visitor(new_uuid(), int(self.rules.now()) + VISITOR_SECONDS)

    def _at_once(self, match: Match, question: Question) -> Verdict | None:
        """Decide without the store; None if that cannot be done."""
        if match.bypassed or (match.bypasses and self._bypasses(match, question)):
            return Verdict(True, VerdictReason.BYPASS, match.queue.name)
        if not match.active:
            return Verdict(True, VerdictReason.OFF, match.queue.name)
        now = self.rules.now()
        held = self._held(match, question.user_id, self._shown(question, now), now)
        if held is None or held.renewable(now):
            return None
        return Verdict(True, VerdictReason.INSIDE, match.queue.name)

    async def _decide(self, match: Match, question: Question) -> Verdict:
        """Decide with the store's help."""
        held = None
        try:
            if self._keys is None:
                await self.keys()
                verdict = self._at_once(match, question)
                if verdict is not None:
                    return verdict
            now = self.rules.now()
            visitor = self._shown(question, now)
            held = self._held(match, question.user_id, visitor, now)
            if self._away:
                self._look_again(match.queue)
            verdict = await self._renew(match, question.user_id, visitor) if held is not None else None
            if verdict is None and visitor is None and not question.user_id and question.spend is not None:
                verdict = _limited(match, question.spend)
            if verdict is None:
                verdict = await self._enter(match, question.user_id, visitor or self.newcomer())
            if self._away:
                self._away.pop(match.queue, None)
            return verdict
        except StoreUnavailable as error:
            if not isinstance(error, StoreFull):  # which has answers for those it knows
                self._away.setdefault(match.queue, monotonic() + AWAY_SECONDS)
            mode = match.guard.policy.fail_mode
            FAIL_MODE.labels(label(match.guard.thing), mode).inc()
            if held is not None or mode is FailMode.OPEN:
                return Verdict(True, VerdictReason.FAIL_OPEN, match.queue.name)
            raise
        except QueueUnknown:
            # Switched off or deleted a moment ago: whoever asks passes.
            return Verdict(True, VerdictReason.OFF, match.queue.name)

    def _look_again(self, queue: Thing) -> None:
        """Let one request a second find out whether a queue is back; the others are answered without waiting for it."""
        now = monotonic()
        until = self._away.get(queue)
        if until is None:
            return
        if now < until:
            raise StoreUnavailable
        self._away[queue] = now + AWAY_SECONDS

    def _bypasses(self, match: Match, question: Question) -> bool:
        guard = match.guard
        if question.client and guard.open_networks and within(question.client, guard.open_networks):
            return True
        name = guard.policy.bypass.header.lower().encode()
        value = question.headers.get(name) if name else None
        if value is None or self._keys is None:
            return False
        return self._keys.bypasses(value.decode("latin-1"), guard.thing.tag, self.rules.now())

    def _shown(self, question: Question, now: float) -> Visitor | None:
        """Give whose cookie comes with a request; None if it has no good one, or an account stands for the visitor."""
        if self._keys is None or not question.cookies or question.user_id:
            return None
        return self._recognise(self._keys, question.cookies, now)

    def _recognise(self, keys: PassKeys, cookies: tuple[str, ...], now: float) -> Visitor | None:
        for cookie in cookies:
            visitor = self._recognised.get(cookie)
            if visitor is None:
                visitor = keys.open(cookie, now)
                if visitor is None:
                    continue
                if len(self._recognised) >= MOST_RECOGNISED:
                    self._recognised.clear()
                self._recognised[cookie] = visitor
            if visitor.expires > now:
                return visitor
        return None

    def _held(self, match: Match, user_id: str, visitor: Visitor | None, now: float) -> Pass | None:
        """Find a pass that is good for this queue as it is now."""
        held = self._inside.get((match.queue, user_id)) if user_id else None
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
        """Renew a session and its pass together, so that a pass never outlives its seat; None if the session is over."""
        who = user_id or (visitor.id if visitor else "")
        try:
            _, seconds = await self._room.renew(match.queue.namespace, match.queue.name, who)
        except SessionUnknown:
            return None
        return self._passed(match, user_id, visitor, seconds, VerdictReason.INSIDE)

    async def _enter(self, match: Match, user_id: str, visitor: Visitor) -> Verdict:
        """Stand in line, and pass at once if it is this one's turn."""
        namespace, name, who = match.queue.namespace, match.queue.name, user_id or visitor.id
        if match.derived and self.rules.guard(match.queue) is None:
            await self.traffic.make(match.guard, name)
        status: Status = await self._room.entry(namespace, name, NICKNAME, user_id=who, trusted=True)
        if status.status is State.WAITING and await self._called(match.queue):
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
            return self._passed(match, user_id, visitor, seconds, VerdictReason.ADMITTED)
        return Verdict(False, VerdictReason.WAITING, name, status, None if user_id else visitor)

    def _passed(
        self, match: Match, user_id: str, visitor: Visitor | None, seconds: float, reason: VerdictReason
    ) -> Verdict:
        guard = self.rules.guard(match.queue) or match.guard
        now = int(self.rules.now())
        new = Pass(match.queue.tag, guard.generation, now, now + int(seconds))
        if user_id:
            self._inside[(match.queue, user_id)] = new
            self._inside.move_to_end((match.queue, user_id))
            if len(self._inside) > MOST_INSIDE:
                self._inside.popitem(last=False)
            return Verdict(True, reason, match.queue.name)
        return Verdict(True, reason, match.queue.name, visitor=(visitor or self.newcomer()).with_pass(new))

    async def _called(self, queue: Thing) -> bool:
        """Call whoever is in front and has a seat; a queue that had none a moment ago is not asked for each newcomer."""
        now = monotonic()
        if now - self._full.get(queue, 0.0) < FULL_SECONDS:
            return False
        _, _, called = await self._room.promotion.step(queue, STEP_PEOPLE)
        if not called:
            if len(self._full) > MOST_INSIDE:
                self._full.clear()
            self._full[queue] = now
        return called > 0


def _limited(match: Match, spend: Callable[[str], None]) -> Verdict | None:
    """Count the entry of a visitor whom we have not seen before; who may not enter now waits without a place."""
    try:
        spend("entry")
    except RateLimited as error:
        return Verdict(False, VerdictReason.LIMITED, match.queue.name, refusal=error)
    return None
