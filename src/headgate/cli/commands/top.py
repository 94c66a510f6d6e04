"""`headgate top`: a live view of queues, servers, services, upstreams, locks and the store."""

from __future__ import annotations

import asyncio
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from headgate.cli import output
from headgate.cli.commands.queue_policy_text import in_words
from headgate.cli.commands.system_status import SystemStatus, read_system_status
from headgate.cli.options import Json
from headgate.cli.target import Url, target
from headgate.kit.problems import HeadgateError, InvalidRequest
from headgate.sdk import Headgate

Namespace = Annotated[str, Parameter(name="--namespace", help="The namespace to look at.")]
SHORTEST_SECONDS = 0.2
_BAD = frozenset({"unhealthy", "suspect"})
_HEAD_ROWS, _SECTION_ROWS, _FEWEST_ROWS = 3, 2, 1
_NAME_WIDTH, _TEXT_WIDTH = 12, 24


class Section(msgspec.Struct, frozen=True):
    """One table of the view; the first column and those in `text` are aligned as text."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    text: tuple[str, ...] = ()


async def top(
    *,
    every: float = 1.0,
    once: Annotated[bool, Parameter(negative=())] = False,
    namespace: Namespace = "default",
    url: Url = None,
    json: Json = False,
) -> None:
    """Show how everything stands, live, until q or Ctrl-C; off a terminal, once.

    Parameters
    ----------
    every
        Seconds between two looks.
    once
        Look once and end.
    json
        Look once and print JSON.
    """
    if every < SHORTEST_SECONDS:
        raise InvalidRequest(f"--every must be at least {SHORTEST_SECONDS:g} seconds.", field="every")
    client = target(url)
    client.namespace = namespace
    async with client as headgate:
        first = await read_system_status(headgate)
        if json:
            output.as_json(first)
        elif not sys.stdout.isatty():
            store = first.store
            output.line(
                "\t".join(("store", store.kind, "up" if store.healthy else "away", str(store.latency_ms or "")))
            )
            for section in sections(first):
                for row in section.rows:
                    output.line("\t".join((section.name, *row)))
        elif once:
            Console().print(draw(first, live=False))
        else:
            await _follow(headgate, first, every)


async def _follow(headgate: Headgate, status: SystemStatus, every: float) -> None:
    """Redraw until q is pressed; after a failed read the last state is shown, with the error."""
    trouble = ""
    with _keys() as ended, Live(console=Console(), screen=True, auto_refresh=False) as live:
        while not ended.is_set():
            live.update(draw(status, height=live.console.height, trouble=trouble), refresh=True)
            try:
                async with asyncio.timeout(every):
                    await ended.wait()
            except TimeoutError:
                try:
                    status, trouble = await read_system_status(headgate), ""
                except HeadgateError as error:
                    trouble = error.detail


@contextmanager
def _keys() -> Iterator[asyncio.Event]:
    """Yield an event that is set when q is pressed; restores the terminal afterwards."""
    ended = asyncio.Event()
    if not sys.stdin.isatty():
        yield ended
        return
    loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed() -> None:
        if sys.stdin.read(1) in ("q", "Q", ""):
            ended.set()

    tty.setcbreak(terminal)
    loop.add_reader(terminal, pressed)
    try:
        yield ended
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def draw(status: SystemStatus, *, height: int | None = None, trouble: str = "", live: bool = True) -> RenderableType:
    """Draw everything, no taller than the terminal; `live` means that it is redrawn until q is pressed."""
    parts: list[RenderableType] = [_head(status, trouble, live=live)]
    shown = [section for section in sections(status) if section.rows]
    room = None if height is None else height - _HEAD_ROWS - len(status.troubles) - _SECTION_ROWS * len(shown)
    for section, most in zip(shown, _share(room, [len(section.rows) for section in shown]), strict=True):
        parts += [Text(), _Fitted(section, most)]
    if not shown:
        parts += [Text(), Text("Nothing is registered, queued, relayed or locked yet.", style="dim")]
    parts += [Text(f"{name}: {words}", style="yellow") for name, words in status.troubles.items()]
    return Group(*parts)


def sections(status: SystemStatus) -> list[Section]:
    """Arrange the system's status in tables."""
    queues = [
        (
            each.name,
            each.state,
            *_texts(each.waiting, each.away),
            f"{each.admitted_per_second:.1f}",
            *_texts(each.holds, each.sessions),
            in_words("capacity", each.capacity),
        )
        for each in status.queues
    ]
    servers = [
        (
            server.instance_id,
            queue.name,
            *_texts(server.holds, server.sessions, server.capacity, server.max_capacity),
            "draining" if server.draining else "open" if server.reported else "silent",
        )
        for queue in status.queues
        for server in queue.servers
    ]
    services = [
        (each.name, *_texts(each.available, each.unhealthy, each.draining, each.disabled, each.suspect))
        for each in status.services
    ]
    upstreams = [
        (each.name, *_texts(each.waiting, each.in_flight, each.cooling, each.users), _seconds(each.held_ms))
        for each in status.upstreams
    ]
    locks = [
        (each.name, each.label, _seconds(each.held_ms), _seconds(each.ttl_ms), *_texts(each.waiting, each.fence))
        for each in status.locks
        if each.held or each.waiting
    ]
    return [
        Section("queue", ("state", "waiting", "away", "admits/s", "holds", "sessions", "capacity"), queues, ("state",)),
        Section("server", ("queue", "holds", "sessions", "capacity", "at most", "state"), servers, ("queue", "state")),
        Section("service", ("available", "unhealthy", "draining", "disabled", "suspect"), services),
        Section("upstream", ("waiting", "in flight", "cooling", "users", "held for"), upstreams),
        Section("lock", ("by", "for", "lease", "waiting", "fence"), locks, ("by",)),
    ]


