"""Carries out the faults of a plan against a running system, and undoes each when its time is over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import anyio.to_thread
from valkey.exceptions import ValkeyError

from tests.faults.robustness.history import History
from tests.faults.robustness.plan import Fault, Step
from tests.faults.robustness.system import System
from tests.topology import Node, eventually

R = TypeVar("R")

_FULL_BYTES = 1_500_000  # less than an idle server uses, so every write that needs memory is refused


class Target(Protocol):
    """A process that can be hit."""

    name: str

    def kill(self) -> None: ...

    def start_again(self) -> None: ...

    def signal(self, number: signal.Signals) -> None: ...


async def carry_out(
    system: System, targets: Mapping[str, Target], history: History, plan: list[Step], seconds: float
) -> None:
    """Begin every fault at its time; those that hit the same process, or the store, follow each other.

    Slow failovers keep the store's faults from their times: those that would begin after the end are left out.
    """
    end = history.started + seconds
    busy: dict[str, asyncio.Lock] = {}
    async with asyncio.TaskGroup() as running:
        for step in plan:
            await asyncio.sleep(max(0.0, history.started + step.at - time.monotonic()))
            alone = busy.setdefault(step.target, asyncio.Lock())
            running.create_task(_strike(system, targets.get(step.target), history, step, alone, end))


async def _strike(
    system: System, target: Target | None, history: History, step: Step, alone: asyncio.Lock, end: float
) -> None:
    async with alone:
        if time.monotonic() > end:
            history.add("fault left out", step.target or "store", fault=str(step.fault), seconds=step.seconds)
            return
        began = time.monotonic()
        history.add("fault begins", step.target or "store", fault=str(step.fault), seconds=step.seconds)
        if target is not None:
            await _hit_process(system, target, step)
        else:
            await _hit_store(system, step)
        history.add("fault", step.target or "store", began=began, fault=str(step.fault), seconds=step.seconds)
        if step.fault is Fault.STORE_PAUSE and system.kind != "standalone":
            history.add("fault", "store", began=began, fault=str(Fault.FAILED_OVER), seconds=step.seconds)


async def _hit_process(system: System, process: Target, step: Step) -> None:
    match step.fault:
        case Fault.KILL:
            await _in_thread(process.kill)
            await asyncio.sleep(step.seconds)
            await _in_thread(process.start_again)
        case Fault.PAUSE:
            process.signal(signal.SIGSTOP)
            await asyncio.sleep(step.seconds)
            process.signal(signal.SIGCONT)
        case Fault.PARTITION:
            system.proxies[process.name].blackhole()
            await asyncio.sleep(step.seconds)
            system.proxies[process.name].heal()
        case Fault.LOST_REPLIES:
            system.proxies[process.name].drop_replies(cut=True)
            await asyncio.sleep(step.seconds)
            system.proxies[process.name].heal()


async def _hit_store(system: System, step: Step) -> None:
    primary = await _in_thread(lambda: system.store.primaries()[0])
    match step.fault:
        case Fault.STORE_PAUSE:
            primary.pause()
            await asyncio.sleep(step.seconds)
            primary.resume()
            await system.store.mend()  # a replica may have taken over; until all agree, there may be two primaries
        case Fault.STORE_FULL:
            async with _configured(system, "maxmemory", str(_FULL_BYTES)):
                await asyncio.sleep(step.seconds)
        case Fault.SLOW_DISK:
            async with _configured(system, "appendfsync", "always"):
                with _busy_disk(primary.directory):
                    await asyncio.sleep(step.seconds)
        case Fault.CUT:
            await _everywhere(system, lambda node: node.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))
        case Fault.FLUSH:
            await eventually(lambda: _flushed(system), 60, "all data is flushed", every=0.5)
        case Fault.CLOCK_STEP:
            assert system.clock is not None
            await _in_thread(system.clock.step, primary, step.seconds)
        case Fault.FAILOVER:
            await system.store.fail_over(f"{system.prefix}:queue:{{default/main}}:meta")
            await system.store.mend()


@asynccontextmanager
async def _configured(system: System, name: str, value: str) -> AsyncIterator[None]:
    """Set one option on every primary and set it back afterwards, on whoever is there by then."""
    before: dict[Node, str] = {}

    def change(node: Node) -> None:
        before[node] = node.command("CONFIG", "GET", name)[1]
        node.command("CONFIG", "SET", name, value)

    await _everywhere(system, change)
    try:
        yield
    finally:
        for node, old in before.items():
            with contextlib.suppress(ValkeyError, OSError):
                await _in_thread(node.command, "CONFIG", "SET", name, old)


@contextmanager
def _busy_disk(directory: Path) -> Iterator[None]:
    """Write and sync beside the server's files for as long as the block lasts."""
    done = threading.Event()

    def write() -> None:
        with (directory / "noise").open("wb") as file:
            while not done.is_set():
                file.seek(0)
                file.write(b"x" * 4_000_000)
                file.flush()
                os.fsync(file.fileno())

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        (directory / "noise").unlink(missing_ok=True)


async def _everywhere(system: System, act: Callable[[Node], object]) -> None:
    def run() -> None:
        for node in system.store.primaries():
            act(node)

    await _in_thread(run)


async def _flushed(system: System) -> bool:
    """Flush everything; False if a primary without its replicas takes no writes just now."""
    try:
        await _everywhere(system, lambda node: node.command("FLUSHALL"))
    except ValkeyError:
        return False
    return True


async def _in_thread(work: Callable[..., R], *arguments: object) -> R:
    return await anyio.to_thread.run_sync(work, *arguments)
