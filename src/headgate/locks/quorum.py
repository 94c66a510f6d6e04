"""Locks by majority over several independent servers.

A holder needs the votes of a majority, and counts its lease from before it asked. Two majorities share a server, so
there cannot be two holders. Every server numbers its votes; the fence is the highest number of the majority and is
written back to a majority before it is used, so that the next holder's is higher, whichever majority it gets.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from weakref import WeakValueDictionary

import msgspec

from headgate.kit.problems import HeadgateError, InvalidRequest, StoreUnavailable
from headgate.kit.tasks import Tasks
from headgate.locks import metrics
from headgate.locks.lock_source import LockSource
from headgate.locks.model import Grant, LockRequest, LockState
from headgate.locks.problems import LockHeld, NotHolder, QuorumLost
from headgate.locks.quorum_voter import Vote, Voter
from headgate.locks.watch import Listener, watch_lock

OPEN_SECONDS: Final = 5.0
JITTER_SECONDS: Final = 0.02
LATEST_SHARE: Final = 0.5

T = TypeVar("T")


class QuorumHealth(msgspec.Struct, frozen=True):
    """The state of each server (voting, silent, away), and the number of votes needed."""

    servers: dict[str, str]
    majority: int

    @property
    def ok(self) -> bool:
        """Whether locks can be acquired."""
        return sum(state == "voting" for state in self.servers.values()) >= self.majority


class Quorum(LockSource):
    """`async with Quorum([url, …]) as quorum: async with quorum.lock(name, ttl=10) as held:`.

    `longest_ttl` is the longest lease that may be requested. A server does not vote for that long after a restart in
    which it may have lost a vote. All clients of a quorum must use the same.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        prefix: str = "hg",
        namespace: str = "default",
        longest_ttl: float = 10.0,
        server_timeout: float = 0.25,
    ) -> None:
        super().__init__(namespace)
        if len(urls) < 3 or len(set(urls)) != len(urls):
            raise InvalidRequest("A quorum needs at least three different servers.", field="urls")
        self.longest_ttl = longest_ttl
        self.majority = len(urls) // 2 + 1
        self.voters = [Voter(url, prefix, longest_ttl) for url in urls]
        self._spare = len(urls) - self.majority
        self._timeout = server_timeout
        self._keepers = Tasks()
        self._looks: set[asyncio.Event] = set()
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._keepers = Tasks()  # those of an entry that failed are closed
        for voter in self.voters:
            self._keepers.start(voter.keep())
        try:
            async with Tasks() as tasks:
                opening = {tasks.start(voter.opened()) for voter in self.voters}
                limit = loop.time() + OPEN_SECONDS
                reached: set[asyncio.Task[None]] = set()
                while len(reached) < self.majority:
                    done, _ = await asyncio.wait(
                        opening - reached, timeout=limit - loop.time(), return_when=asyncio.FIRST_COMPLETED
                    )
                    if not done:
                        raise QuorumLost(f"Only {len(reached)} of {len(opening)} servers can be reached.")
                    reached |= done
        except BaseException:
            await self._keepers.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        await self._keepers.close()

    async def health(self) -> QuorumHealth:
        """Ask every server for its state."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        states = await asyncio.gather(*(voter.state(deadline) for voter in self.voters))
        for state in ("voting", "silent", "away"):
            metrics.QUORUM_NODES.labels(state).set(states.count(state))
        return QuorumHealth(
            {voter.name: state for voter, state in zip(self.voters, states, strict=True)}, self.majority
        )

    async def grant(self, request: LockRequest, holder: str) -> Grant:
        """Acquire a lock by majority; requests of this process for the same lock are made one after another."""
        if request.ttl > self.longest_ttl:
            raise InvalidRequest(f"ttl must be at most this quorum's longest_ttl, {self.longest_ttl:g} s.", field="ttl")
        if request.replicas:
            raise InvalidRequest("The servers of a quorum have no replicas to ask.", field="replicas")
        limit = None if request.wait is None else asyncio.get_running_loop().time() + request.wait
        turn = self._turns.setdefault((request.namespace, request.name), asyncio.Lock())
        try:
            async with asyncio.timeout_at(limit):
                await turn.acquire()
        except TimeoutError:
            raise LockHeld(f"Somebody else holds the lock {request.name}.", retry_after=1) from None
        try:
            return await self._ask_until(request, holder, limit)
        except (LockHeld, QuorumLost):
            raise  # all votes were withdrawn already
        except BaseException:
            self.withdraw_soon(request, holder)
            raise
        finally:
            turn.release()

    async def _ask_until(self, request: LockRequest, holder: str, limit: float | None) -> Grant:
        """Ask again on a hint from any server, or when the first of the other leases has ended."""
        loop = asyncio.get_running_loop()
        look = asyncio.Event()

        def on_hint(words: str | None) -> None:
            if words != "taken":
                look.set()

        listening = False
        self._looks.add(look)
        with ExitStack() as hints:
            hints.callback(self._looks.discard, look)
            while True:
                self._refuse_when_closing()
                look.clear()
                answer = await self._ask(request, holder)
                if isinstance(answer, Grant):
                    return answer
                if limit is not None and loop.time() >= limit:
                    raise LockHeld(f"Somebody else holds the lock {request.name}.", retry_after=1)
                if not listening:
                    hints.enter_context(self._listening(request.namespace, request.name, on_hint))
                    listening = True
                until = loop.time() + answer
                try:
                    async with asyncio.timeout_at(until if limit is None else min(until, limit)):
                        await look.wait()
                except TimeoutError:
                    pass
                # Jitter, so that rivals woken together do not collide again and again.
                await asyncio.sleep(random.uniform(0, JITTER_SECONDS))

    async def _ask(self, request: LockRequest, holder: str) -> Grant | float:
        """Ask all servers once; without a majority withdraw all votes and return how long others hold theirs."""
        loop = asyncio.get_running_loop()
        sent = loop.time()
        votes = await self._round(request, holder, 0)
        if len(votes.given) >= self.majority:
            fence = max(vote.number for vote in votes.given)
            votes = await self._round(request, holder, fence)
            if len(votes.given) >= self.majority and loop.time() - sent < request.ttl * LATEST_SHARE:
                return Grant(request, holder, fence, sent)
        if await self._withdraw_votes(request, holder) < len(self.voters):
            self.withdraw_soon(request, holder)
        if votes.failed > self._spare:
            raise QuorumLost(
                f"{votes.failed} of {len(self.voters)} servers did not vote; {self.majority} are needed.", retry_after=1
            )
        return min((vote.left for vote in votes.refused), default=JITTER_SECONDS)

    async def renew(self, grant: Grant, deadline: float) -> None:
        """Renew the votes of a majority for one TTL; a server whose vote is free may join."""
        votes = await self._round(grant.request, grant.holder, grant.fence, deadline)
        if len(votes.given) >= self.majority:
            return
        if len(votes.refused) > self._spare:
            raise NotHolder(f"The lock {grant.request.name} is held by another.")
        raise QuorumLost(f"{len(votes.given)} of {len(self.voters)} servers renewed; {self.majority} are needed.")

    async def release_grant(self, grant: Grant) -> None:
        """Withdraw all votes; for an unreachable server that is retried, or the vote ends with its lease."""
        if await self._withdraw_votes(grant.request, grant.holder) < len(self.voters):
            self.leave(grant)

    async def withdraw(self, request: LockRequest, holder: str) -> None:
        """Withdraw all votes of a holder; raises StoreUnavailable if a server could not be reached."""
        if await self._withdraw_votes(request, holder) < len(self.voters):
            raise StoreUnavailable("Not every server of the quorum could be told.")

    async def show(self, name: str, namespace: str | None = None) -> LockState:
        """Give the state of a lock according to a majority."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        states = await _answers(voter.show(namespace or self.namespace, name, deadline) for voter in self.voters)
        if len(states) < self.majority:
            raise QuorumLost(f"Only {len(states)} of {len(self.voters)} servers answer.")
        counts = Counter(state.fence for state in states if state.held)
        fence, votes = counts.most_common(1)[0] if counts else (0, 0)
        if votes < self.majority:
            return LockState(name, False, max(state.fence for state in states), 0, 0)
        holding = sorted((state for state in states if state.held and state.fence == fence), key=lambda s: -s.ttl_ms)
        return holding[self.majority - 1]  # the majority lasts as long as the shortest vote that it needs

    def wake_waiters(self) -> None:
        """Wake all waiters, so that they find this source closing."""
        for look in self._looks:
            look.set()

    def watch(self, name: str, namespace: str | None = None) -> AsyncGenerator[LockState, None]:
        """Yield a lock's state now and after each change of holder."""
        space = namespace or self.namespace

        async def show() -> LockState:
            self._refuse_when_closing()
            return await self.show(name, namespace)

        return watch_lock(lambda on_hint: self._listening(space, name, on_hint), show)

    async def _round(self, request: LockRequest, holder: str, floor: int, deadline: float | None = None) -> _Votes:
        """Ask all servers concurrently; return as soon as the outcome is certain, without waiting for slow ones."""
        loop = asyncio.get_running_loop()
        limit = loop.time() + self._timeout
        if deadline is not None:
            limit = min(limit, deadline)
        votes = _Votes()
        pending = {self.start_task(voter.vote(request, holder, floor, limit)) for voter in self.voters}
        while len(votes.given) < self.majority and len(votes.refused) + votes.failed <= self._spare:
            done, pending = await asyncio.wait(
                pending, timeout=max(0.0, limit - loop.time()), return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                votes.count(task)
            if not done:
                votes.failed += len(pending)
        return votes

    async def _withdraw_votes(self, request: LockRequest, holder: str) -> int:
        deadline = asyncio.get_running_loop().time() + self._timeout
        told = await _answers(voter.unvote(request.namespace, request.name, holder, deadline) for voter in self.voters)
        return len(told)

    @contextmanager
    def _listening(self, namespace: str, name: str, on_hint: Listener) -> Iterator[None]:
        with ExitStack() as stack:
            for voter in self.voters:
                if voter.store is not None:
                    thing = voter.thing(namespace, name)
                    stack.enter_context(voter.store.hints.listen(thing, "events", on_hint))
            yield


class _Votes:
    """The votes of one round."""

    def __init__(self) -> None:
        self.given: list[Vote] = []
        self.refused: list[Vote] = []
        self.failed = 0

    def count(self, task: asyncio.Task[Vote]) -> None:
        if task.cancelled() or task.exception() is not None:
            self.failed += 1
            return
        vote = task.result()
        (self.given if vote.number else self.refused).append(vote)


async def _answers(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Make all calls concurrently and return the results of those that succeeded."""
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, HeadgateError):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
