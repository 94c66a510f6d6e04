"""`headgate load`: send a simulated crowd through a queue, watch it, and draw what happened."""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console
from rich.live import Live

from headgate.cli import output
from headgate.cli.error_advice import instead, no_queue
from headgate.cli.options import Json
from headgate.cli.target import Url, target
from headgate.cli.trial.crowd.client import CrowdClient, check_address
from headgate.cli.trial.crowd.curves import Curve, arrivals
from headgate.cli.trial.crowd.players import CrowdPlayer, Scene
from headgate.cli.trial.crowd.record import Behaviour, CrowdFigures, CrowdRecord, Promise, duration
from headgate.cli.trial.crowd.report import report as write_report
from headgate.cli.trial.crowd.view import plain, view
from headgate.kit.problems import HeadgateError
from headgate.kit.tasks import Tasks
from headgate.sdk import Headgate
from headgate.waiting_room.model import DEFAULT_QUEUE
from headgate.waiting_room.problems import QueueUnknown

REPORT: Final = Path("headgate-load.html")
WATCH_SECONDS: Final = 0.5
TALK_SECONDS: Final = 5.0
MOST_PLAYERS: Final = 1_000_000
INTERRUPTED: Final = 130

Share = Annotated[float, Parameter(validator=Number(gte=0, lte=100))]
Positive = Annotated[float, Parameter(validator=Number(gt=0))]


class NotAGateway(HeadgateError):
    """A crowd goes through a gateway; give its http address with --url."""

    code = "not_a_gateway"


class NotPossible(HeadgateError):
    """The shares of players who misbehave add up to more than 100 percent."""

    code = "not_possible"


class NotWritable(HeadgateError):
    """The report cannot be written there; say where with --report."""

    code = "not_writable"


async def load(
    *,
    players: Annotated[int, Parameter(validator=Number(gte=1, lte=MOST_PLAYERS))] = 1000,
    over: Positive = 30.0,
    curve: Curve = Curve.OPENING,
    stay: Positive = 5.0,
    refreshing: Share = 10.0,
    abandoning: Share = 5.0,
    sharing: Share = 2.0,
    crashing: Share = 3.0,
    limit: Positive = 900.0,
    queue: str = DEFAULT_QUEUE,
    arena: str | None = None,
    chatty: Annotated[bool, Parameter(negative=())] = False,
    seed: int | None = None,
    report: Path = REPORT,
    url: Url = None,
    json: Json = False,
) -> int:
    """Send simulated players through a queue and into its arena, watch them, and draw what happened.

    Parameters
    ----------
    players
        How many come.
    over
        Within how many seconds they arrive.
    curve
        How they arrive: steady, burst, ramp, wave, or opening (most at once when the doors open).
    stay
        Seconds that a player stays inside, on average.
    refreshing
        Percent of players who keep pressing reload.
    abandoning
        Percent who wander off.
    sharing
        Percent who give their ticket to friends.
    crashing
        Percent whose connection breaks, and who come back.
    limit
        Give up after so many seconds.
    queue
        The line to stand in.
    arena
        Address of the arena, where tickets do not name one.
    chatty
        Say something inside.
    seed
        Repeat a run: the same players at the same times.
    report
        Where the HTML report goes.
    json
        Print the figures as JSON.
    """
    shares = {
        Behaviour.REFRESHING: refreshing,
        Behaviour.ABANDONING: abandoning,
        Behaviour.SHARING: sharing,
        Behaviour.CRASHING: crashing,
    }
    if sum(shares.values()) > 100:
        raise NotPossible
    client = target(url)
    if client.direct:
        raise NotAGateway
    check_address(arena)
    _check_writable(report)
    chance = random.Random(seed)
    record = CrowdRecord(players)
    async with client as hg:
        gateway = CrowdClient(client.url, client.token)
        with instead(QueueUnknown, no_queue(queue)):
            await hg.queue.board(queue)  # fails early if the gateway or the queue does not exist
        scene = Scene(gateway, record, queue, client.namespace, stay, arena, chatty)
        crowd = _crowd(scene, players, shares, chance)
        times = arrivals(curve, players, over, chance)
        title = f"{players:,} players, {curve}, into {queue} at {client.url}"
        try:
            seconds, stopped = await _run(crowd, times, record, hg, queue, limit, title)
        finally:
            gateway.close()
    figures = record.figures(seconds)
    choices = [
        ("gateway", client.url), ("queue", queue), ("arrivals", f"{curve}, over {over:g} s"),
        ("stay", f"{stay:g} s on average"), ("seed", "none" if seed is None else str(seed)),
    ]  # fmt: skip
    at = datetime.now(UTC).isoformat(timespec="seconds")
    await asyncio.to_thread(report.write_text, write_report(record, figures, choices, at), "utf-8")
    _summarise(figures, json=json)
    output.say(f"headgate: the report is in {report}")
    if stopped:
        return INTERRUPTED
    return 1 if figures.broken or figures.lost or figures.unfinished else 0