def _head(status: SystemStatus, trouble: str, *, live: bool) -> Text:
    store = status.store
    servers = ", ".join(sorted({*store.servers})) or store.kind
    health = f"{servers} {store.kind}, {store.latency_ms} ms" if store.healthy else "does not answer"
    head = Text.assemble(
        ("headgate", "bold"),
        f"  {status.url}  {status.namespace}  {status.at.astimezone():%H:%M:%S}\n",
        "store     ",
    )
    head.append(health, style="green" if store.healthy else "bold red")
    head.append("   q ends\n" if live and not trouble else "", style="dim")
    head.append(f"as it last was: {trouble}\n" if trouble else "", style="bold red")
    head.rstrip()
    return head


class _Fitted:
    """A section as wide as the terminal: where it is narrow, the first columns are shown and the others left out."""

    def __init__(self, section: Section, most: int | None) -> None:
        self._section = section
        self._most = most

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room, number = options.max_width - _NAME_WIDTH, 0
        for at, column in enumerate(self._section.columns):
            widest = max(len(column), *(min(len(row[at + 1]), _TEXT_WIDTH) for row in self._section.rows))
            room -= widest + 2
            if room < 0:
                break
            number += 1
        yield _table(self._section, self._most, max(1, number))


def _table(section: Section, most: int | None, number: int) -> Table:
    columns = section.columns[:number]
    drawn = Table(box=None, pad_edge=False, header_style="bold cyan", expand=True)
    drawn.add_column(section.name, overflow="ellipsis", no_wrap=True, ratio=1, min_width=_NAME_WIDTH)
    for column in columns:
        plain = column in section.text
        drawn.add_column(
            column,
            justify="left" if plain else "right",
            overflow="ellipsis",
            no_wrap=True,
            max_width=_TEXT_WIDTH if plain else None,
        )
    shown = section.rows if most is None or len(section.rows) <= most else section.rows[: max(0, most - 1)]
    for name, *cells in shown:
        marked = (_marked(cell, column) for cell, column in zip(cells, columns, strict=False))
        drawn.add_row(escape(name), *marked)
    if len(shown) < len(section.rows):
        drawn.add_row(f"… and {len(section.rows) - len(shown)} more", style="dim")
    return drawn


def _share(room: int | None, wanted: Sequence[int]) -> list[int | None]:
    """Distribute rows: short sections get what they need, the others share the rest equally."""
    if room is None:
        return [None] * len(wanted)
    given: dict[int, int] = {}
    for done, number in enumerate(sorted(range(len(wanted)), key=lambda index: wanted[index])):
        given[number] = min(wanted[number], max(_FEWEST_ROWS, room // (len(wanted) - done)))
        room -= given[number]
    return [given[number] for number in range(len(wanted))]


def _marked(cell: str, column: str) -> str:
    return f"[bold red]{cell}[/]" if column in _BAD and cell != "0" else escape(cell)


def _texts(*numbers: int) -> tuple[str, ...]:
    return tuple(str(number) for number in numbers)


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.0f} s" if milliseconds else ""
