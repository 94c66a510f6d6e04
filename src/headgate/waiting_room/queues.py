"""Queues as operators see them: policies, switches, figures, audit, history; and restoring lost queues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack
from time import monotonic
from typing import Final, NamedTuple, TypeVar, cast

import msgspec

from headgate.kit.ids import new_ulid, thing_name
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError, StoreUnavailable, VersionConflict
from headgate.kit.wire import iso_time
from headgate.store import Index, Reply, Store, Thing, script
from headgate.waiting_room.memory import QueueFacts, QueueMemory, RememberedQueue
from headgate.waiting_room.policy import Policy, PolicyChange
from headgate.waiting_room.problems import QueueLost, QueueUnknown
from headgate.waiting_room.signing import PLACE_SECONDS
from headgate.waiting_room.wire import Audit, AuditRecord, Figures, History, Minute, QueueView

CONFIGURE = script("headgate.waiting_room", "configure")
OPERATE = script("headgate.waiting_room", "operate")
FIGURES = script("headgate.waiting_room", "figures")
BOARD = script("headgate.waiting_room", "board")

MARKS: Final = 64
ATTEMPTS: Final = 5
ANY_VERSION: Final = -1  # of a queue that must be there
MOST_RECORDS: Final = 1000
MOST_NAMED: Final = 4_096
OFFSET_AT: Final = 15
TOTALS_AT: Final = 17
# A change without a hint, such as a clock that was put back, is noticed after this long.
REFRESH_SECONDS: Final = 60.0
# Processes that remember a queue restore it within this time after a loss of data.
RESTORE_MS: Final = 10_000

log = get_logger()
T = TypeVar("T")


class QueueSnapshot(msgspec.Struct, frozen=True):
    """Everything needed to restore a lost queue: its policy, its operator's switches, and how far its clock is ahead.

    `ahead_ms` is how far its places may be ahead of that clock, for a minute after a possible loss.
    """

    policy: Policy
    paused: bool
    draining: bool
    offset_ms: int
    ahead_ms: int


class BoardReply(NamedTuple):
    """The decoded reply of `board.lua`; `seen` counts the marked users who were seen lately."""

    epoch: str
    generation: int
    serving: int
    waiting: int
    rate: int
    now_ms: int
    seen: int
    marks: list[tuple[int, int]]


def decode_board(reply: Reply) -> BoardReply:
    """Decode the reply of `board.lua`."""
    epoch, *numbers = cast("list[bytes | int]", reply)
    generation, serving, waiting, rate, now_ms, seen, *marks = cast("list[int]", numbers)
    pairs = list(zip(marks[::2], marks[1::2], strict=True))
    return BoardReply(cast("bytes", epoch).decode(), generation, serving, waiting, rate, now_ms, seen, pairs)


class Queues:
    """All queues of a store."""

    def __init__(self, store: Store, memory: QueueMemory) -> None:
        self.index = Index(store, "queue")
        self._store = store
        self._memory = memory
        self._subscriptions: dict[Thing, ExitStack] = {}
        self._named: dict[tuple[str, str], Thing] = {}
        self._refreshed_at: dict[Thing, float] = {}

    def thing(self, namespace: str, queue: str) -> Thing:
        """Give the thing of a queue; both names come from outside and are validated."""
        thing = self._named.get((namespace, queue))
        if thing is None:
            thing = self._store.thing("queue", thing_name(namespace, "namespace"), thing_name(queue, "queue"))
            if len(self._named) >= MOST_NAMED:
                self._named.clear()
            self._named[namespace, queue] = thing
        return thing

    async def view(self, thing: Thing) -> QueueView:
        """Show a queue; raises QueueUnknown."""
        reply = await self._read(thing)
        view = _view(thing, reply)
        self._remember(thing, view, *cast("list[int]", reply[OFFSET_AT:TOTALS_AT]))
        return view

    async def list(self, namespace: str | None) -> Sequence[QueueView]:
        """Show all queues of a namespace, or of all."""
        things = await self.index.list(namespace)
        replies = await asyncio.gather(*(self._store.run(FIGURES, thing) for thing in things), return_exceptions=True)
        found = []
        for thing, reply in zip(things, replies, strict=True):
            if isinstance(reply, BaseException):
                if not isinstance(reply, QueueUnknown):
                    raise reply
            else:
                found.append(_view(thing, cast("list[Reply]", reply)))
        return found

    async def figures(self, thing: Thing) -> Figures | None:
        """Give a queue's numbers, with an estimate of the users seen lately; None if the queue is gone."""
        try:
            view = _view(thing, cast("list[Reply]", await self._store.run(FIGURES, thing)))
            board = decode_board(await self._store.run(BOARD, thing, MARKS)) if view.waiting else None
        except QueueUnknown:
            return None
        live = round(view.waiting * board.seen / len(board.marks)) if board is not None and board.marks else 0
        return msgspec.structs.replace(view.figures, live=live)

    async def configure(
        self, thing: Thing, change: PolicyChange, *, who: str, expected: int | None = None, template: str = ""
    ) -> QueueView:
        """Create a queue, from a template or not, or change its policy.

        `expected` is its version: 0 for a new one, `ANY_VERSION` for any that is there.
        """
        for _ in range(ATTEMPTS):
            try:
                before: QueueView | None = await self.view(thing)
            except QueueUnknown:
                before = None
            version = before.version if before else 0
            if expected not in (None, version) and not (expected == ANY_VERSION and before):
                raise VersionConflict(version=version)
            policy = change.applied_to(_policy_of(before) if before else None)
            if template:
                policy = msgspec.structs.replace(policy, template=template)
            await self.index.put(thing, 0)
            try:
                await self._write(thing, policy, version, who)
            except VersionConflict:
                if expected not in (None, ANY_VERSION):
                    raise
                continue
            log.info("queue configured", queue=thing.name, namespace=thing.namespace, who=who)
            return await self.view(thing)
        raise VersionConflict

    async def operate(
        self, thing: Thing, action: str, *, who: str, expected: int | None = None, number: int = 0
    ) -> None:
        """Pause, resume, drain, admit, reset or delete a queue."""

        async def act() -> Reply:
            wanted = "" if expected in (None, ANY_VERSION) else expected  # the script refuses a missing queue anyway
            return await self._store.run(OPERATE, thing, action, who, wanted, request, number, PLACE_SECONDS * 1000)

        request = new_ulid()
        await self.index.put(thing, 0)
        await self.with_restore(thing, act)
        await self.mark_changed(thing)
        if action == "delete":
            self.forget(thing)
            # A worker that visited just before found the queue; the next one does not, and removes it from the index.
            await self.index.put(thing, 0)
        log.info("queue operated", queue=thing.name, namespace=thing.namespace, action=action, who=who)

    async def audit(self, thing: Thing) -> Audit:
        """Show who changed what, newest first."""
        await self._read(thing)
        entries = await self._store.read(thing, "XREVRANGE", thing.key("audit"), "+", "-", "COUNT", MOST_RECORDS)
        return Audit(
            thing.name,
            [
                AuditRecord(iso_time(int(at)), who, action, _object(old), _object(new))
                for at, who, action, old, new in (
                    [record[name] for name in ("at", "who", "action", "old", "new")] for record in _records(entries)
                )
            ],
        )

    async def history(self, thing: Thing, minutes: int) -> History:
        """Show the last so many recorded minutes; a minute in which nothing ran has no record."""
        await self._read(thing)
        entries = await self._store.read(thing, "XREVRANGE", thing.key("history"), "+", "-", "COUNT", minutes)
        return History(thing.name, [_minute(record) for record in _records(entries)][::-1])

    async def with_restore(self, thing: Thing, call: Callable[[], Awaitable[T]], *, in_line: bool = False) -> T:
        """Make a call on a queue; if the store has lost the queue, restore it from memory and repeat the call.

        With `in_line`, a call for a waiting user raises StoreUnavailable, which means try again, if this process does
        not remember the queue and the store has just lost its data.
        """
        try:
            return await call()
        except QueueLost as error:
            if not await self._restore(thing):
                if in_line and (await self.index.age(thing))[0] < RESTORE_MS:
                    raise StoreUnavailable(
                        "The store is new or has just lost its data, and this queue is not known yet; try again shortly."
                    ) from error
                raise QueueUnknown from error
        except QueueUnknown:
            self.forget(thing)
            raise
        try:
            return await call()
        except QueueLost as error:
            raise QueueUnknown from error

    async def mark_changed(self, thing: Thing) -> None:
        """Make every gate read a queue again, even one that misses the hint; if this fails, gates read it later."""
        try:
            await self.index.mark(thing)
        except HeadgateError as error:
            log.debug("change not marked", queue=thing.name, error=error.detail)

    def forget(self, thing: Thing) -> None:
        """Drop a deleted queue from memory, so that it is not restored."""
        self._memory.forget(thing)
        if (stack := self._subscriptions.pop(thing, None)) is not None:
            stack.close()

    def update_memory(self, thing: Thing, generation: int, epoch: int, serving: int) -> RememberedQueue:
        """Record the numbers of a reply, and read the policy in the background if it is unknown or old."""
        known = self._memory.update(thing, generation, epoch, serving)
        now = monotonic()
        if known.stale or now - self._refreshed_at.get(thing, -REFRESH_SECONDS) >= REFRESH_SECONDS:
            known.stale = False
            if len(self._refreshed_at) >= MOST_NAMED:
                self._refreshed_at.clear()
            self._refreshed_at[thing] = now
            self._store.tasks.start(self._refresh_policy(thing))
        return known

    def known_facts(self, thing: Thing, packed: bytes) -> QueueFacts | None:
        """Give the decoded facts of a queue if these are the packed ones seen last and the policy is current."""
        known = self._memory.get(thing)
        if known is None or known.stale or known.facts is None or known.facts.packed != packed:
            return None
        return known.facts

    def close(self) -> None:
        """Unsubscribe from all hints."""
        for thing in tuple(self._subscriptions):
            self._subscriptions.pop(thing).close()

    async def _refresh_policy(self, thing: Thing) -> None:
        try:
            await self.view(thing)
        except HeadgateError as error:
            log.debug("policy not read", queue=thing.name, error=error.detail)
            known = self._memory.get(thing)
            if known is not None:
                known.stale = True

    def _remember(self, thing: Thing, view: QueueView, offset_ms: int, ahead_ms: int) -> None:
        known = self._memory.update(thing, view.generation, int(view.epoch), view.serving)
        snapshot = QueueSnapshot(_policy_of(view), view.paused, view.draining, offset_ms, ahead_ms)
        known.snapshot, known.stale = msgspec.json.encode(snapshot), False
        if thing not in self._subscriptions:
            stack = self._subscriptions[thing] = ExitStack()
            stack.enter_context(self._store.hints.listen(thing, "events", lambda hint: self._on_hint(thing, hint)))

    def _on_hint(self, thing: Thing, hint: str | None) -> None:
        known = self._memory.get(thing)
        if hint == "delete":
            self.forget(thing)
        elif known is not None and hint is not None and hint.startswith("changed"):
            known.apply_changes(hint.split(" ")[1:])
        elif known is not None:
            known.stale = True
            if hint is None:
                known.mark_unconfirmed()

    async def _read(self, thing: Thing) -> Sequence[Reply]:
        return cast("list[Reply]", await self.with_restore(thing, lambda: self._store.run(FIGURES, thing)))

    async def _restore(self, thing: Thing) -> bool:
        known = self._memory.get(thing)
        if known is None or not known.snapshot:
            return False
        snapshot = msgspec.json.decode(known.snapshot, type=QueueSnapshot)
        served = max(known.serving, known.served)
        switches = "p" * snapshot.paused + "d" * snapshot.draining
        state = f"{snapshot.offset_ms} {snapshot.ahead_ms} {served} {switches}"
        await self.index.put(thing, 0)
        try:
            await self._write(
                thing, snapshot.policy, 0, "headgate", known.generation, state=state, promoted=known.promoted_users()
            )
        except VersionConflict:
            return True  # another process was faster
        log.warning("queue written back", queue=thing.name, namespace=thing.namespace)
        return True

    async def _write(
        self,
        thing: Thing,
        policy: Policy,
        version: int,
        who: str,
        generation: int = 1,
        *,
        state: str = "",
        promoted: str = "",
    ) -> None:
        json = msgspec.json.encode(policy)
        fields = policy.for_script()
        await self._store.run(CONFIGURE, thing, version, who, json, generation, state, promoted, *fields)
        await self.mark_changed(thing)