def _check_writable(report: Path) -> None:
    """Raise NotWritable before the run rather than after it."""
    place = report if report.exists() else report.parent
    if report.is_dir() or not place.exists() or not os.access(place, os.W_OK):
        raise NotWritable(f"The report cannot be written to {report}; say where with --report.")


def _crowd(scene: Scene, players: int, shares: dict[Behaviour, float], chance: random.Random) -> list[CrowdPlayer]:
    kinds = [*shares, Behaviour.PATIENT]
    weights = [*shares.values(), 100 - sum(shares.values())]
    crowd = []
    for number, behaviour in enumerate(chance.choices(kinds, weights, k=players), 1):
        scene.record.behaviours[behaviour] += 1
        crowd.append(CrowdPlayer(scene, number, behaviour, random.Random(chance.random())))
    return crowd


async def _run(
    crowd: list[CrowdPlayer],
    times: list[float],
    record: CrowdRecord,
    hg: Headgate,
    queue: str,
    limit: float,
    title: str,
) -> tuple[float, bool]:
    """Run all players, at most until the time limit or Ctrl-C; give the seconds, and whether it was Ctrl-C."""
    stopped = False
    started = monotonic()
    playing: set[asyncio.Task[None]] = set()
    tasks = Tasks()
    tasks.start(_watch(record, hg, queue, started, title))
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                for player, at in zip(crowd, times, strict=True):
                    pause = started + at - monotonic()
                    if pause > 0:
                        await asyncio.sleep(pause)
                    playing.add(tasks.start(player.play()))
                # `gather` would cancel all players at the time limit, before they are counted.
                await asyncio.wait(playing, return_when=asyncio.FIRST_EXCEPTION)
    except asyncio.CancelledError:
        output.say("headgate: stopped; this is how far it went")
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        stopped = True
    finally:
        seconds = monotonic() - started
        record.take_sample(seconds)
        unfinished = [task for task in playing if not task.done()]
        record.unfinished = len(crowd) - len(playing) + len(unfinished)
        await tasks.close()
    for task in playing.difference(unfinished):
        task.result()  # raises unexpected errors
    return seconds, stopped


async def _watch(record: CrowdRecord, hg: Headgate, queue: str, started: float, title: str) -> None:
    """Take samples and show them: drawn on a terminal, else as a line every few seconds."""
    console = Console(stderr=True)
    told = 0.0
    with Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else _Silent() as live:
        while True:
            with suppress(HeadgateError):
                servers = (await hg.queue.servers(queue)).servers
                record.seats_taken = sum(server.sessions + server.holds for server in servers)
                record.capacity = sum(server.capacity for server in servers)
                most = sum(max(server.capacity, server.max_capacity) for server in servers)
                record.check(Promise.NEVER_OVER_CAPACITY, record.seats_taken <= most)
            seconds = monotonic() - started
            record.take_sample(seconds)
            if isinstance(live, Live):
                live.update(view(record, seconds, title), refresh=True)
            elif seconds - told >= TALK_SECONDS:
                told = seconds
                output.say(plain(record, seconds))
            await asyncio.sleep(WATCH_SECONDS)


class _Silent:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _summarise(figures: CrowdFigures, *, json: bool) -> None:
    if json:
        output.as_json(msgspec.to_builtins(figures))
        return
    rows = [
        ("players", f"{figures.players:,} in {figures.seconds:,.1f} s"),
        ("entered", f"{figures.entered:,}"),
        ("wandered off", f"{figures.abandoned:,}"),
        ("crashed and came back", f"{figures.came_back:,}"),
        ("lost", f"{figures.lost:,}"),
        *([("not done when it ended", f"{figures.unfinished:,}")] if figures.unfinished else []),
        ("wait", f"p50 {figures.wait_p50:.1f} s, p90 {figures.wait_p90:.1f} s, p99 {figures.wait_p99:.1f} s"),
        ("first estimate", _estimate(figures)),
        ("requests", f"{figures.requests:,}, answered in p50 {duration(figures.answer_p50_ms)}, p99 {duration(figures.answer_p99_ms)}"),
    ]  # fmt: skip
    rows += [(f"told {code}", f"{count:,} times") for code, count in sorted(figures.refusals.items())]
    for promise, tested in figures.promises.items():
        broken = figures.broken.get(promise, 0)
        rows.append(
            (promise, f"BROKEN {broken:,} of {tested:,} times" if broken else f"held {tested:,} of {tested:,} times")
        )
    output.table(("what", "how it went"), rows)


def _estimate(figures: CrowdFigures) -> str:
    if figures.eta_error_p50 is None or figures.eta_within_range is None:
        return "none was given"
    return (
        f"off by {figures.eta_error_p50:.1f} s for half; {figures.eta_within_range:.0%} waited within the given range, "
        f"which was {figures.eta_range_p50:.1f} times the wait for half"
    )
