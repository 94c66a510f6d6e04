"""`headgate relay prove`: sends requests through live relays to a strict upstream with jitter, and checks its counts.

It uses real sockets, real processes and delays with a long tail. The result is one number: the most arrivals in any
window, compared with the limit that the upstream enforces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from headgate.cli.trial.strict_limits import ArrivalLimiter, FixedWindow, SlidingCounter, SlidingLog, TokenBucket
from headgate.cli.trial.strict_upstream import Delays, StrictUpstream
from headgate.kit.problems import HeadgateError
from headgate.kit.wire import Wire
from headgate.relay.model import Counter, Limit, Upstream

USER: Final = "prover"

Ask = Callable[[str, float], Awaitable[int]]


class ProofRun(msgspec.Struct, frozen=True):
    """One run: this many requests of one user at once, against a limit."""

    requests: int = 100
    count: int = 10
    seconds: float = 2.0
    counter: Counter = Counter.LOG
    delay: float = 0.02
    tail: float = 0.5
    seed: int = 1

    def policy(self, url: str) -> Upstream:
        """Give the policy for the relay."""
        return Upstream(
            base_url=url,
            limits=(Limit(count=self.count, seconds=self.seconds),),
            counter=self.counter,
            forward_user=True,
            timeout_seconds=10.0,
            delivery_seconds=1.0,
            deadline_seconds=self.deadline,
        )

    @property
    def deadline(self) -> float:
        """Give the seconds that the last request may wait."""
        return 60.0 + 3 * self.seconds * (self.requests / self.count + 1)

    def limiter(self) -> ArrivalLimiter:
        """Make the limiter of the upstream; a sliding log counts refused requests as well."""
        match self.counter:
            case Counter.FIXED:
                return FixedWindow(self.count, self.seconds, phase=self.seconds * 0.37)
            case Counter.BUCKET:
                return TokenBucket(self.count, self.seconds)
            case Counter.SLIDING_COUNTER:
                return SlidingCounter(self.count, self.seconds, phase=self.seconds * 0.61)
            case _:
                return SlidingLog(self.count, self.seconds, strict=True)


class ProofVerdict(Wire, frozen=True):
    """The counts of the upstream."""

    requests: int
    answered: int
    failed: int
    refused: int
    limit: int
    seconds: float
    counter: Counter
    largest_window: int
    took_seconds: float
    utilisation: float

    @property
    def holds(self) -> bool:
        """Tell whether no request was refused and all were answered."""
        return self.refused == 0 and self.answered == self.requests and self.largest_window <= self.limit


async def prove(
    trial: ProofRun,
    begin: Callable[[Upstream], Awaitable[None]],
    relays: Sequence[Ask],
    progress: Callable[[int, int], None] = lambda done, largest: None,
) -> ProofVerdict:
    """Send all requests of one user at once and check the arrivals; `begin` writes the policy."""
    loop = asyncio.get_running_loop()
    delays = Delays(trial.delay, tail=trial.tail, seed=trial.seed)
    answered = failed = 0
    async with StrictUpstream(trial.limiter, delays).open() as upstream:
        await begin(trial.policy(upstream.url))

        async def one(ask: Ask) -> None:
            nonlocal answered, failed
            try:
                status = await ask(f"/prove?seed={trial.seed}", trial.deadline)
                answered += status == 200
                failed += status != 200
            except HeadgateError:
                failed += 1
            progress(answered + failed, upstream.largest(trial.seconds))

        started = loop.time()
        await asyncio.gather(*(one(relays[number % len(relays)]) for number in range(trial.requests)))
        took = loop.time() - started
        largest = upstream.largest(trial.seconds)
        refused = upstream.refused
    # A sliding counter is served at a pace of W/(N-1), the others in bursts of N every W.
    rounds = (trial.requests - 1) // trial.count
    ideal = rounds * trial.seconds
    if trial.counter is Counter.SLIDING_COUNTER and trial.count > 1:
        ideal = (trial.requests - 1) * trial.seconds / (trial.count - 1)
    return ProofVerdict(
        requests=trial.requests,
        answered=answered,
        failed=failed,
        refused=refused,
        limit=trial.count,
        seconds=trial.seconds,
        counter=trial.counter,
        largest_window=largest,
        took_seconds=round(took, 3),
        utilisation=round(ideal / took, 4) if took else 0.0,
    )
