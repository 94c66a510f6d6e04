"""The child processes of `up`: started, restarted when they die, and stopped together.

Each child leads a process group of its own, so that Ctrl-C in the terminal reaches only `up`, which then stops the
children. The stdin of each is a pipe from `up` (its leash): when `up` ends for any reason, the child reads the end of
file and stops.
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
from headgate.kit.tasks import Tasks

STOP_SECONDS = 3.0
READY_SECONDS = 60.0
RESTART_SECONDS = 0.5
_MANY_DEATHS, _RECENT_SECONDS = 3, 20.0
_CHUNK = 65_536

ShowLine = Callable[[str, str], None]


class ChildFailed(HeadgateError):
    """A child process ended unexpectedly."""

    code = "child_failed"


class Child(msgspec.Struct, frozen=True):
    """One process to run: `headgate …` with these arguments; `/readyz` of its operations port says when it is ready.

    A child with a port gets it as `--port`; `url` is its address for users.
    """

    name: str
    arguments: tuple[str, ...]
    port: int | None = None
    url: str = ""
    ops_port: int = msgspec.field(default_factory=free_port)
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)


class SupervisedChild:
    """Runs a child and restarts it when it dies; `show` gets its name and each line of its output."""

    def __init__(self, child: Child, environment: Mapping[str, str], show: ShowLine) -> None:
        self.child = child
        self.ready = asyncio.Event()
        self._environment = {**environment, **child.environment, "HEADGATE_OPS_PORT": str(child.ops_port)}
        self._show = show
        self._process: asyncio.subprocess.Process | None = None
        self._last_lines: deque[str] = deque(maxlen=5)
        self._deaths: deque[float] = deque(maxlen=_MANY_DEATHS)

    async def run(self, quiet: asyncio.Event) -> None:
        """Run the child until `quiet`; one that dies is restarted, unless it was never ready or dies often."""
        while not quiet.is_set():
            process = await self._start()
            async with Tasks() as tasks:
                output = tasks.start(self._read_output(process))
                ready = tasks.start(self._until_ready())
                try:
                    code = await process.wait()
                except asyncio.CancelledError:
                    await self._stop(process)
                    raise
                finally:
                    ready.cancel()  # another process may answer at its port
                    _kill_group(process)  # its own children must not keep its port open
                    assert process.stdin is not None
                    process.stdin.close()
                    await process.wait()
                    await asyncio.wait((output,))
            if not quiet.is_set():
                await self._report_death(code, quiet)

    def terminate(self) -> None:
        """Ask the child to stop."""
        if self._process is not None:
            signal_child(self._process, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the child and its process group."""
        if self._process is not None:
            _kill_group(self._process)

    async def _start(self) -> asyncio.subprocess.Process:
        self._last_lines.clear()
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

    async def _read_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        rest = b""
        while chunk := await process.stdout.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._take_line(line)
        if rest:
            self._take_line(rest)

    def _take_line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self._last_lines.append(text)
            self._show(self.child.name, text)

    async def _until_ready(self) -> None:
        while not await _is_ready(self.child.ops_port):  # noqa: ASYNC110  # another process can only be polled
            await asyncio.sleep(0.05)
        self.ready.set()

    async def _report_death(self, code: int, quiet: asyncio.Event) -> None:
        """Log why the child died, and wait before its restart; raises ChildFailed if a restart would not help."""
        killed = code < 0
        how = f"was killed by {signal.Signals(-code).name}" if killed else f"ended with code {code}"
        # The last line of a killed child is not the reason for its end.
        last_line = _plain(self._last_lines[-1]) if self._last_lines else "it said nothing"
        reason = "" if killed else f": {last_line}"
        if not self.ready.is_set():
            raise ChildFailed(f"The {self.child.name} {how} while starting{reason}")
        self._deaths.append(monotonic())
        if len(self._deaths) == _MANY_DEATHS and self._deaths[-1] - self._deaths[0] < _RECENT_SECONDS:
            raise ChildFailed(f"The {self.child.name} {how} for the {_MANY_DEATHS}rd time in a row{reason}")
        again = "; starting it again"
        self._show("up", log_line("up", "warning", f"the {self.child.name} {how}{reason.rstrip('.')}{again}"))
        with suppress(TimeoutError):
            async with asyncio.timeout(RESTART_SECONDS):
                await quiet.wait()

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        signal_child(process, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()


async def wait_until_ready(children: Sequence[SupervisedChild]) -> None:
    """Wait until every child is ready."""
    limit = monotonic() + READY_SECONDS
    for running in children:
        try:
            async with asyncio.timeout(limit - monotonic()):
                await running.ready.wait()
        except TimeoutError:
            raise ChildFailed(
                f"The {running.child.name} was not ready after {READY_SECONDS:.0f} s; its log above may say why."
            ) from None


async def run_all(children: Sequence[SupervisedChild], quiet: asyncio.Event) -> None:
    """Run all children until `quiet`, then stop them; those that do not stop in time are killed."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(child.run(quiet)) for child in children]
        stopping = group.create_task(_stop_when_quiet(children, tasks, quiet))
        await asyncio.wait(tasks)
        stopping.cancel()


async def _stop_when_quiet(
    children: Sequence[SupervisedChild], tasks: Sequence[asyncio.Task[None]], quiet: asyncio.Event
) -> None:
    await quiet.wait()
    for child in children:
        child.terminate()
    await asyncio.wait(tasks, timeout=STOP_SECONDS)
    for child, task in zip(children, tasks, strict=True):
        if not task.done():
            child.kill()


def _kill_group(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


async def _is_ready(port: int) -> bool:
    pool = Pool(f"http://127.0.0.1:{port}", max_connections=1)
    with suppress(RequestFailed):
        request = write_head("GET", b"/readyz", [(b"host", b"localhost"), (b"connection", b"close")])
        status, _ = await pool.fetch("GET", request, 2)
        return status == 200
    return False


def _plain(line: str) -> str:
    """Give the event and the error of a JSON log line, as text."""
    with suppress(msgspec.DecodeError):
        entry = msgspec.json.decode(line, type=dict[str, object])
        detail = entry.get("error") or entry.get("detail")
        return f"{entry.get('event')}: {detail}" if detail else str(entry.get("event"))
    return line.removeprefix("headgate: ")
