"""`headgate lock …`: run a command under a lock, as flock does but across machines; see and break locks."""

from __future__ import annotations

import asyncio
import ctypes
import getpass
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Final

from cyclopts import Parameter

from headgate.cli import output
from headgate.cli.error_advice import next_step
from headgate.cli.options import Json
from headgate.cli.target import Url, target
from headgate.kit.logs import Level
from headgate.kit.problems import HeadgateError, InvalidRequest, NotFound, StoreUnavailable
from headgate.locks import Held, LockHeld, LockLost, LockState, NotReplicated, QuorumLost
from headgate.sdk import Headgate

LOST, NOT_ACQUIRED, NOT_EXECUTABLE, NOT_FOUND = 70, 75, 126, 127
PR_SET_PDEATHSIG: Final = 1
Namespace = Annotated[str, Parameter(name="--namespace", help="The lock's namespace.")]


async def run(
    name: str,
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    ttl: float = 10.0,
    wait: float | None = None,
    replicas: int = 0,
    namespace: Namespace = "default",
    url: Url = None,
) -> int:
    """Run a command while holding a lock: `headgate lock run NAME -- command …`.

    The command gets the lock's name and fence in HEADGATE_LOCK and HEADGATE_FENCE. If the lock is lost, the command is
    stopped before anybody else can have it. Exit codes: the command's own, 128 plus the signal that ended it, 75 if the
    lock was not acquired, 70 if it was lost, 126 and 127 if the command cannot be run or found.

    Parameters
    ----------
    name
        The lock.
    command
        What to run, after `--`.
    ttl
        Seconds after which the lock is free if this machine dies.
    wait
        Seconds to stand in line; as long as it takes if not given, not at all with 0.
    replicas
        Replicas of the store that must have the lock before the command starts.
    """
    if not command:
        raise InvalidRequest("Say what to run: headgate lock run NAME -- command …", field="command")
    # The loss of the lock has a message of its own, below.
    async with target(url, Level.ERROR) as headgate:
        lock = headgate.locks.lock(name, ttl, wait, label=_label(), replicas=replicas, namespace=namespace)
        try:
            held = await lock.acquire()
        except LockHeld as error:
            output.complain(await _who_holds(headgate, name, namespace) or error.detail)
            return NOT_ACQUIRED
        except (NotReplicated, StoreUnavailable, QuorumLost) as error:
            output.complain(error.detail, next_step(error))
            return NOT_ACQUIRED
        try:
            async with held:
                return await _command(held, command)
        except LockLost as error:
            output.complain(error.detail, "The command was stopped.")
            return LOST


async def _who_holds(headgate: Headgate, name: str, namespace: str) -> str:
    """Return a sentence about the lock's holder; nothing if it cannot be read."""
    try:
        state = await headgate.locks.show(name, namespace)
    except HeadgateError:
        return ""
    if not state.held:
        return ""
    waiting = f", and {state.waiting} wait for it" if state.waiting else ""
    return f"{state.label or 'Somebody else'} has held the lock {name} for {state.held_ms / 1000:.0f} s{waiting}."


async def list_locks(*, namespace: Namespace = "default", url: Url = None, json: Json = False) -> None:
    """Show the locks that are held or waited for.

    Parameters
    ----------
    json
        Print JSON.
    """
    async with target(url) as headgate:
        found = await headgate.locks.list(namespace)
    if json:
        output.as_json(found)
        return
    output.table(
        ("lock", "held", "by", "for", "lease", "waiting", "fence"),
        [_row(state) for state in found],
        empty="No lock is held or waited for.",
    )


