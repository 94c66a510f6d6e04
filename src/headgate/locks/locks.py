"""Locks in one store: waiters stand in FIFO order in the lock's own slot; hints and timers replace polling.

Every call is idempotent by the holder's name, so a lost reply can be retried. A caller that is cancelled or does not
know the outcome releases, in the background, whatever it may have got; the connection keeps the order of the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, cast

from headgate.kit.ids import new_ulid, thing_name
from headgate.kit.logs import get_logger
from headgate.kit.problems import Closed, HeadgateError, InvalidRequest, StoreUnavailable
from headgate.locks.fences import FencedValue, Fences
from headgate.locks.lock_source import LockSource
from headgate.locks.model import Grant, LockEvent, LockRequest, LockState, checked_holder, decode_state
from headgate.locks.problems import LockHeld, NotHolder, NotReplicated
from headgate.locks.settings import LockSettings
from headgate.locks.waiters import LockWaiter, WaiterList
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
MOST_INDEXED: Final = 100_000
INDEX_RETRY_SECONDS: Final = 1.0

log = get_logger()


class AcquireReply(NamedTuple):
    """The decoded reply of acquire.lua: the fence, or the place in line and when to ask again."""

    fence: int
    place: int
    opens_in: float
    ahead: int
    as_of: int
    passed_over: bool = False


class _Indexing:
    """A lock that is being added to the index, and the number of callers that wait for that."""

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
        self._lines: dict[Thing, WaiterList] = {}
        self._indexed_until: dict[Thing, float] = {}
        self._indexing: dict[Thing, _Indexing] = {}
        self._unindexed: set[Thing] = set()
        self._loop = asyncio.get_running_loop()

    def thing(self, name: str, namespace: str | None = None) -> Thing:
        """Give the address of a lock in the store."""
        return self.store.thing("lock", thing_name(namespace or self.namespace, "namespace"), thing_name(name, "name"))

    async def grant(self, request: LockRequest, holder: str) -> Grant:
        """Acquire a lock for a holder; the same holder's name again gives the same fence."""
        thing = self.store.thing("lock", request.namespace, request.name)
        limit = None if request.wait is None else self._loop.time() + request.wait
        await self._index_lock(thing)
        line = self._lines.get(thing)
        if line is not None:
            line.attend()  # already subscribed, so no hint from now on is missed
        try:
            sent = self._loop.time()
            turn = await self._ask(thing, request, holder, join=limit is None or limit > sent)
            if turn.fence:
                if line is not None:
                    line.learn(turn.as_of, request.ttl + request.delay)
                return Grant(request, holder, turn.fence, sent)
            if not turn.place:
                raise LockHeld(f"Somebody else holds the lock {request.name}.", retry_after=1)
            if line is None:
                line = self._line(thing)
            return await self._wait(line, request, holder, turn, limit)
        except (LockHeld, NotReplicated):
            raise
        except BaseException:
            # Cancelled, or no reply: the lock may have been granted.
            self.withdraw_soon(request, holder)
            raise
        finally:
            if line is not None:
                line.depart()

    async def _wait(
        self, line: WaiterList, request: LockRequest, holder: str, turn: AcquireReply, limit: float | None
    ) -> Grant:
        waiter = LockWaiter(holder, turn.place, turn.ahead)
        line.learn(turn.as_of, turn.opens_in)
        line.add(waiter)
        if self._closing:
            waiter.called.set()  # the waiters before it have been woken already
        away_since: float | None = None
        try:
            while True:
                called = await _called(waiter, limit)
                if waiter.fence:
                    return Grant(request, holder, waiter.fence, waiter.sent)
                if not called:
                    break
                if self._closing:
                    raise Closed
                waiter.called.clear()
                sent = self._loop.time()
                try:
                    turn = await self._ask(line.thing, request, holder, join=True, former=waiter.place)
                except Closed:
                    raise
                except StoreUnavailable:
                    # Waiters outlast an outage of the store for as long as they may wait.
                    away_since = away_since or sent
                    if self._loop.time() - away_since > AWAY_SECONDS or (limit and self._loop.time() > limit):
                        raise
                    await asyncio.sleep(AGAIN_SECONDS)
                    waiter.called.set()
                    continue
                away_since = None
                if turn.fence:
                    line.learn(turn.as_of, request.ttl + request.delay)
                    return Grant(request, holder, turn.fence, sent)
                waiter.ahead = turn.ahead
                line.learn(turn.as_of, turn.opens_in)
                if turn.passed_over:
                    # It missed the hint that it was its turn, and so may those behind it here; more hints may be lost:
                    # each asks once more within the grace of its next turn.
                    self._loop.call_later(self._grace_ms / 2000, waiter.called.set)
                    if line.is_first(waiter):
                        line.call_all()
        finally:
            line.remove(waiter)
        await self.withdraw(request, holder)
        raise LockHeld(f"Somebody else held the lock {request.name} for {request.wait:g} s.", retry_after=1)

    async def _ask(
        self, thing: Thing, request: LockRequest, holder: str, *, join: bool, former: int = 0
    ) -> AcquireReply:
        arguments = (
            holder,
            self.names.owner,
            request.ttl_ms,
            round(request.delay * 1000),
            self._grace_ms,
            (1 if request.replicas else 2) if join else 0,
            former,
            request.label,
            int(request.announced),
            request.request_id,
        )
        if request.replicas:
            reply = await self._ask_replicated(thing, request, holder, arguments)
        else:
            reply = cast("list[int | bytes]", await self.store.run(ACQUIRE, thing, *arguments))
        if reply[0] == 1:
            return AcquireReply(int(reply[1]), 0, 0.0, 0, int(reply[2]))
        return AcquireReply(0, int(reply[1]), int(reply[2]) / 1000, int(reply[3]), int(reply[4]), reply[5] == 1)

    async def _ask_replicated(
        self, thing: Thing, request: LockRequest, holder: str, arguments: Sequence[Arg]
    ) -> list[int | bytes]:
        """Acquire a lock that counts only once enough replicas have it; otherwise release it."""
        ack_seconds = min(self.settings.ack_ms / 1000, request.ttl * ACK_SHARE)
        answer, confirmed = await self.store.run_replicated(
            ACQUIRE, thing, *arguments, replicas=request.replicas, ack_ms=round(ack_seconds * 1000), counts=_is_given
        )
        if _is_given(answer) and confirmed < request.replicas:
            await self.withdraw(request, holder)
            raise NotReplicated(
                f"{confirmed} of {request.replicas} replicas confirmed the lock {request.name} in {ack_seconds:g} s.",
                retry_after=1,
                confirmed=confirmed,
            )
        return cast("list[int | bytes]", answer)

    async def renew(self, grant: Grant, deadline: float) -> None:
        """Extend the lease to one TTL from now."""
        request = grant.request
        await self.renew_as(request.namespace, request.name, grant.holder, deadline=deadline)

    async def renew_as(
        self, namespace: str, name: str, holder: str, *, deadline: float | None = None
    ) -> tuple[int, float]:
        """Renew by the holder's name; return its fence and TTL."""
        request = LockRequest(namespace, name, 1.0)
        reply = await self.store.run(
            RENEW, self.thing(name, namespace), checked_holder(holder), int(request.announced), deadline=deadline
        )
        fence, ttl_ms = cast("list[bytes]", reply)
        return int(fence), int(ttl_ms) / 1000

    async def release_grant(self, grant: Grant) -> None:
        """Release a lock."""
        request = grant.request
        await self._release(request, grant.holder, grant.holder[:NONCE_LETTERS])

    async def release_as(self, namespace: str, name: str, holder: str) -> None:
        """Release by the holder's name; raises NotHolder."""
        request = LockRequest(namespace, name, 1.0)
        try:
            await self._release(request, checked_holder(holder), new_ulid()[-NONCE_LETTERS:])
        except (NotHolder, InvalidRequest):
            raise
        except BaseException:
            # A waiter of this process may have been granted the lock without a hint.
            line = self._lines.get(self.thing(name, namespace))
            if line is not None:
                line.call_all()
            raise

    async def withdraw(self, request: LockRequest, holder: str) -> None:
        """Release the lock, or leave the line."""
        await self._release(request, holder, "")

    async def _release(self, request: LockRequest, holder: str, nonce: str) -> None:
        thing = self.store.thing("lock", request.namespace, request.name)
        sent = self._loop.time()
        # A request on the second connection is withdrawn there too, so that the order is kept.
        aside = request.replicas > 0 and not nonce
        request_id = "-" if nonce else request.request_id
        arguments = (holder, nonce, self.names.owner, int(request.announced), request_id)
        reply = cast("list[int | bytes]", await self.store.run(RELEASE, thing, *arguments, in_order=aside))
        line = self._lines.get(thing) if len(reply) > 1 else None
        if line is None:
            return
        heir = cast("bytes", reply[1]).decode()
        if len(reply) == 2:
            line.hand(heir, 0, sent)  # the start of its lease is not known here, so it asks
        else:
            line.learn(int(reply[3]), int(reply[4]) / 1000)
            line.hand(heir, int(reply[2]), sent)

    async def break_lock(
        self, name: str, namespace: str | None = None, *, by: str, reason: str = "", fence: int | None = None
    ) -> int:
        """Take a lock from its holder; return the fence that ended, or 0 if it was not held."""
        thing = self.thing(name, namespace)
        only = "" if fence is None else fence
        ended = int(cast("bytes", await self.store.run(BREAK, thing, new_ulid(), only, by, reason)))
        if ended:
            log.warning("lock broken", lock=name, namespace=thing.namespace, fence=ended, by=by, reason=reason)
        return ended

    async def show(self, name: str, namespace: str | None = None) -> LockState:
        """Give the state of a lock."""
        return decode_state(name, await self.store.run(SHOW, self.thing(name, namespace)))

    async def history(self, name: str, namespace: str | None = None, most: int = 20) -> Sequence[LockEvent]:
        """List holdings of a lock that expired or were broken, the latest first."""
        thing = self.thing(name, namespace)
        reply = await self.store.read(thing, "XREVRANGE", thing.key("events"), "+", "-", "COUNT", most)
        return [decode_event(fields) for _, fields in cast("list[tuple[bytes, list[bytes]]]", reply)]

    async def list(self, namespace: str | None = None) -> Sequence[LockState]:
        """List the locks that are held or waited for, by name."""
        things = await self.index.list(namespace or self.namespace)
        states = await asyncio.gather(*(self.show(thing.name, thing.namespace) for thing in things))
        return [state for state in states if state.held or state.waiting]

    def watch(self, name: str, namespace: str | None = None) -> AsyncGenerator[LockState, None]:
        """Yield a lock's state now and after each change of holder."""
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

    def wake_waiters(self) -> None:
        """Wake all waiters, so that they find this source closing."""
        for line in self._lines.values():
            line.call_all()

    def _line(self, thing: Thing) -> WaiterList:
        line = self._lines.get(thing)
        if line is None:
            line = self._lines[thing] = WaiterList(self.store, thing, self._grace_ms / 1000, self._forget_line)
        line.attend()
        return line

    def _forget_line(self, line: WaiterList) -> None:
        del self._lines[line.thing]

    async def _index_lock(self, thing: Thing) -> None:
        """Add a lock to the index from time to time; listings and the sweep use it.

        Callers that come meanwhile wait in order, so that they ask for the lock in the order they came.
        """
        indexing = self._indexing.get(thing)
        if indexing is None:
            if self._indexed_until.get(thing, 0.0) > self._loop.time():
                return
            indexing = self._indexing[thing] = _Indexing()
        indexing.users += 1
        try:
            async with indexing.lock:
                if self._indexed_until.get(thing, 0.0) <= self._loop.time():
                    await self._add_to_index(thing)
        finally:
            indexing.users -= 1
            if not indexing.users:
                del self._indexing[thing]

    async def _add_to_index(self, thing: Thing) -> None:
        if len(self._indexed_until) >= MOST_INDEXED:
            self._indexed_until.clear()
        if not self._unindexed:
            try:
                await self._put_in_index(thing)
            except HeadgateError as error:
                # The index is in another slot, maybe on another node: locks do not wait for it while it is away.
                log.warning("locks not listed", error=str(error))
                if not self._unindexed:
                    self.start_task(self._retry_indexing())
                self._unindexed.add(thing)
        else:
            self._unindexed.add(thing)
        self._indexed_until[thing] = self._loop.time() + self.settings.keep_seconds / 2

    async def _put_in_index(self, thing: Thing) -> None:
        await self.index.put(thing, due_in_ms=self.settings.keep_seconds * 1000)

    async def _retry_indexing(self) -> None:
        """Add locks to the index that could not be added before."""
        await asyncio.sleep(INDEX_RETRY_SECONDS)
        while self._unindexed:
            thing = next(iter(self._unindexed))
            try:
                await self._put_in_index(thing)
                self._unindexed.discard(thing)
            except HeadgateError:
                await asyncio.sleep(INDEX_RETRY_SECONDS)


def _is_given(reply: Reply) -> bool:
    """Whether acquire.lua granted the lock."""
    return isinstance(reply, list) and reply[0] == 1


async def _called(waiter: LockWaiter, limit: float | None) -> bool:
    """Wait until it may be this waiter's turn; False on timeout."""
    if limit is None:
        return await waiter.called.wait()
    try:
        async with asyncio.timeout_at(limit):
            return await waiter.called.wait()
    except TimeoutError:
        return False


def decode_event(fields: list[bytes]) -> LockEvent:
    """Decode one event of a lock's stream."""
    found = {name.decode(): value.decode() for name, value in zip(fields[::2], fields[1::2], strict=True)}
    at = datetime.fromtimestamp(int(found["at"]) / 1000, UTC)
    return LockEvent(found["kind"], int(found["fence"]), at, found.get("by", ""), found.get("reason", ""))
