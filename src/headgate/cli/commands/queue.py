"""`headgate queue …`: make queues, change how they admit, and watch them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Final

from cyclopts import Parameter
from rich.console import Console
from rich.live import Live
from rich.table import Table

from headgate.cli import output
from headgate.cli.commands.queue_policy_text import changes, figure_rows, in_words, policy_rows, read_policy
from headgate.cli.error_advice import no_queue
from headgate.cli.options import Json
from headgate.cli.target import Url, target
from headgate.kit.problems import HeadgateError, InvalidRequest, VersionConflict
from headgate.sdk import Headgate
from headgate.waiting_room.problems import QueueUnknown
from headgate.waiting_room.wire import QueueView

EVERY_SECONDS: Final = 1.0
COLUMNS: Final = (
    "queue", "state", "waiting", "away", "holds", "kept", "sessions", "capacity", "admitted", "a second",
)  # fmt: skip

Queue = Annotated[str, Parameter(help="The queue's name.")]
Namespace = Annotated[str, Parameter(name="--namespace", help="The queue's namespace.")]
Yes = Annotated[bool, Parameter(name="--yes", negative=(), help="Do not ask.")]


class QueueExists(HeadgateError):
    """There is a queue of this name already; `headgate queue set` changes it."""

    code = "queue_exists"


async def list_queues(*, namespace: Namespace = "default", url: Url = None, json: Json = False) -> None:
    """Show all queues and how they stand.

    Parameters
    ----------
    json
        Print JSON.
    """
    async with _client(url, namespace) as headgate:
        found = await headgate.queues.list()
    if json:
        output.as_json(found)
    else:
        output.table(COLUMNS, [_row(view) for view in found], empty="There are no queues.")


async def show(queue: Queue, *, namespace: Namespace = "default", url: Url = None, json: Json = False) -> None:
    """Show a queue: its policy, its version and how it stands.

    Parameters
    ----------
    json
        Print JSON.
    """
    async with _client(url, namespace, queue) as headgate:
        _print(await headgate.queues.show(queue), json=json)


async def create(
    queue: Queue, *policy: str, namespace: Namespace = "default", url: Url = None, json: Json = False
) -> None:
    """Make a queue; with `capacity` its seats are fixed, without they are its servers'.

    Parameters
    ----------
    policy
        Fields of its policy, such as capacity=100 ratePerSecond=5 graceSeconds=60.
    json
        Print JSON.
    """
    change = read_policy(policy)
    async with _client(url, namespace, queue) as headgate:
        try:
            view = await headgate.queues.configure(queue, change, expected=0)
        except VersionConflict as error:
            raise QueueExists(
                f"There is a queue {queue} already; `headgate queue set {queue} …` changes it."
            ) from error
    _print(view, json=json)


async def set_policy(
    queue: Queue, *policy: str, namespace: Namespace = "default", url: Url = None, json: Json = False
) -> None:
    """Change a queue while it runs; what is not named stays.

    Parameters
    ----------
    policy
        Fields of its policy, such as ratePerSecond=5 or maxLength=null.
    json
        Print JSON.
    """
    if not policy:
        raise InvalidRequest("Say what to change, such as ratePerSecond=5.")
    change = read_policy(policy)
    async with _client(url, namespace, queue) as headgate:
        await headgate.queues.show(queue)
        _print(await headgate.queues.configure(queue, change), json=json)


async def pause(queue: Queue, *, namespace: Namespace = "default", url: Url = None) -> None:
    """Stop calling people; tickets and sessions stay."""
    await _operate(queue, "pause", namespace, url)


async def resume(queue: Queue, *, namespace: Namespace = "default", url: Url = None) -> None:
    """End a pause or a drain."""
    await _operate(queue, "resume", namespace, url)


async def drain(queue: Queue, *, namespace: Namespace = "default", url: Url = None) -> None:
    """Take nobody new; those in line are served."""
    await _operate(queue, "drain", namespace, url)


async def admit(queue: Queue, count: int, *, namespace: Namespace = "default", url: Url = None) -> None:
    """Call so many people now, beyond rate and pause; seats still count.

    Parameters
    ----------
    count
        How many.
    """
    if count < 1:
        raise InvalidRequest("At least one must be admitted.")
    await _operate(queue, "admit", namespace, url, count)


async def reset(queue: Queue, *, yes: Yes = False, namespace: Namespace = "default", url: Url = None) -> None:
    """Begin anew: everybody in line loses their place, tickets are void."""
    _confirm(f"Everybody waiting in {queue} will lose their place. Type the queue's name to go on: ", queue, yes=yes)
    await _operate(queue, "reset", namespace, url)


async def delete(queue: Queue, *, yes: Yes = False, namespace: Namespace = "default", url: Url = None) -> None:
    """Delete a queue and everything in it."""
    _confirm(f"{queue} and everybody in it will be gone. Type the queue's name to go on: ", queue, yes=yes)
    async with _client(url, namespace, queue) as headgate:
        await headgate.queues.delete(queue)
    output.say(f"{queue} deleted")


async def audit(queue: Queue, *, namespace: Namespace = "default", url: Url = None, json: Json = False) -> None:
    """Show who changed what, newest first.

    Parameters
    ----------
    json
        Print JSON.
    """
    async with _client(url, namespace, queue) as headgate:
        found = await headgate.queues.audit(queue)
    if json:
        output.as_json(found)
        return
    output.table(
        ("at", "who", "action", "changed"),
        [(record.at, record.who, record.action, changes(record.old, record.new)) for record in found.records],
        empty="Nothing was changed yet.",
    )


async def history(
    queue: Queue, *, minutes: int = 60, namespace: Namespace = "default", url: Url = None, json: Json = False
) -> None:
    """Show what happened by the minute.

    Parameters
    ----------
    minutes
        How many minutes.
    json
        Print JSON.
    """
    async with _client(url, namespace, queue) as headgate:
        found = await headgate.queues.history(queue, minutes)
    if json:
        output.as_json(found)
        return
    output.table(
        ("minute", "entered", "admitted", "expired", "abandoned", "waiting", "sessions", "mean wait"),
        [
            (
                *(_minute(each.minute), str(each.entered), str(each.admitted), str(each.expired), str(each.abandoned)),
                *(str(each.waiting), str(each.sessions)),
                "" if each.mean_wait_seconds is None else f"{each.mean_wait_seconds:.1f} s",
            )
            for each in found.minutes
        ],
        empty="No minute is recorded yet.",
    )


async def watch(queue: Queue, *, namespace: Namespace = "default", url: Url = None, json: Json = False) -> None:
    """Follow a queue, once a second, until Ctrl-C.

    Parameters
    ----------
    json
        Print one line of JSON a second.
    """
    async with _client(url, namespace, queue) as headgate:
        if json or not sys.stdout.isatty():
            while True:
                view = await headgate.queues.show(queue)
                if json:
                    output.as_json(view)
                else:
                    output.line("\t".join(_row(view)))
                await asyncio.sleep(EVERY_SECONDS)
        with Live(console=Console(), auto_refresh=False) as live:
            while True:
                live.update(_drawn(await headgate.queues.show(queue)), refresh=True)
                await asyncio.sleep(EVERY_SECONDS)


@asynccontextmanager
async def _client(url: str | None, namespace: str, queue: str = "") -> AsyncIterator[Headgate]:
    """Open the client; the error of an unknown queue names it and the commands that help."""
    client = target(url)
    client.namespace = namespace
    try:
        async with client:
            yield client
    except QueueUnknown as error:
        if not queue:
            raise
        raise QueueUnknown(no_queue(queue)) from error


async def _operate(queue: str, action: str, namespace: str, url: str | None, count: int | None = None) -> None:
    async with _client(url, namespace, queue) as headgate:
        view = await headgate.queues.operate(queue, action, count)
    kept = f", {view.figures.kept} seats kept" if view.figures.kept else ""
    output.say(f"{queue}: {_state(view)}, {view.waiting} waiting, {view.holds} called, {view.sessions} inside{kept}")


def _minute(at: str) -> str:
    """Shorten a minute on a terminal, where a row has to fit: `11-18 01:23`."""
    return at[5:16].replace("T", " ") if sys.stdout.isatty() else at


def _confirm(question: str, expected: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidRequest("This cannot be undone; say --yes to do it without being asked.")
    if output.ask(question).strip() != expected:
        raise InvalidRequest("That is another name, so nothing was done.")


def _state(view: QueueView) -> str:
    return "paused" if view.paused else "draining" if view.draining else "open"


def _row(view: QueueView) -> tuple[str, ...]:
    figures = view.figures
    capacity = in_words("capacity", figures.capacity) if sys.stdout.isatty() else str(figures.capacity)
    counts = (str(number) for number in (view.waiting, view.away, view.holds, figures.kept, view.sessions))
    return (view.queue, _state(view), *counts, capacity, str(view.admitted_total), f"{figures.rate_per_second:.2f}")


def _print(view: QueueView, *, json: bool) -> None:
    if json:
        output.as_json(view)
        return
    state = [("state", _state(view)), ("version", str(view.version)), ("generation", str(view.generation))]
    if not sys.stdout.isatty():
        # Both tables have a capacity and a rate: without headings, the current ones get the prefix `now.`.
        output.table((), [*state, *policy_rows(view), *((f"now.{name}", value) for name, value in figure_rows(view))])
        return
    output.table((f"{view.queue}: policy", ""), [*state[1:], *policy_rows(view)])
    output.line("")
    output.table((f"{view.queue}: now", ""), [state[0], *figure_rows(view)])


def _drawn(view: QueueView) -> Table:
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        drawn.add_column(column, justify="left" if column in {"queue", "state"} else "right")
    drawn.add_row(*_row(view))
    return drawn
