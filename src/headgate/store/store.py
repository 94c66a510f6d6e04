"""The client of the store: runs scripts and commands on a thing, with a deadline and safe retries.

A call is retried only if the server surely did not run it, or if the script's header says that running it again gives the same
answer. Otherwise a lost connection is raised as OutcomeUnknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from functools import lru_cache
from time import time as wall_clock
from typing import Final, NamedTuple, Protocol, TypeVar, cast

from headgate.kit import traces
from headgate.kit.fork import forks
from headgate.kit.logs import get_logger
from headgate.kit.problems import Forked, HeadgateError, OutcomeUnknown, StoreUnavailable
from headgate.kit.tasks import Tasks
from headgate.store import metrics
from headgate.store.client.address import Address, Endpoint, parse_address
from headgate.store.client.hints import Hints
from headgate.store.client.link import Arg, Link, LinkLost, LinkTimeout, NodeClock, Reply, ServerError
from headgate.store.client.pending import PendingReply
from headgate.store.client.route import ROUTES, Route
from headgate.store.errors import NOT_RUN, OTHER_NODE, RETRY_LATER, as_problem
from headgate.store.facts import NodeFacts, read_facts, refuse_lossy
from headgate.store.keys import Thing
from headgate.store.scripts.script import Script, sha_of
from headgate.store.settings import StoreSettings

OPEN_SECONDS: Final = 5.0
CHECK_AGAIN_SECONDS: Final = 1.0

log = get_logger()
FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 0.2
DOWN_SECONDS: Final = 1.0
DOWN_WAIT: Final = 0.25
ACK_SLACK: Final = 0.5

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class PendingCall(NamedTuple):
    """A call that was sent: its connection, its reply and its start."""

    link: Link
    reply: PendingReply
    started: float


class Store:
    """A connected store; made by `open_store`."""

    def __init__(self, address: Address, settings: StoreSettings, tasks: Tasks) -> None:
        self.address = address
        self.prefix = settings.prefix
        self.tasks = tasks
        self.route: Route = ROUTES[address.kind](address, tasks)
        self.hints = Hints(self.route, tasks)
        self._second: Route | None = None
        self._loop = asyncio.get_running_loop()
        self._forks = forks.count
        self.deadline_seconds = settings.deadline_ms / 1000
        self._includes: dict[str, str] = {}
        self._rendered: dict[Script, tuple[str, str]] = {}
        self._advance_ms = 0
        self._shift_ms = 0
        self._stands_at_ms: int | None = None

    def thing(self, part: str, namespace: str, name: str) -> Thing:
        """Name a thing; both names must have been checked."""
        return _named(self.prefix, part, namespace, name)

    def deadline(self) -> float:
        """Give the loop time at which a call that starts now should give up."""
        return self._loop.time() + self.deadline_seconds

    def now(self, thing: Thing | None = None) -> float:
        """Give the store's time on a thing's node, or on any, in seconds, extrapolated with our monotonic clock.

        Signatures carry this time: with its own clock, a process whose clock is wrong would sign tickets that others refuse.
        """
        clock = self.route.clock(0 if thing is None else thing.slot)
        if clock is None:
            return wall_clock()
        if self._stands_at_ms is not None:
            return (self._stands_at_ms + self._shift_ms) / 1000
        return (clock.expect(self._loop.time()) + self._shift_ms) / 1000

    def clock_offset(self) -> float:
        """Tell by how many seconds this process's clock is ahead of the store's; of several nodes, the one farthest off."""
        here, now = wall_clock(), self._loop.time()
        offsets = [here - clock.expect(now) / 1000 for clock in self.route.clocks()]
        return max(offsets, key=abs, default=0.0)

    async def run(
        self,
        script: Script,
        thing: Thing,
        *args: Arg,
        deadline: float | None = None,
        in_order: bool = False,
        sent_call: PendingCall | None = None,
        **names: str,
    ) -> Reply:
        """Run a script on a thing and give its reply; raises the script's refusals as our exceptions.

        `in_order` uses the connection of the replicated calls, so that it runs after those sent before it. `sent_call` is the
        result of `send_now`, if this call was sent already.
        """
        limit = self._loop.time() + self.deadline_seconds if deadline is None else deadline
        route = self._second_route() if in_order else self.route
        sender = self._sender(script, thing, args, names, limit)
        return await self._measured(route, script, thing, sender, limit, sent_call)

    def send_now(self, script: Script, thing: Thing, args: tuple[Arg, ...], limit: float) -> PendingCall | None:
        """Send a script at once if its connection is open, else give None; `run` handles errors of the call."""
        link = None if traces.on() else self.route.ready(thing.slot)
        if link is None:
            return None
        started = self._loop.time()
        reply = cast("PendingReply", self._sender(script, thing, args, {}, limit)(link, load=False, asking=False))
        return PendingCall(link, reply, started)

    async def run_replicated(
        self,
        script: Script,
        thing: Thing,
        *args: Arg,
        replicas: int,
        ack_ms: int,
        counts: Callable[[Reply], bool],
        deadline: float | None = None,
    ) -> tuple[Reply, int]:
        """Run a script and, if `counts` accepts its reply, wait up to `ack_ms` for so many replicas; also give how many have it.

        WAIT counts the writes of its own connection and blocks that connection: hence a second one to each node, opened
        when first needed.
        """
        limit = self._loop.time() + self.deadline_seconds if deadline is None else deadline
        call = self._sender(script, thing, args, {}, limit)

        async def send(link: Link, *, load: bool, asking: bool) -> tuple[Reply, int]:
            reply = await call(link, load=load, asking=asking)
            if not counts(reply):
                return reply, 0
            patience = self._loop.time() + ack_ms / 1000 + ACK_SLACK
            return reply, cast("int", await link.send(("WAIT", replicas, ack_ms), patience))

        return await self._measured(self._second_route(), script, thing, send, limit)

    def _sender(
        self, script: Script, thing: Thing, args: tuple[Arg, ...], names: dict[str, str], limit: float
    ) -> _Send[Reply]:
        """Give a function that sends a script by a link, loading it first if this link has not or the server lost it.

        The first call does not wait for NOSCRIPT: by then, a later call might have overtaken it.
        """
        script.check_arguments(len(args))
        context, reads = script.header.context, script.header.reads
        keys = script.keys(thing, names)
        sha, source = self._source(script)
        refused: list[ServerError] = []

        def send(link: Link, *, load: bool, asking: bool) -> asyncio.Future[Reply]:
            if refused:
                raise refused[0]
            if load or sha not in link.loaded:
                link.loaded.add(sha)
                loading = link.send(("SCRIPT", "LOAD", source), limit)
                loading.add_done_callback(lambda done: _note_refusal(done, refused))
            if asking:
                _ignore_reply(link.send(("ASKING",), limit))
            if link.clock.write_doubtful and not reads:
                link.clock.write_attempted(link.time())
            if context:
                ahead_ms = self._advance_ms if self._stands_at_ms is None else self._stands_at_ms - link.expected_ms()
                reply = link.send(("EVALSHA", sha, len(keys), *keys, link.context(ahead_ms), *args), limit)
            else:
                reply = link.send(("EVALSHA", sha, len(keys), *keys, *args), limit)
            if link.clock.write_doubtful and not reads:
                reply.add_done_callback(lambda done: _note_write(done, link.clock))
            return reply

        return send

    async def _measured(
        self,
        route: Route,
        script: Script,
        thing: Thing,
        send: _Send[T],
        limit: float,
        sent_call: PendingCall | None = None,
    ) -> T:
        """Call a script, and measure its duration and outcome."""
        started = self._loop.time() if sent_call is None else sent_call.started
        outcome = "ok"
        try:
            with self._span(script, thing):
                again = script.header.repeatable
                return await self._attempt(route, thing.slot, send, limit, again=again, sent_call=sent_call)
        except HeadgateError as error:
            outcome = error.code
            raise
        finally:
            metrics.script_seconds(script.name, outcome).observe(self._loop.time() - started)

    def _span(self, script: Script, thing: Thing) -> AbstractContextManager[traces.Span]:
        """Trace a script's call as a database call, below the request that it belongs to."""
        if not traces.on():
            return traces.span("EVALSHA")
        attributes: dict[str, traces.Attribute] = {
            "db.system.name": "redis",
            "db.namespace": str(self.address.database),
            "db.operation.name": "EVALSHA",
            "db.stored_procedure.name": script.name,
            "headgate.part": thing.part,
        }
        if len(self.address.nodes) == 1:
            ((attributes["server.address"], attributes["server.port"]),) = self.address.nodes
        return traces.span(f"EVALSHA {script.name}", kind=traces.SpanKind.CLIENT, inner=True, attributes=attributes)

    def _second_route(self) -> Route:
        if self._second is None:
            self._second = ROUTES[self.address.kind](self.address, self.tasks)
        return self._second

    async def read(self, thing: Thing, *command: Arg, deadline: float | None = None) -> Reply:
        """Send one plain command that only reads (a range of a stream, say) to a thing's node."""
        return await self._plain(thing, command, deadline, again=True)

    async def write(self, thing: Thing, *command: Arg, deadline: float | None = None, again: bool = False) -> Reply:
        """Send one plain command that writes; `again` says that it may be repeated."""
        return await self._plain(thing, command, deadline, again=again)

    async def ping(self, deadline: float | None = None) -> None:
        """Make sure that every primary answers; raises StoreUnavailable."""
        limit = self.deadline() if deadline is None else deadline
        try:
            async with asyncio.timeout_at(limit):
                links = await self.route.primaries()
                await asyncio.gather(*(link.send(("PING",), limit) for link in links))
        except (TimeoutError, LinkLost, ServerError) as error:
            raise _no_answer(error) from error

    async def facts(self) -> list[NodeFacts]:
        """Read each primary's version, memory policy, persistence and replicas."""
        limit = self.deadline()
        try:
            async with asyncio.timeout_at(limit):
                return [await read_facts(link, limit) for link in await self.route.primaries()]
        except (TimeoutError, LinkLost) as error:
            raise _no_answer(error) from error
        except ServerError as error:
            raise as_problem(error) from error

    def step_clock(self, ms: int) -> None:
        """Load all scripts with a clock that has stepped by so much; for tests."""
        self._stands_at_ms, self._shift_ms = None, ms
        self._includes["server_time"] = _SHIFTED_TIME.replace("SHIFT", str(ms))
        self._rendered.clear()

    def advance_clock(self, ms: int) -> None:
        """Load all scripts with a clock that is ahead by so much, as if that time had passed; for tests."""
        self._advance_ms = ms
        self.step_clock(ms)

    def stop_clock(self, at_ms: int, *, stepped_ms: int = 0) -> None:
        """Load all scripts with a clock that stands still at a moment; for tests."""
        self._stands_at_ms, self._shift_ms = at_ms, stepped_ms
        self._includes["server_time"] = _STANDING_TIME.replace("MOMENT", str(at_ms + stepped_ms))
        self._rendered.clear()

    def close(self) -> None:
        """Close all connections; listeners for hints are called, and their next call raises Closed."""
        self.route.close()
        if self._second is not None:
            self._second.close()
        self.hints.notify_all()

    def _source(self, script: Script) -> tuple[str, str]:
        if not self._includes:
            return script.sha, script.source
        if script not in self._rendered:
            source = script.render(self._includes)
            self._rendered[script] = (sha_of(source), source)
        return self._rendered[script]

    async def _plain(self, thing: Thing, command: tuple[Arg, ...], deadline: float | None, *, again: bool) -> Reply:
        limit = self.deadline() if deadline is None else deadline

        def send(link: Link, *, load: bool, asking: bool) -> asyncio.Future[Reply]:
            if asking:
                _ignore_reply(link.send(("ASKING",), limit))
            return link.send(command, limit)

        return await self._attempt(self.route, thing.slot, send, limit, again=again)

    async def _attempt(
        self,
        route: Route,
        slot: int,
        send: _Send[T],
        limit: float,
        *,
        again: bool,
        sent_call: PendingCall | None = None,
    ) -> T:
        """Send until there is a reply, the deadline has passed, or the outcome cannot be known."""
        pause = FIRST_PAUSE
        load = False
        asked_node: Endpoint | None = None
        last_error: Exception | None = None
        try:
            while True:
                try:
                    if sent_call is not None:
                        link, sent, sent_call = sent_call.link, sent_call.reply, None
                        return cast("T", await sent)
                    ready = route.ready(slot) if asked_node is None else None
                    link = ready or await self._find(route, slot, asked_node, limit)
                    return await send(link, load=load, asking=asked_node is not None)
                except LinkTimeout as error:
                    raise (StoreUnavailable(retry_after=1) if again else OutcomeUnknown()) from error
                except LinkLost as error:
                    if error.sent and not again:
                        raise OutcomeUnknown from error
                    last_error = error
                    asked_node = None
                except ServerError as error:
                    last_error = error
                    if error.code == "NOSCRIPT" and not load:
                        load = True
                        continue
                    asked_node = _target(error, link) if error.code == "ASK" else None
                    if asked_node is not None:
                        continue
                    if error.code == "MOVED":
                        route.moved(slot, _target(error, link))
                    elif error.code in OTHER_NODE:
                        route.drop(link)
                    elif error.code == "NOREPLICAS":
                        route.check(link)
                    elif error.code not in RETRY_LATER and error.code != "NOSCRIPT":
                        raise as_problem(error) from error
                if self._loop.time() + pause >= limit:
                    raise StoreUnavailable("The store is away.", retry_after=1).because(str(last_error)) from last_error
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            last_error = None  # breaks the reference cycle through its traceback

    async def _find(self, route: Route, slot: int, asked_node: Endpoint | None, limit: float) -> Link:
        """Connect to a slot's node; when the store has been away for a while, fail before the caller's deadline."""
        if self._forks != forks.count:
            raise Forked
        if route.down_seconds() > DOWN_SECONDS:
            limit = min(limit, self._loop.time() + DOWN_WAIT)
        # Not asyncio.timeout, which needs a running task: the gateway also calls this outside of one.
        finding = self.tasks.start(route.link(slot) if asked_node is None else route.node(asked_node))
        try:
            await asyncio.wait((finding,), timeout=limit - self._loop.time())
            if finding.done():
                return finding.result()
        finally:
            finding.cancel()
        raise _no_answer(route.last_error or f"{', '.join(map(str, self.address.nodes))} cannot be reached")


