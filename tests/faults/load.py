"""Callers that never stop, and the history of what each was told.

Every call has an id of its own, so that an answer meant for somebody else is seen at once, and so that afterwards the
store can be asked what really happened.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from enum import StrEnum
from types import TracebackType
from typing import NamedTuple, Self, cast

import anyio
import anyio.abc

from headgate.kit.problems import OutcomeUnknown, StoreUnavailable
from headgate.store import Store, Thing
from tests.store.scripts import NOTE, TALLY
from tests.topology import Stopwatch, eventually

SLACK_SECONDS = 0.5
PATIENT_MS = 10_000  # a deadline that a machine which stands still for a while does not miss


async def run_for(seconds: float) -> None:
    """Sleep until the machine has run for so long."""
    watch = Stopwatch()
    await eventually(lambda: watch.seconds >= seconds, seconds + 1)


class Outcome(StrEnum):
    """The answer that a caller got."""

    OK = "ok"
    REFUSED = "refused"  # surely not done
    UNKNOWN = "unknown"


class Call(NamedTuple):
    """One call as its caller saw it."""

    thing: Thing
    id: str
    repeatable: bool
    began: float
    seconds: float  # in which the machine ran
    outcome: Outcome


class Load:
    """Callers on some things; half of the calls may be repeated by the store, half may not."""

    def __init__(self, store: Store, things: list[Thing], callers: int = 20) -> None:
        self.history: list[Call] = []
        self.foreign: list[object] = []
        self._store = store
        self._things = things
        self._callers = callers
        self._ids = itertools.count()
        self._stopping = False
        self._group: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        for n in range(self._callers):
            self._group.start_soon(self._call_on, self._things[n % len(self._things)])
        await eventually(lambda: self.answered() >= self._callers, 10, "the load has begun")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        assert self._group is not None
        await self._group.__aexit__(kind, error, trace)

    def answered(self) -> int:
        return sum(call.outcome is Outcome.OK for call in self.history)

    def outcomes(self, since: float = 0) -> Counter[Outcome]:
        """Count what callers who began after a moment were told."""
        return Counter(call.outcome for call in self.history if call.began >= since)

    def slowest(self) -> float:
        """Give the longest that anybody waited."""
        return max(call.seconds for call in self.history)

    async def resumed(self, since: float, seconds: float) -> float:
        """Wait until every thing has answered a call that began after a moment; give how long that took."""

        def every() -> bool:
            done = {call.thing for call in self.history if call.began >= since and call.outcome is Outcome.OK}
            return done == set(self._things)

        watch = Stopwatch()
        await eventually(every, seconds, "service has resumed")
        return watch.seconds

    async def check(self, *, kept: bool) -> None:
        """Compare what callers were told with what is in the store; `kept`: what was acknowledged must be there."""
        assert self.foreign == []
        runs: dict[Thing, dict[bytes, int]] = {}
        for thing in self._things:
            reply = cast("list[bytes]", await self._store.read(thing, "HGETALL", thing.key("runs")))
            runs[thing] = {identity: int(count) for identity, count in zip(reply[::2], reply[1::2], strict=True)}
        for call in self.history:
            count = runs[call.thing].get(call.id.encode(), 0)
            if call.outcome is Outcome.OK:
                assert count >= 1 or not kept, f"{call} was acknowledged and is gone"
            if not call.repeatable:
                assert count <= 1, f"{call} ran {count} times"
                if call.outcome is Outcome.REFUSED:
                    assert count == 0, f"{call} was refused and ran"

    async def _call_on(self, thing: Thing) -> None:
        while not self._stopping:
            number = next(self._ids)
            repeatable = number % 2 == 0
            identity = f"id-{number}"
            began, watch = time.monotonic(), Stopwatch()
            try:
                if repeatable:
                    reply = await self._store.run(NOTE, thing, identity, f"text-{number}")
                    own = isinstance(reply, list) and reply[:2] == [identity.encode(), f"text-{number}".encode()]
                else:
                    reply = await self._store.run(TALLY, thing, identity)
                    own = reply == 1
                if not own:
                    self.foreign.append((identity, reply))
                outcome = Outcome.OK
            except OutcomeUnknown:
                outcome = Outcome.UNKNOWN
            except StoreUnavailable:
                outcome = Outcome.UNKNOWN if repeatable else Outcome.REFUSED
            self.history.append(Call(thing, identity, repeatable, began, watch.seconds, outcome))
            await anyio.sleep(0.01 if outcome is Outcome.OK else 0.02)
