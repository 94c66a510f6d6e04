"""Callers of an upstream through the relay, and programs that share a lock, a service and a setting."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import time
from pathlib import Path

import httpx2

from headgate.config.problems import UnknownKey
from headgate.kit.problems import HeadgateError
from headgate.registry.model import Change
from headgate.sdk import Headgate
from tests.faults.robustness.history import History
from tests.faults.robustness.system import System
from tests.topology import reaper

UPSTREAM, LIMIT, WINDOW_SECONDS = "robust", 5, 2.0
LOCK_TTL = 3.0
LEASE_SECONDS = 6.0
SERVICE = ("robust", "one")
CONFIG = ("robust", "setting")


async def call_upstream(
    system: System, client: httpx2.AsyncClient, history: History, user: str, seed: int, stop: asyncio.Event
) -> None:
    """Send requests of one user, each with a body of its own, through whichever relay answers."""
    choice = random.Random(seed)
    relays = [process.url for process in system.of("relay")]
    number = 0
    while not stop.is_set():
        number += 1
        body = f"{user} {seed} {number}"
        began = time.monotonic()
        try:
            answer = await client.post(
                f"{choice.choice(relays)}/relay/{UPSTREAM}/x",
                content=body.encode(),
                headers={"X-User-Id": user, "X-Deadline-Ms": str(choice.choice((500, 5000, 20000)))},
                timeout=choice.choice((1.0, 30.0)),
            )
            history.add("relayed", user, began=began, body=body, status=answer.status_code)
        except httpx2.HTTPError as error:
            history.add("relay failed", user, began=began, body=body, error=type(error).__name__)
            await asyncio.sleep(0.2)


class LockProgram:
    """A process that takes one lock again and again, to be killed, paused and cut off; its book says when it held it."""

    def __init__(self, name: str, url: str, prefix: str, directory: Path) -> None:
        self.name = name
        self.ended_at: list[float] = []
        self._book = directory / name
        self._command = [sys.executable, "-m", "tests.faults.lock_client", "work", url, prefix, str(self._book)]
        self._command += [str(LOCK_TTL), name.rpartition("-")[2]]
        self.start_again()

    @property
    def taken(self) -> int:
        return self._book.read_text().count("begin") if self._book.exists() else 0

    def start_again(self) -> None:
        with self._book.with_suffix(".log").open("ab") as output:
            self._process = reaper().spawn(self._command, output)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.ended_at.append(time.monotonic())

    def tell(self, history: History) -> None:
        """Add its holdings to the history; one that has no end ended when the process was killed."""
        lines = [line.split() for line in self._book.read_text().splitlines()]
        ends = {line[1]: float(line[2]) for line in lines if line[0] == "end" and len(line) == 3}
        for word, *rest in lines:
            if word == "begin" and len(rest) == 2:
                fence, begin = rest[0], float(rest[1])
                killed = min(at for at in self.ended_at if at >= begin)
                history.add("held", self.name, began=begin, fence=int(fence), end=ends.get(fence, killed))


async def lock_programs(system: System, directory: Path, count: int = 3) -> dict[str, LockProgram]:
    """Start programs that share one lock, each with a way of its own to the store."""
    names = [f"lock-{number}" for number in range(count)]
    return {name: LockProgram(name, await system.store_url(name), system.prefix, directory) for name in names}


async def be_an_instance(client: Headgate, history: History, name: str, seed: int, stop: asyncio.Event) -> None:
    """Be registered for a while, leave, come back under a new id, until told to stop; then stay registered."""
    choice = random.Random(seed)
    life = 0
    while True:
        life += 1
        instance = f"{name}-{life}"
        try:
            async with client.registry.registered(
                type=SERVICE[0], group=SERVICE[1], instance_id=instance, private_ip="127.0.0.1", port=1000 + life
            ):
                history.add("alive", instance)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(choice.uniform(3, 25)):
                        await stop.wait()
                try:
                    if stop.is_set():
                        await asyncio.Event().wait()  # cancelled when the run is over
                finally:
                    history.add("leaves", instance)
        except HeadgateError as error:
            history.add("register failed", instance, error=str(error))
            await asyncio.sleep(0.5)


class Watchers:
    """Clients that follow the service and the setting, by the store and by each gateway."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.clients: dict[str, Headgate] = {}

    async def follow(self, name: str, client: Headgate) -> None:
        def heard(change: Change) -> None:
            self._history.add("change", name, kind=change.kind, instance=change.instance.instance_id)

        self.clients[name] = client
        await client.registry.subscribe("/".join(SERVICE), heard)

    async def agree(self, truth: Headgate) -> str:
        """Compare what every watcher knows with what the store says; give the first difference."""
        listed = await truth.registry.discover(*SERVICE)
        if listed.stale:
            return "the store does not answer"
        there = {instance.instance_id for instance in listed}
        for name, client in self.clients.items():
            known = {instance.instance_id for instance in await client.registry.cached(*SERVICE)}
            if known != there:
                return f"{name} knows {sorted(known)}, the store has {sorted(there)}"
        try:
            value = (await truth.config.get(*CONFIG)).content
        except UnknownKey:
            # A flush after the last write took it; everybody must see the next one.
            await truth.config.set(*CONFIG, "after the loss")
            return "the setting was lost with all data"
        for name, client in self.clients.items():
            live = await client.config.live(*CONFIG, str)
            if str(live.value) != value:
                return f"{name} has the setting {live.value}, the store has {value}"
        return ""


async def change_setting(client: Headgate, history: History, stop: asyncio.Event) -> None:
    """Write a setting again and again; it says how often."""
    number = 0
    while not stop.is_set():
        number += 1
        began = time.monotonic()
        try:
            published = await client.config.set(*CONFIG, str(number))
            history.add("setting", "writer", began=began, version=published.version, number=number)
        except HeadgateError as error:
            history.add("setting failed", "writer", began=began, number=number, error=str(error))
        await asyncio.sleep(0.5)