_named = lru_cache(maxsize=4096)(Thing)


class _Send(Protocol[T_co]):
    def __call__(self, link: Link, *, load: bool, asking: bool) -> Awaitable[T_co]: ...


@asynccontextmanager
async def open_store(
    settings: StoreSettings,
    *,
    wait_seconds: float = OPEN_SECONDS,
    any_store: bool = False,
    may_be_away: bool = False,
) -> AsyncIterator[Store]:
    """Connect to the store of the settings; refuse one that would lose our data, unless `any_store`.

    With `may_be_away`, a store that does not answer is opened all the same, and checked when it answers.
    """
    address = parse_address(settings.url)
    tasks = Tasks()
    store = Store(address, settings, tasks)
    try:
        try:
            await _wait_until_up(store, wait_seconds)
            if not any_store:
                refuse_lossy(await store.facts(), address.kind, volatile=settings.volatile)
        except StoreUnavailable as error:
            if not may_be_away or isinstance(error.__cause__, ServerError):
                raise
            log.warning("the store is away", nodes=[str(node) for node in address.nodes], error=error.detail)
            tasks.start(_check_later(store, settings))
        async with store.hints:
            yield store
    finally:
        store.close()
        await tasks.close()


async def _check_later(store: Store, settings: StoreSettings) -> None:
    """Check a store as soon as it answers, and close it if it would lose our data."""
    while True:
        try:
            refuse_lossy(await store.facts(), store.address.kind, volatile=settings.volatile)
        except StoreUnavailable:
            await asyncio.sleep(CHECK_AGAIN_SECONDS)
        except HeadgateError as error:
            log.error("the store is refused", error=error.detail)
            store.close()
            return
        else:
            return


