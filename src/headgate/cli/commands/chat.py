"""`headgate chat NICKNAME`: stand in line, enter the arena with a ticket, and talk."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from datetime import datetime
from typing import Final
from zlib import crc32

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from headgate.arena.client import ArenaVisit, enter
from headgate.arena.problems import ArenaClosed
from headgate.arena.protocol import FLOODED, MOST_CHARACTERS, Notice, PlayerCount, Said
from headgate.cli import output
from headgate.cli.commands.terminal_input import LineEditor, echo_off
from headgate.cli.error_advice import instead, no_queue
from headgate.cli.target import Url, target
from headgate.kit.problems import HeadgateError, InvalidRequest, StoreUnavailable
from headgate.kit.tasks import Tasks
from headgate.sdk import Headgate
from headgate.waiting_room.model import DEFAULT_QUEUE, State
from headgate.waiting_room.problems import QueueUnknown, TicketExpired, TicketInvalid, TicketUsed
from headgate.waiting_room.wire import Entry, Status

_COLORS: Final = ("cyan", "green", "magenta", "yellow", "blue", "bright_red", "bright_cyan", "bright_green")
_HELP: Final = "/who counts who is here, /quit leaves, anything else is sent to everybody."
_LAST_WORDS_SECONDS: Final = 0.5
_TRIES: Final = 3
_PAUSE_SECONDS: Final = 1.0
_STILL_INSIDE_SECONDS: Final = 60  # longer than an arena takes to give up a connection that answers no ping


class NoArena(HeadgateError):
    """The ticket names no server; say where the arena is with --arena."""

    code = "no_arena"


class TurnedAway(HeadgateError):
    """The line did not lead inside."""

    code = "turned_away"


async def chat(
    nickname: str,
    *,
    queue: str = DEFAULT_QUEUE,
    arena: str | None = None,
    url: Url = None,
) -> int:
    """Stand in line, enter the arena with a ticket, and talk.

    Parameters
    ----------
    nickname
        What the others see.
    queue
        The line to stand in.
    arena
        Address of the arena, where the ticket does not name one.
    """
    if not nickname:
        raise InvalidRequest("A nickname needs at least one character.", field="nickname")
    async with target(url) as hg:
        with instead(QueueUnknown, no_queue(queue)):
            entry = await hg.queue.entry(nickname, queue=queue)
        failures = 0
        while True:
            status = await _wait(hg, entry, queue)
            try:
                farewell = await _visit(nickname, _address(status, arena), _ticket(status))
            except (TicketUsed, TicketExpired, TicketInvalid, StoreUnavailable) as error:
                failures += 1
                if failures == _TRIES:
                    raise TurnedAway(
                        f"{error.detail} `headgate server list` shows whether it takes players."
                    ) from error
                output.say(f"headgate: {error.detail} Entering again.")
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                failures = 0
                if farewell is None:
                    return 0
                if farewell == "idle":
                    output.say(
                        "headgate: nothing was said for a while, so your seat was given back. Enter again any time."
                    )
                    return 0
                if farewell == FLOODED:
                    raise TurnedAway(f"The arena sent you away: {farewell}.")
                output.say(
                    f"headgate: the arena closed the connection{f' ({farewell})' if farewell else ''}. Entering again."
                )
            entry = await enter_again(hg, nickname, queue, entry)


async def enter_again(hg: Headgate, nickname: str, queue: str, before: Entry) -> Entry:
    """Enter again as the same user; until the arena has noticed that we left, we still count as inside."""
    for _ in range(_STILL_INSIDE_SECONDS):
        entry = await hg.queue.entry(nickname, queue=queue, user_id=before.user_id, place_token=before.place_token)
        if entry.status is not State.ACTIVE:
            return entry
        await asyncio.sleep(1)
    raise TurnedAway("Your earlier connection still has your seat; try again in a minute.")


async def _wait(hg: Headgate, entry: Entry, queue: str) -> Status:
    """Show the progress in line until there is a ticket; Ctrl-C leaves the line."""
    if entry.status is State.PROMOTED:
        return entry
    console = Console(stderr=True)
    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[eta]}"),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    if not console.is_terminal:
        output.say(f"headgate: number {entry.rank} in line")
    last: Status = entry
    try:
        with echo_off(), bar:
            task = bar.add_task(_standing(entry), total=max(entry.rank, 1), eta=_eta(entry))
            async for last in hg.queue.wait(entry.user_id, queue=queue, place_token=entry.place_token):
                bar.update(task, completed=max(0, entry.rank - last.rank), description=_standing(last), eta=_eta(last))
    except (asyncio.CancelledError, KeyboardInterrupt):
        with suppress(HeadgateError):
            await hg.queue.leave(entry.user_id, queue=queue, place_token=entry.place_token)
            output.say("headgate: you left the line.")
        raise
    if last.status is not State.PROMOTED:
        raise TurnedAway(str(last.advice) if last.advice else f"Your place ended as {last.status}; enter again.")
    return last


def _standing(status: Status) -> str:
    if status.status is State.AWAY:
        return "You were called while away; your place is kept"
    return f"Number [bold]{status.rank}[/] in line"


def _eta(status: Status) -> str:
    if status.paused is True:
        return "the line is paused"
    if status.eta is not None:
        return f"about {_length(status.eta.seconds)}"
    return f"at least {_length(status.least_seconds)}" if status.least_seconds else ""


def _length(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _address(status: Status, arena: str | None) -> str:
    if arena:
        return arena
    if not status.server:
        raise NoArena
    return status.server.address


def _ticket(status: Status) -> str:
    ticket = status.ticket or status.ticket_id
    if not ticket:
        raise TurnedAway("The ticket did not come with the promotion; enter again.")
    return ticket


async def _visit(nickname: str, address: str, ticket: str) -> str | None:
    """Chat until one side leaves; None if it was ours, else why the arena closed the connection."""
    async with enter(address, ticket) as visit, LineEditor(f"{nickname}> ") as editor, Tasks() as tasks:
        editor.show(_rendered(Text(f"You are inside. {_HELP}", style="dim")))
        with suppress(ArenaClosed):
            await visit.ask_count()
        listening = tasks.start(_listen(visit, editor))
        talking = tasks.start(_talk(visit, editor, nickname))
        await asyncio.wait((listening, talking), return_when=asyncio.FIRST_COMPLETED)
        if talking.done():
            with suppress(ArenaClosed):  # then the arena has closed the connection
                await talking
                if not editor.terminal:  # a script has sent everything; answers of others may still come
                    await asyncio.wait((listening,), timeout=_LAST_WORDS_SECONDS)
                return FLOODED if visit.farewell == FLOODED else None
        await listening
        return visit.farewell


async def _listen(visit: ArenaVisit, editor: LineEditor) -> None:
    async for message in visit:
        match message:
            case Said():
                editor.show(_line(message.timestamp, message.nickname, message.message))
            case Notice():
                editor.show(
                    _rendered(Text(f"{_clock(message.timestamp)}  {_plain(message.message)}", style="dim italic"))
                )
            case PlayerCount():
                here = "You are alone here." if message.client_count == 1 else f"{message.client_count} are here."
                editor.show(_rendered(Text(here, style="dim")))


async def _talk(visit: ArenaVisit, editor: LineEditor, nickname: str) -> None:
    async for line in editor.lines():
        text = line.strip()
        match text:
            case "":
                continue
            case "/quit":
                return
            case "/who":
                await visit.ask_count()
            case _ if text.startswith("/"):
                editor.show(_rendered(Text(_HELP, style="dim")))
            case _ if len(text) > MOST_CHARACTERS:
                editor.show(
                    _rendered(Text(f"At most {MOST_CHARACTERS} characters; that had {len(text)}.", style="red"))
                )
            case _:
                await visit.say(text)
                editor.show(_line(None, nickname, text))  # the arena does not send a player's own messages back


def _line(timestamp: str | None, nickname: str, message: str) -> str:
    color = _COLORS[crc32(nickname.encode()) % len(_COLORS)]
    return _rendered(
        Text.assemble((f"{_clock(timestamp)}  ", "dim"), (f"{_plain(nickname)}: ", f"bold {color}"), _plain(message))
    )


def _clock(timestamp: str | None) -> str:
    when = datetime.now() if timestamp is None else datetime.fromisoformat(timestamp).astimezone()
    return f"{when:%H:%M}"


def _plain(text: str) -> str:
    """Remove control characters, which a server could use to move the cursor."""
    return "".join(sign for sign in text if sign.isprintable())


def _rendered(text: Text) -> str:
    console = Console(file=sys.stdout, width=10_000, soft_wrap=True)
    with console.capture() as captured:
        console.print(text, end="")
    return captured.get()