def _object(text: str) -> dict[str, object]:
    """Decode a value of an audit entry; older entries have `name=value` words, or nothing."""
    if text.startswith("{"):
        return msgspec.json.decode(text, type=dict[str, object])
    words = (word.partition("=") for word in text.split(" ") if "=" in word)
    return {name: value for name, _, value in words}


def _policy_of(view: QueueView) -> Policy:
    return Policy(**{name: getattr(view, name) for name in Policy.__struct_fields__})


def _view(thing: Thing, reply: Sequence[Reply]) -> QueueView:
    policy = msgspec.json.decode(cast("bytes", reply[0]), type=Policy)
    version, generation = cast("list[int]", reply[1:3])
    epoch = cast("bytes", reply[3]).decode()
    numbers = cast("list[int]", reply[4:OFFSET_AT])
    paused, draining, waiting, away, holds, sessions, kept, servers, capacity, rate, serving = numbers
    totals = {
        cast("bytes", name).decode(): cast("int", number)
        for name, number in zip(reply[TOTALS_AT::2], reply[TOTALS_AT + 1 :: 2], strict=True)
    }
    figures = Figures(
        waiting=waiting,
        live=waiting,
        away=away,
        holds=holds,
        kept=kept,
        sessions=sessions,
        servers=servers,
        capacity=capacity,
        rate_per_second=rate / 1_000_000,
        **{f"{name}_total": number for name, number in totals.items()},
    )
    return QueueView(
        **{name: getattr(policy, name) for name in Policy.__struct_fields__},
        queue=thing.name,
        namespace=thing.namespace,
        version=version,
        generation=generation,
        epoch=epoch,
        serving=serving,
        paused=bool(paused),
        draining=bool(draining),
        waiting=waiting,
        away=away,
        holds=holds,
        sessions=sessions,
        admitted_total=figures.admitted_total,
        figures=figures,
    )


def _records(entries: Reply) -> Iterable[dict[str, str]]:
    for _, fields in cast("list[tuple[bytes, list[bytes]]]", entries):
        yield {name.decode(): value.decode() for name, value in zip(fields[::2], fields[1::2], strict=True)}


def _minute(record: dict[str, str]) -> Minute:
    numbers = {name: int(value) for name, value in record.items()}
    admitted, predicted = numbers["admitted"], numbers["etaCount"]
    waited, missed = numbers.pop("waitedMs"), numbers.pop("etaErrorMs")
    minute = numbers.pop("minute")
    numbers.pop("etaCount")
    return Minute(
        minute=iso_time(minute),
        **numbers,
        mean_wait_seconds=round(waited / admitted / 1000, 3) if admitted else None,
        mean_eta_error_seconds=round(missed / predicted / 1000, 3) if predicted else None,
    )
