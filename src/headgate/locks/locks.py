"""Locks in one store: a FIFO line in the lock's own slot, hints and timers in place of polling.

Every call is repeated safely by the holder's name, so a lost reply costs nothing. Whoever is cancelled or cannot know how its
call ended gives back, in the background, whatever it may have got; the connection keeps the order of the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, cast

from headgate.kit.ids import new_ulid, thing_name
from headgate.kit.logs import get_logger
from headgate.kit.problems import Closed, HeadgateError, InvalidRequest, StoreUnavailable
from headgate.locks.guard import FencedValue, Fences
from headgate.locks.model import (
    Grant,
    LockEvent,
    LockHeld,
    LockState,
    NotHolder,
    NotReplicated,
    Want,
    checked_holder,
    read_state,
)
from headgate.locks.settings import LockSettings
from headgate.locks.source import LockSource
from headgate.locks.waiting import LockLine, LockWaiter
from headgate.locks.watch import watch_lock
from headgate.store import Index, Store, Thing, script
from headgate.store.client.link import Arg, Reply

ACQUIRE = script(__package__, "acquire")
RENEW = script(__package__, "renew")
RELEASE = script(__package__, "release")
BREAK = script(__package__, "break")
SHOW = script(__package__, "show")

AWAY_SECONDS: Final = 30.0
AGAIN_SECONDS: Final = 0.1
ACK_SHARE: Final = 0.3
NONCE_LETTERS: Final = 9
MOST_NOTED: Final = 100_000
LIST_AGAIN_SECONDS: Final = 1.0

log = get_logger()


class AcquireReply(NamedTuple):
    """What the store said to one who asked: the fence, or the place in line and when to ask again."""

    fence: int
    place: int
    opens_in: float
    ahead: int
    as_of: int
    passed_over: bool = False


class _Listing:
    """A lock that is being entered in the list of locks, and how many wait for that."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class Locks(LockSource):
    """The locks of one store."""

    def __init__(self, store: Store, settings: LockSettings | None = None, namespace: str = "default") -> None:
        super().__init__(namespace)
        self.store = store
        self.settings = settings or LockSettings()
        self.fences = Fences(store)
        self.index = Index(store, "lock")
        self._grace_ms = self.settings.grace_ms
        self._lines: dict[Thing, LockLine] = {}
        self._noted: dict[Thing, float] = {}
        self._listing: dict[Thing, _Listing] = {}
        self._unlisted: set[Thing] = set()
        self._loop = asyncio.get_running_loop()

    def thing(self, name: str, namespace: str | None = None) -> Thing:
        """Name the thing that a lock is in the store."""
        return self.store.thing("lock", thing_name(namespace or self.namespace, "namespace"), thing_name(name, "name"))

    async def grant(self, want: Want, holder: str) -> Grant:
        """Take a lock for a holder; asking again with the same name while it holds gives the same fence."""
        thing = self.store.thing("lock", want.namespace, want.name)
        limit = None if want.wait is None else self._loop.time() + want.wait
        await self._note(thing)
        line = self._lines.get(thing)
        if line is not None:
            line.attend()  # it listens already, so nothing that happens from now on is missed
        try:
            sent = self._loop.time()
            turn = await self._ask(thing, want, holder, join=limit is None or limit > sent)
            if turn.fence:
                if line is not None:
                    line.learn(turn.as_of, want.ttl + want.delay)
                return Grant(want, holder, turn.fence, sent)
            if not turn.place:
                raise LockHeld(f"Somebody else holds the lock {want.name}.", retry_after=1)
            if line is None:
                line = self._line(thing)
            return await self._wait(line, want, holder, turn, limit)
        except (LockHeld, NotReplicated):
            raise
        except BaseException:
            # Cancelled, or the store did not answer: what we asked for may have been given.
            self.leave_soon(want, holder)
            raise
        finally:
            if line is not None:
                line.depart()

    async def _wait(self, line: LockLine, want: Want, holder: str, turn: AcquireReply, limit: float | None) -> Grant:
        waiter = LockWaiter(holder, turn.place, turn.ahead)
        line.learn(turn.as_of, turn.opens_in)
        line.add(waiter)
        if self._closing:
            waiter.called.set()  # whoever was there before it has been told
        away_since: float | None = None
        try:
            while True:
                called = await _called(waiter, limit)
                if waiter.fence:
                    return Grant(want, holder, waiter.fence, waiter.sent)
                if not called:
                    break
                if self._closing:
                    raise Closed
                waiter.called.clear()
                sent = self._loop.time()
                try:
                    turn = await self._ask(line.thing, want, holder, join=True, former=waiter.place)
                except Closed:
                    raise
                except StoreUnavailable:
                    # Those in line outlast an outage of the store within their patience.
                    away_since = away_since or sent
                    if self._loop.time() - away_since > AWAY_SECONDS or (limit and self._loop.time() > limit):
                        raise
                    await asyncio.sleep(AGAIN_SECONDS)
                    waiter.called.set()
                    continue
                away_since = None
                if turn.fence:
                    line.learn(turn.as_of, want.ttl + want.delay)
                    return Grant(want, holder, turn.fence, sent)
                waiter.ahead = turn.ahead
                line.learn(turn.as_of, turn.opens_in)
                if turn.passed_over:
                    # It was called and did not hear it, and so were those behind it here. They may be deaf for longer:
                    # each looks once more within the grace of its next call.
                    self._loop.call_later(self._grace_ms / 2000, waiter.called.set)
                    if line.is_first(waiter):
                        line.call_all()
        finally:
            line.remove(waiter)
        await self.give_up(want, holder)
        raise LockHeld(f"Somebody else held the lock {want.name} for {want.wait:g} s.", retry_after=1)

    async def _ask(self, thing: Thing, want: Want, holder: str, *, join: bool, former: int = 0) -> AcquireReply:
        arguments = (
            holder,
            self.names.owner,
            want.ttl_ms,
            round(want.delay * 1000),
            self._grace_ms,
            (1 if want.replicas else 2) if join else 0,
            former,
            want.label,
            int(want.announced),
            want.request,
        )
        if want.replicas:
            reply = await self._ask_replicated(thing, want, holder, arguments)
        else:
            reply = cast("list[int | bytes]", await self.store.run(ACQUIRE, thing, *arguments))
        if reply[0] == 1:
            return AcquireReply(int(reply[1]), 0, 0.0, 0, int(reply[2]))
        return AcquireReply(0, int(reply[1]), int(reply[2]) / 1000, int(reply[3]), int(reply[4]), reply[5] == 1)

    async def _ask_replicated(
        self, thing: Thing, want: Want, holder: str, arguments: Sequence[Arg]
    ) -> list[int | bytes]:
        """Ask so that a lock which is given counts only once enough replicas have it; else it is given back."""
        ack_seconds = min(self.settings.ack_ms / 1000, want.ttl * ACK_SHARE)
        answer, confirmed = await self.store.run_replicated(
            ACQUIRE, thing, *arguments, replicas=want.replicas, ack_ms=round(ack_seconds * 1000), counts=_is_given
        )
        if _is_given(answer) and confirmed < want.replicas:
            await self.give_up(want, holder)
            raise NotReplicated(
                f"{confirmed} of {want.replicas} replicas confirmed the lock {want.name} in {ack_seconds:g} s.",
                retry_after=1,
                confirmed=confirmed,
            )
        return cast("list[int | bytes]", answer)

    async def renew(self, grant: Grant, deadline: float) -> None:
        """Make the lease last one TTL more."""
        want = grant.want
        await self.renew_as(want.namespace, want.name, grant.holder, deadline=deadline)

    async def renew_as(
        self, namespace: str, name: str, holder: str, *, deadline: float | None = None
    ) -> tuple[int, float]:
        """Renew in a holder's name; give its fence and TTL."""
        want = Want(namespace, name, 1.0)
        reply = await self.store.run(
            RENEW, self.thing(name, namespace), checked_holder(holder), int(want.announced), deadline=deadline
        )
        fence, ttl_ms = cast("list[bytes]", reply)
        return int(fence), int(ttl_ms) / 1000

    async def hand_back(self, grant: Grant) -> None:
        """Give a lock back."""
        want = grant.want
        await self._release(want, grant.holder, grant.holder[:NONCE_LETTERS])

    async def release_as(self, namespace: str, name: str, holder: str) -> None:
        """Give a lock back in a holder's name; raises NotHolder."""
        want = Want(namespace, name, 1.0)
        try:
            await self._release(want, checked_holder(holder), new_ulid()[-NONCE_LETTERS:])
        except (NotHolder, InvalidRequest):
            raise
        except BaseException:
            # It may have been given to one who waits here and will not hear of it.
            line = self._lines.get(self.thing(name, namespace))
            if line is not None:
                line.call_all()
            raise

    async def give_up(self, want: Want, holder: str) -> None:
        """Give back whatever a holder has."""
        await self._release(want, holder, "")

    async def _release(self, want: Want, holder: str, nonce: str) -> None:
        thing = self.store.thing("lock", want.namespace, want.name)
        sent = self._loop.time()
        # What was asked for by the second connection is given up by it too, so that it comes after it.
        aside = want.replicas > 0 and not nonce
        request = "-" if nonce else want.request
        arguments = (holder, nonce, self.names.owner, int(want.announced), request)
        reply = cast("list[int | bytes]", await self.store.run(RELEASE, thing, *arguments, in_order=aside))
        line = self._lines.get(thing) if len(reply) > 1 else None
        if line is None:
            return
        heir = cast("bytes", reply[1]).decode()
        if len(reply) == 2:
            line.hand(heir, 0, sent)  # when its lease began is not known here: it asks
        else:
            line.learn(int(reply[3]), int(reply[4]) / 1000)
            line.hand(heir, int(reply[2]), sent)

    async def break_lock(
        self, name: str, namespace: str | None = None, *, by: str, reason: str = "", fence: int | None = None
    ) -> int:
        """Take a lock away from its holder; give the fence of the holding that ended, or 0 if none did."""
        thing = self.thing(name, namespace)
        only = "" if fence is None else fence
        ended = int(cast("bytes", await self.store.run(BREAK, thing, new_ulid(), only, by, reason)))
        if ended:
            log.warning("lock broken", lock=name, namespace=thing.namespace, fence=ended, by=by, reason=reason)
        return ended

    async def show(self, name: str, namespace: str | None = None) -> LockState:
        """Tell how a lock stands."""
        return read_state(name, await self.store.run(SHOW, self.thing(name, namespace)))

    async def history(self, name: str, namespace: str | None = None, most: int = 20) -> Sequence[LockEvent]:
        """Tell how holdings of a lock ended against their holders' wish, the latest first."""
        thing = self.thing(name, namespace)
        reply = await self.store.read(thing, "XREVRANGE", thing.key("events"), "+", "-", "COUNT", most)
        return [read_event(fields) for _, fields in cast("list[tuple[bytes, list[bytes]]]", reply)]

    async def list(self, namespace: str | None = None) -> Sequence[LockState]:
        """Give the locks that are held or waited for, by name."""
        things = await self.index.list(namespace or self.namespace)
        states = await asyncio.gather(*(self.show(thing.name, thing.namespace) for thing in things))
        return [state for state in states if state.held or state.waiting]

    def watch(self, name: str, namespace: str | None = None) -> AsyncGenerator[LockState, None]:
        """Give a lock's state now and after each change of hands."""
        thing = self.thing(name, namespace)
        return watch_lock(
            lambda on_hint: self.store.hints.listen(thing, "events", on_hint), lambda: self.show(name, namespace)
        )

    async def fenced_set(self, key: str, value: str, fence: int, namespace: str | None = None) -> None:
        """Write a value under a fence; raises FenceOutdated if a newer holder has written."""
        await self.fences.set(namespace or self.namespace, key, value, fence)

    async def fenced_get(self, key: str, namespace: str | None = None) -> FencedValue | None:
        """Read a value with the fence it was written under."""
        return await self.fences.get(namespace or self.namespace, key)

    def dismiss(self) -> None:
        """Send those home who still wait."""
        for line in self._lines.values():
            line.call_all()

    def _line(self, thing: Thing) -> LockLine:
        line = self._lines.get(thing)
        if line is None:
            line = self._lines[thing] = LockLine(self.store, thing, self._grace_ms / 1000, self._forget_line)
        line.attend()
        return line

    def _forget_line(self, line: LockLine) -> None:
        del self._lines[line.thing]

    async def _note(self, thing: Thing) -> None:
        """Enter a lock in the list of locks, once in a while: lists and the sweep are served from there.

        Those who come while one enters it wait behind each other, so that they ask for the lock in the order they came.
        """
        listing = self._listing.get(thing)
        if listing is None:
            if self._noted.get(thing, 0.0) > self._loop.time():
                return
            listing = self._listing[thing] = _Listing()
        listing.users += 1
        try:
            async with listing.lock:
                if self._noted.get(thing, 0.0) <= self._loop.time():
                    await self._enter_in_list(thing)
        finally:
            listing.users -= 1
            if not listing.users:
                del self._listing[thing]

    async def _enter_in_list(self, thing: Thing) -> None:
        if len(self._noted) >= MOST_NOTED:
            self._noted.clear()
        if not self._unlisted:
            try:
                await self._list_one(thing)
            except HeadgateError as error:
                # The list lives in another slot, maybe on another node: nobody waits for it while it is away.
                log.warning("locks not listed", error=str(error))
                if not self._unlisted:
                    self.beside(self._list_rest())
                self._unlisted.add(thing)
        else:
            self._unlisted.add(thing)
        self._noted[thing] = self._loop.time() + self.settings.keep_seconds / 2

    async def _list_one(self, thing: Thing) -> None:
        await self.index.put(thing, due_in_ms=self.settings.keep_seconds * 1000)

    async def _list_rest(self) -> None:
        """Enter what could not be entered before, once it can be."""
        await asyncio.sleep(LIST_AGAIN_SECONDS)
        while self._unlisted:
            thing = next(iter(self._unlisted))
            try:
                await self._list_one(thing)
                self._unlisted.discard(thing)
            except HeadgateError:
                await asyncio.sleep(LIST_AGAIN_SECONDS)


def _is_given(reply: Reply) -> bool:
    """Tell whether acquire.lua gave the lock."""
    return isinstance(reply, list) and reply[0] == 1


async def _called(waiter: LockWaiter, limit: float | None) -> bool:
    """Wait until it may be this one's turn; False if its patience ends first."""
    if limit is None:
        return await waiter.called.wait()
    try:
        async with asyncio.timeout_at(limit):
            return await waiter.called.wait()
    except TimeoutError:
        return False


def read_event(fields: list[bytes]) -> LockEvent:
    """Read one event of a lock's stream."""
    found = {name.decode(): value.decode() for name, value in zip(fields[::2], fields[1::2], strict=True)}
    at = datetime.fromtimestamp(int(found["at"]) / 1000, UTC)
    return LockEvent(found["kind"], int(found["fence"]), at, found.get("by", ""), found.get("reason", ""))
