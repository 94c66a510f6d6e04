"""The whole system under random faults on each topology: every promise is checked over the history of all its clients."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headgate.cli.trial.strict_limits import SlidingLog
from headgate.cli.trial.strict_upstream import Delays, StrictUpstream
from headgate.sdk import Headgate
from tests.faults.robustness import checks
from tests.faults.robustness.callers import (
    LEASE_SECONDS,
    LIMIT,
    UPSTREAM,
    WINDOW_SECONDS,
    LockProgram,
    Watchers,
    be_an_instance,
    call_upstream,
    change_setting,
    lock_programs,
)
from tests.faults.robustness.faults import Target, carry_out
from tests.faults.robustness.history import History
from tests.faults.robustness.plan import draw
from tests.faults.robustness.players import QUEUE, Player
from tests.faults.robustness.system import SEATS, System
from tests.topology import eventually

PLAYERS_AT_ONCE = 30
INSTANCES = 5
SETTLE_SECONDS = 120


@pytest.mark.topology("standalone", "sentinel", "cluster")
async def test_every_promise_holds_under_random_faults(
    request: pytest.FixtureRequest, kind_of_store: str, tmp_path: Path
) -> None:
    seed = int(request.config.getoption("--seed"))
    seconds = 60 * float(request.config.getoption("--minutes"))
    again = f"--topology {kind_of_store} --minutes {seconds / 60:g} --seed {seed}"
    print(f"./dev test tests/faults/robustness {again}")
    upstream = StrictUpstream(lambda: SlidingLog(LIMIT, WINDOW_SECONDS, strict=True), Delays(0.01, tail=0.3, seed=seed))
    async with upstream.open(), System(kind_of_store) as system:
        run = Run(system, upstream, seed, seconds, tmp_path)
        try:
            await run.play()
            found = run.violations()
        finally:
            record = tmp_path / "history.jsonl"
            run.history.save(record)
    assert not found, "\n".join([f"{again}; history in {record}", *found])


class Run:
    """One run: clients of every part, the faults of the plan, a time to settle, and what was found."""

    def __init__(self, system: System, upstream: StrictUpstream, seed: int, seconds: float, directory: Path) -> None:
        self.history = History()
        self._system, self._upstream = system, upstream
        self._seed, self._seconds, self._directory = seed, seconds, directory
        self._stop = asyncio.Event()
        self._unfinished: list[str] = []
        self._settled: list[str] = []

    async def play(self) -> None:
        system, history = self._system, self.history
        async with AsyncExitStack() as open_, asyncio.TaskGroup() as background:
            client = await open_.enter_async_context(
                httpx2.AsyncClient(headers={"X-API-Token": system.token}, timeout=15, limits=httpx2.Limits())
            )
            await self._configure(client)
            locks = await lock_programs(system, self._directory)
            for program in locks.values():
                open_.callback(program.kill)
            direct = await self._headgate(open_, "watcher")
            watchers = Watchers(history)
            await watchers.follow("store", direct)
            for gateway in system.of("gateway"):
                by_http = Headgate(gateway.url, token=system.token, snapshot_dir=self._directory / gateway.name)
                await watchers.follow(gateway.name, await open_.enter_async_context(by_http))
            lease = {"ttl_seconds": LEASE_SECONDS, "heartbeat_interval_ms": 1500}
            instances = []
            for n in range(INSTANCES):
                instance = await self._headgate(open_, "instances", **lease)
                playing = be_an_instance(instance, history, f"i{n}", self._seed + n, self._stop)
                instances.append(background.create_task(playing))
            background.create_task(change_setting(direct, history, self._stop))
            for number in range(6):
                user = f"user-{number % 3}"
                background.create_task(call_upstream(system, client, history, user, self._seed + number, self._stop))
            history.started = time.monotonic()
            players = background.create_task(self._players(client))
            targets: dict[str, Target] = {**system.processes, **locks}
            standalone = system.kind == "standalone"
            plan = draw(self._seed, self._seconds, [*targets], proxied=standalone, clock=standalone)
            await carry_out(system, targets, history, plan, self._seconds)
            await asyncio.sleep(max(0.0, history.started + self._seconds - time.monotonic()))
            self._stop.set()
            await players
            await self._settle(watchers, direct, [*locks.values()])
            for program in locks.values():
                program.kill()
                program.tell(history)
            for task in instances:
                task.cancel()

    def violations(self) -> list[str]:
        history = self.history
        ends = {f"ws://127.0.0.1:{arena.port}/gameserver": arena.ended_at for arena in self._system.of("arena")}
        largest = self._upstream.largest(WINDOW_SECONDS)
        return [
            *checks.admitted_once(history),
            *checks.never_over_capacity(history, SEATS, ends),
            *checks.in_order(history),
            *checks.ranks_never_rise(history),
            *checks.nobody_lost(history, self._unfinished),
            *checks.one_holder(history),
            *checks.the_living_stay(history),
            *checks.sent_once(self._upstream.bodies),
            *([f"{largest} requests in one window, {LIMIT} are allowed"] if largest > LIMIT else []),
            *self._settled,
        ]

    async def _configure(self, client: httpx2.AsyncClient) -> None:
        gateway = self._system.of("gateway")[0].url
        policy = {"seats": "servers", "tickMs": 200, "ticketTtlSeconds": 20, "reentrySeconds": 5}
        (await client.put(f"{gateway}/api/admin/queues/{QUEUE}", json=policy)).raise_for_status()
        upstream = {
            "baseUrl": self._upstream.url,
            "limits": [{"per": "user", "kind": "window", "count": LIMIT, "seconds": WINDOW_SECONDS}],
            "forwardUser": True,
            "timeoutSeconds": 5,
            "deliverySeconds": 1,
        }
        (await client.put(f"{gateway}/api/admin/upstreams/{UPSTREAM}", json=upstream)).raise_for_status()

    async def _headgate(self, open_: AsyncExitStack, name: str, **options: Any) -> Headgate:
        url = await self._system.store_url(name)
        made = Headgate(url, prefix=self._system.prefix, snapshot_dir=self._directory / name, **options)
        return await open_.enter_async_context(made)

    async def _players(self, client: httpx2.AsyncClient) -> None:
        """Keep so many people coming until the run is over; then wait until everybody is done."""
        there: dict[asyncio.Task[None], str] = {}
        number = 0
        limit = float("inf")
        while there or not self._stop.is_set():
            while not self._stop.is_set() and len(there) < PLAYERS_AT_ONCE:
                number += 1
                player = Player(self._system, client, self.history, f"p{number}", self._seed * 100_000 + number)
                there[asyncio.create_task(player.play())] = f"p{number}"
            done, _ = await asyncio.wait(there, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
                del there[task]
            if self._stop.is_set():
                limit = min(limit, time.monotonic() + SETTLE_SECONDS)
            if time.monotonic() > limit:
                self._unfinished = list(there.values())
                for task in there:
                    task.cancel()
                return

    async def _settle(self, watchers: Watchers, truth: Headgate, locks: list[LockProgram]) -> None:
        """Once the faults are over, everything recovers by itself."""
        difference = ""

        async def agreed() -> bool:
            nonlocal difference
            difference = await watchers.agree(truth)
            return not difference

        def taken() -> int:
            return sum(program.taken for program in locks)

        before = taken()
        try:
            await eventually(agreed, 60, every=0.5)
        except AssertionError:
            self._settled.append(difference)
        try:
            await eventually(lambda: taken() > before + 10, 30)
        except AssertionError:
            self._settled.append("the lock is not taken any more")
