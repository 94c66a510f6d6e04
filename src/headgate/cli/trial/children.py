"""Processes that `up` starts: kept running, listened to, and stopped together.

Each child leads a process group of its own, so that Ctrl-C in the terminal reaches only `up`, which then stops everything
in order. Each holds the reading end of a pipe as its stdin (its leash): when `up` is gone for whatever reason, the child
sees the end of it and stops.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic

import msgspec

from headgate.cli.trial.log_lines import log_line
from headgate.http.client import Pool, RequestFailed, write_head
from headgate.kit.children import signal_child
from headgate.kit.ports import free_port
from headgate.kit.problems import HeadgateError

STOP_SECONDS = 3.0
READY_SECONDS = 60.0
RESTART_SECONDS = 0.5
_MANY_DEATHS, _RECENT_SECONDS = 3, 20.0
_CHUNK = 65_536

Tell = Callable[[str, str], None]


class ChildFailed(HeadgateError):
    """A process ended that should not have."""

    code = "child_failed"


class Child(msgspec.Struct, frozen=True):
    """One process to run: `headgate …` with these arguments, telling at its operations port when it is ready.

    With a port, it is also given that as `--port`; `url` is where people find it there.
    """

    name: str
    arguments: tuple[str, ...]
    port: int | None = None
    url: str = ""
    ops_port: int = msgspec.field(default_factory=free_port)
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)


class Running:
    """A child that is kept running; `tell` gets its name and each line it writes."""

    def __init__(self, child: Child, environment: Mapping[str, str], tell: Tell) -> None:
        self.child = child
        self.ready = asyncio.Event()
        self._environment = {**environment, **child.environment, "HEADGATE_OPS_PORT": str(child.ops_port)}
        self._tell = tell
        self._process: asyncio.subprocess.Process | None = None
        self._last_words: deque[str] = deque(maxlen=5)
        self._deaths: deque[float] = deque(maxlen=_MANY_DEATHS)

    async def keep(self, quiet: asyncio.Event) -> None:
        """Run the child until `quiet`; one that dies is started again, unless it never was ready or dies often."""
        while not quiet.is_set():
            process = await self._start()
            listening = asyncio.ensure_future(self._listen(process))
            ready = asyncio.ensure_future(self._until_ready())
            try:
                code = await process.wait()
            except asyncio.CancelledError:
                await self._stop(process)
                raise
            finally:
                ready.cancel()
                _kill_group(process)  # whatever it started must not hold on to its port
                assert process.stdin is not None
                process.stdin.close()
                await process.wait()
                await asyncio.wait((listening, ready))
            if not quiet.is_set():
                await self._mourn(code, quiet)

    def end(self) -> None:
        """Ask the child to stop."""
        if self._process is not None:
            signal_child(self._process, signal.SIGTERM)

    def kill(self) -> None:
        """End the child and all it started, at once."""
        if self._process is not None:
            _kill_group(self._process)

    async def _start(self) -> asyncio.subprocess.Process:
        self._last_words.clear()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headgate",
            *self.child.arguments,
            *(() if self.child.port is None else ("--port", str(self.child.port))),
            "--leash",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment,
            process_group=0,
        )
        return self._process

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        rest = b""
        while chunk := await process.stdout.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._hear(line)
        if rest:
            self._hear(rest)

    def _hear(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self._last_words.append(text)
            self._tell(self.child.name, text)

    async def _until_ready(self) -> None:
        while not await _says_ready(self.child.ops_port):  # noqa: ASYNC110  # another process, which can only be asked
            await asyncio.sleep(0.05)
        self.ready.set()

    async def _mourn(self, code: int, quiet: asyncio.Event) -> None:
        """Say which child died and why; raise if starting it again would not help."""
        killed = code < 0
        how = f"was killed by {signal.Signals(-code).name}" if killed else f"ended with code {code}"
        # Who is killed does not say why: its last words are about something else.
        said = _plain(self._last_words[-1]) if self._last_words else "it said nothing"
        words = "" if killed else f": {said}"
        if not self.ready.is_set():
            raise ChildFailed(f"The {self.child.name} {how} while starting{words}")
        self._deaths.append(monotonic())
        if len(self._deaths) == _MANY_DEATHS and self._deaths[-1] - self._deaths[0] < _RECENT_SECONDS:
            raise ChildFailed(f"The {self.child.name} {how} for the {_MANY_DEATHS}rd time in a row{words}")
        again = "; starting it again"
        self._tell("up", log_line("up", "warning", f"the {self.child.name} {how}{words.rstrip('.')}{again}"))
        with suppress(TimeoutError):
            async with asyncio.timeout(RESTART_SECONDS):
                await quiet.wait()

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        signal_child(process, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()


async def wait_until_ready(children: Sequence[Running]) -> None:
    """Wait until every child says that it is ready."""
    limit = monotonic() + READY_SECONDS
    for running in children:
        try:
            async with asyncio.timeout(limit - monotonic()):
                await running.ready.wait()
        except TimeoutError:
            raise ChildFailed(
                f"The {running.child.name} was not ready after {READY_SECONDS:.0f} s; its log above may say why."
            ) from None


async def keep_all(children: Sequence[Running], quiet: asyncio.Event) -> None:
    """Keep all children running until `quiet`, then stop them; those that do not stop in time are killed."""
    async with asyncio.TaskGroup() as group:
        keeping = [group.create_task(running.keep(quiet)) for running in children]
        stopping = group.create_task(_stop_when_quiet(children, keeping, quiet))
        await asyncio.wait(keeping)
        stopping.cancel()


async def _stop_when_quiet(
    children: Sequence[Running], keeping: Sequence[asyncio.Task[None]], quiet: asyncio.Event
) -> None:
    await quiet.wait()
    for running in children:
        running.end()
    await asyncio.wait(keeping, timeout=STOP_SECONDS)
    for running, task in zip(children, keeping, strict=True):
        if not task.done():
            running.kill()


def _kill_group(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def _says_ready(port: int) -> bool:
    pool = Pool(f"http://127.0.0.1:{port}", max_connections=1)
    with suppress(RequestFailed):
        request = write_head("GET", b"/readyz", [(b"host", b"localhost"), (b"connection", b"close")])
        status, _ = await pool.fetch("GET", request, 2)
        return status == 200
    return False


def _plain(line: str) -> str:
    """Give what a line of JSON log says, in words."""
    with suppress(msgspec.DecodeError):
        said = msgspec.json.decode(line, type=dict[str, object])
        detail = said.get("error") or said.get("detail")
        return f"{said.get('event')}: {detail}" if detail else str(said.get("event"))
    return line.removeprefix("headgate: ")