async def show(name: str, *, namespace: Namespace = "default", url: Url = None, json: Json = False) -> None:
    """Show one lock, and which of its holdings ran out or were broken.

    Parameters
    ----------
    name
        The lock.
    json
        Print JSON.
    """
    async with target(url) as headgate:
        state = await headgate.locks.show(name, namespace)
        events = await headgate.locks.history(name, namespace)
    if not (state.held or state.waiting or state.fence or events):
        raise NotFound(f"Nobody holds or ever held a lock {name}; `headgate lock list` shows those that are in use.")
    if json:
        output.as_json({"lock": state, "events": events})
        return
    output.table(("lock", "held", "by", "for", "lease", "waiting", "fence"), [_row(state)])
    if events:
        output.table(
            ("when", "what", "fence", "by", "reason"),
            [(f"{one.at:%Y-%m-%d %H:%M:%S}Z", one.kind, str(one.fence), one.by, one.reason) for one in events],
        )


async def break_lock(
    name: str, *, reason: str = "", fence: int | None = None, namespace: Namespace = "default", url: Url = None
) -> int:
    """Take a lock away from its holder; who did it and why is kept with the lock.

    The holder hears of it at its next renewal, so for a moment both it and the next may run: only a resource that looks at
    the fence is safe.

    Parameters
    ----------
    name
        The lock.
    reason
        Why, for those who ask later.
    fence
        Only if the current holder has this fence.
    """
    async with target(url) as headgate:
        ended = await headgate.locks.break_lock(name, namespace, by=getpass.getuser(), reason=reason, fence=fence)
    if not ended:
        output.complain(f"{name} is not held" + (f" under fence {fence}" if fence else ""))
        return 1
    output.say(f"headgate: {name} is taken from its holder (fence {ended}).")
    return 0


async def _command(held: Held, command: tuple[str, ...]) -> int:
    """Run the command and return its exit code; forward signals to it."""
    loop = asyncio.get_running_loop()
    started: list[int] = []
    early: list[signal.Signals] = []

    def forward(number: signal.Signals) -> None:
        if started:
            _kill(started[0], number)
        else:
            early.append(number)  # it is being started: a signal now must not end us and leave it running

    forwarded = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in forwarded:
        loop.add_signal_handler(number, forward, number)
    try:
        process = await _start(held, command)
        if isinstance(process, int):
            return process
        started.append(process.pid)
        for number in early:
            _kill(process.pid, number)
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            await _stop(process, held)
            raise
    finally:
        for number in forwarded:
            loop.remove_signal_handler(number)
    return 128 - code if code < 0 else code


async def _start(held: Held, command: tuple[str, ...]) -> asyncio.subprocess.Process | int:
    """Start the command; return the exit code if that fails."""
    environment = os.environ | {"HEADGATE_LOCK": held.name, "HEADGATE_FENCE": str(held.fence)}
    try:
        return await asyncio.create_subprocess_exec(
            *command, env=environment, start_new_session=True, preexec_fn=_die_with_parent()
        )
    except FileNotFoundError:
        output.complain(f"{command[0]} was not found")
        return NOT_FOUND
    except OSError as error:
        output.complain(f"{command[0]} cannot be run: {error.strerror}")
        return NOT_EXECUTABLE


async def _stop(process: asyncio.subprocess.Process, held: Held) -> None:
    """Stop the command's session: SIGTERM, and SIGKILL after half of the rest of the lease."""
    loop = asyncio.get_running_loop()
    _kill(process.pid, signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout((held.lease_ends - loop.time()) / 2):
            await process.wait()
    _kill(process.pid, signal.SIGKILL)
    await process.wait()


def _kill(pid: int, number: int) -> None:
    """Signal the command's whole session."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def _die_with_parent() -> Callable[[], None] | None:
    """On Linux, have the command killed when we are, since its lock is not renewed any more."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _label() -> str:
    """Return the holder's label, which others see: user, machine and process."""
    return f"{getpass.getuser()}@{socket.gethostname()[:30]}/{os.getpid()}"[:64]


def _row(state: LockState) -> tuple[str, ...]:
    if not state.held:
        return (state.name, "no", "", "", "", str(state.waiting), str(state.fence))
    held_for, lease = f"{state.held_ms / 1000:.0f} s", f"{state.ttl_ms / 1000:.1f} s"
    return (state.name, "yes", state.label, held_for, lease, str(state.waiting), str(state.fence))