async def _wait_until_up(store: Store, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    limit = loop.time() + seconds
    last_error: StoreUnavailable | None = None
    while True:
        try:
            return await store.ping(min(limit, loop.time() + 1))
        except StoreUnavailable as error:
            cause = error.__cause__
            if isinstance(cause, ServerError) and cause.code not in RETRY_LATER:
                raise as_problem(cause) from cause
            if last_error is None or not isinstance(cause, TimeoutError):
                last_error = error  # an error says more than that the last attempt timed out
        if loop.time() >= limit - LONGEST_PAUSE:
            raise last_error
        await asyncio.sleep(LONGEST_PAUSE)


def _no_answer(error: Exception | str) -> StoreUnavailable:
    return StoreUnavailable("The store does not answer.", retry_after=1).because(str(error) or "nothing came in time")


def _target(error: ServerError, link: Link) -> Endpoint:
    """Read `MOVED 3999 host:port`; an empty host means the one we asked."""
    host, _, port = error.words.split(" ")[1].rpartition(":")
    return Endpoint(host.strip("[]") or link.endpoint.host, int(port))


def _note_refusal(done: asyncio.Future[Reply], refused: list[ServerError]) -> None:
    """Keep the error of SCRIPT LOAD: the call itself only says NOSCRIPT."""
    error = None if done.cancelled() else done.exception()
    if isinstance(error, ServerError) and error.code not in RETRY_LATER:
        refused.append(error)


def _note_write(done: asyncio.Future[Reply], clock: NodeClock) -> None:
    """Tell a node's clock that a writing script was run there, whatever its reply."""
    error = None if done.cancelled() else done.exception()
    if not done.cancelled() and (error is None or (isinstance(error, ServerError) and error.code not in NOT_RUN)):
        clock.write_accepted()


def _ignore_reply(future: asyncio.Future[Reply]) -> None:
    """Ignore the reply of a command, since the reply of the next one tells the outcome."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())


_STANDING_TIME: Final = """
local function server_time()
  return MOMENT, MOMENT * 1000
end
"""

_SHIFTED_TIME: Final = """
local function server_time()
  local time = redis.call('TIME')
  local seconds, micros = tonumber(time[1]) + SHIFT / 1000, tonumber(time[2])
  return math.floor(seconds * 1000 + micros / 1000), seconds * 1000000 + micros
end
"""
