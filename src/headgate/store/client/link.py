"""One connection to one node, shared by every caller in the process.

Commands are written back to back and replies are matched to them by order, so a thousand callers cost one write and one
read, not a thousand connections. A caller who gives up leaves its place in the order: the reply, when it comes, is thrown
away, and nobody ever gets somebody else's answer. Nothing here is sent twice: a lost connection is told to the callers,
who know what they may repeat.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias, cast

from libvalkey import ProtocolError, Reader, pack_command

from headgate.kit.fork import forks
from headgate.kit.problems import Forked
from headgate.store.client.address import Address, Endpoint
from headgate.store.client.pending import PendingReply

Arg: TypeAlias = str | bytes | int | float

STALL_SECONDS: Final = 2.0
CONNECT_SECONDS: Final = 2.0
BEAT_SECONDS: Final = 2.0
TICK_SECONDS: Final = 0.05
PROBE_SECONDS: Final = 0.5
UNANSWERED_SECONDS: Final = 0.25
OUTAGE_SECONDS: Final = 1.0
OUTAGE_TOLD_MS: Final = 3_600_000
SAME_OUTAGE_SECONDS: Final = 2.0
STEP_MS: Final = 5000
LARGE: Final = 1024
# A node that answers with one of these takes no write from anybody.
TAKES_NO_WRITES: Final = frozenset(
    {"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "NOREPLICASTOWRITE"}
)


class ServerError(Exception):
    """The server answered with an error."""

    def __init__(self, words: str) -> None:
        self.code, _, self.words = words.partition(" ")
        super().__init__(words)


Reply: TypeAlias = bytes | int | ServerError | list["Reply"] | None


class LinkLost(Exception):
    """The connection ended before the answer came."""

    def __init__(self, words: str, *, sent: bool) -> None:
        self.sent = sent
        super().__init__(words)


class LinkTimeout(LinkLost):
    """The answer did not come before the caller's deadline."""

    def __init__(self) -> None:
        super().__init__("no answer in time", sent=True)


class NodeClock:
    """Predicts a node's clock from our own monotonic clock; remembers when it last stepped forward and back, and its last outage.

    An outage is a time in which the node left requests unanswered or took no writes. Until a write of ours has been taken, a
    second one that follows at once is part of it: a node that comes back without its replicas answers and refuses.
    A step forward that is undone by less than it was is still one, and its moment is told in the terms of the clock as it is now.
    """

    __slots__ = (
        "_base_ms",
        "_leapt_ms",
        "_monotonic",
        "_outage",
        "_outage_ended_ms",
        "_refused_from",
        "_refused_until",
        "_unanswered_from",
        "_unwritten_from",
        "_unwritten_until",
        "step_ms",
        "turned_ms",
        "unanswered_until",
    )

    def __init__(self) -> None:
        self._base_ms = 0.0
        self._monotonic = 0.0
        self._leapt_ms = 0.0
        self.step_ms = 0
        self.turned_ms = 0
        self._outage = ""
        self._outage_ended_ms = 0
        self._unanswered_from: float | None = None
        self.unanswered_until = 0.0
        self._refused_from: float | None = None
        self._refused_until = 0.0
        self._unwritten_from: float | None = None  # the last outage, if no write of ours was taken since
        self._unwritten_until = 0.0

    @property
    def known(self) -> bool:
        """Tell whether the node has told its time."""
        return self._base_ms > 0

    def expect(self, monotonic: float) -> int:
        """Give the time we expect there now; 0 while we know nothing."""
        return int(self._base_ms + (monotonic - self._monotonic) * 1000) if self._base_ms else 0

    def learn(self, time_ms: float, monotonic: float) -> None:
        """Take a reading of the node's clock."""
        expected = self.expect(monotonic)
        leapt = time_ms - expected if expected else 0.0
        if leapt > STEP_MS:
            self.step_ms, self._leapt_ms = int(time_ms), self._leapt_ms + leapt
        elif leapt < -STEP_MS:
            self.turned_ms, self._leapt_ms = int(time_ms), max(0.0, self._leapt_ms + leapt)
            self.step_ms = max(0, int(self.step_ms + leapt)) if self._leapt_ms > STEP_MS else 0
        if abs(leapt) > STEP_MS or time_ms - self._outage_ended_ms > OUTAGE_TOLD_MS:
            self._outage = ""  # after a step the times in it would be wrong, and the step itself is told
        self._base_ms, self._monotonic = time_ms, monotonic

    def told(self, monotonic: float, advance_ms: int = 0) -> str:
        """Say what to expect of this clock, and what it did, as scripts read it."""
        expected = self.expect(monotonic)
        return f"{expected + advance_ms if expected else 0} {self.step_ms} {self.turned_ms}{self._outage}"

    def unanswered(self, since: float, now: float) -> None:
        """Note that the node has not answered a request from `since` to `now`; it goes on until `answered`."""
        if self._unanswered_from is None:
            self._unanswered_from = self._began(since)
        self.unanswered_until = now
        self._consider(self._unanswered_from, now)

    def answered(self) -> None:
        """Note that the node answers."""
        self._unanswered_from = None

    def reached(self, now: float) -> None:
        """Note that a new connection to the node was made; an outage that was known lasted until now."""
        if self._unanswered_from is not None and self.unanswered_until - self._unanswered_from >= OUTAGE_SECONDS:
            self.unanswered(self._unanswered_from, now)
        self.answered()

    def refused(self, now: float) -> None:
        """Note that the node took no write; it goes on until one is taken."""
        if self._refused_from is None:
            self._refused_from = self._began(now)
        self._refused_until = now
        self._consider(self._refused_from, now)

    @property
    def doubted(self) -> bool:
        """Tell whether no write of ours was taken since an outage or a refusal."""
        return self._refused_from is not None or self._unwritten_from is not None

    def writing(self, now: float) -> None:
        """Note that a write is tried again: until now none was taken, as far as we have tried lately."""
        if self._refused_from is not None and now - self._refused_until < SAME_OUTAGE_SECONDS:
            self._consider(self._refused_from, now)

    def taken(self) -> None:
        """Note that the node took a write."""
        self._refused_from = self._unwritten_from = None

    def _began(self, since: float) -> float:
        if self._unwritten_from is not None and since - self._unwritten_until < SAME_OUTAGE_SECONDS:
            return self._unwritten_from
        return since

    def _consider(self, since: float, until: float) -> None:
        """Keep a time without answers or writes that is long enough to be an outage."""
        if self._base_ms and until - since >= OUTAGE_SECONDS:
            self.note_outage(self.expect(since), self.expect(until))
            self._unwritten_from, self._unwritten_until = since, until

    def note_outage(self, from_ms: int, until_ms: int) -> None:
        """Have scripts told that the node was away between two moments of its own clock."""
        self._outage, self._outage_ended_ms = f" {from_ms} {until_ms}", until_ms


class Link(asyncio.Protocol):
    """A connection that is open and signed in."""

    def __init__(self, endpoint: Endpoint, clock: NodeClock) -> None:
        self.endpoint = endpoint
        self.clock = clock
        self.primary = True
        self.replication_id = "?"
        self.closed = False
        self._forks = forks.count
        self.loaded: set[str] = set()  # the scripts that were loaded by this link
        self.on_push: Callable[[list[Reply]], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(replyError=ServerError, notEnoughData=_MORE)
        self._pending: deque[tuple[PendingReply, float]] = deque()
        self._outgoing: list[bytes] = []
        self._alone = False
        self._transport: asyncio.Transport | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._asked = self._ticked = self._running_since = self._loop.time()
        self._heard = 0.0
        self._probes = False
        self._beat_at = self._asked + BEAT_SECONDS
        self._tick: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls, endpoint: Endpoint, address: Address, clock: NodeClock, *, sentinel: bool = False, bare: bool = False
    ) -> Link:
        """Connect and sign in, `bare` without looking whether it is a primary; raises LinkLost or ServerError."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, link = await loop.create_connection(
                    lambda: cls(endpoint, clock),
                    endpoint.host,
                    endpoint.port,
                    ssl=address.tls,
                    server_hostname=endpoint.host if address.tls else None,
                )
                try:
                    await link._sign_in(address, sentinel=sentinel, bare=bare)
                except BaseException:
                    link.close()
                    raise
                if link.closed:  # its answer said that it is a replica; a caller who got it would never look elsewhere
                    raise LinkLost(f"{endpoint} is not a primary", sent=False)
        except ServerError as error:
            if "max number of clients" in error.words:
                raise LinkLost(f"{endpoint} takes no more connections", sent=False) from error
            raise
        except TimeoutError as error:
            raise LinkLost(f"{endpoint} did not answer within {CONNECT_SECONDS:.0f} s", sent=False) from error
        except OSError as error:
            raise LinkLost(f"{endpoint} cannot be reached: {error.strerror or error}", sent=False) from error
        return link

    def send(self, command: tuple[Arg, ...], deadline: float) -> PendingReply:
        """Queue one command; its reply comes in the future. Errors are raised there, never returned.

        A forked child may not send: the reply would be the parent's to read.
        """
        if self._forks != forks.count:
            raise Forked
        if self.closed:
            raise LinkLost(f"the connection to {self.endpoint} is closed", sent=False)
        packed = pack_command(command)
        awaited = PendingReply(loop=self._loop)
        awaited.directly = None
        alone = False
        if self._pending:
            self._alone = False
        else:
            self._asked = self._loop.time()
            # The last one had nobody to share a write with: this one does not wait for company either.
            alone, self._alone = self._alone, True
        self._pending.append((awaited, deadline))
        self._outgoing.append(packed)
        if (alone or len(packed) > LARGE) and self._transport is not None:
            self._flush()
        elif len(self._outgoing) == 1:
            self._loop.call_soon(self._flush)
        return awaited

    def push(self, command: tuple[Arg, ...]) -> None:
        """Send a command whose reply is a pushed message (subscribe and its kin)."""
        if not self.closed and self._transport is not None and self._forks == forks.count:
            self._transport.write(pack_command(command))

    def context(self, advance_ms: int = 0) -> str:
        """Say which history this node has and what time we expect there; the first argument of most scripts."""
        return f"{self.replication_id} {self.clock.told(self._loop.time(), advance_ms)}"

    def expected_ms(self) -> int:
        """Give the time we expect there now; 0 while we know nothing."""
        return self.clock.expect(self._loop.time())

    def time(self) -> float:
        """Read the monotonic clock this link goes by."""
        return self._loop.time()

    def heard_within(self, seconds: float) -> bool:
        """Tell whether the other side has said anything lately."""
        return self._loop.time() - self._heard < seconds

    def close(self, reason: str = "closed") -> None:
        """End the connection; whoever still waits is told that the outcome is unknown."""
        self.connection_lost(ConnectionError(reason))

    async def wait_closed(self) -> None:
        """Wait until the connection has ended, whoever ended it."""
        await asyncio.shield(self._lost)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ticked = self._loop.time()
        self._tick = self._loop.call_later(TICK_SECONDS, self._on_tick)

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        reader, pending = self._reader, self._pending
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _MORE:
                if self.on_push is not None:
                    # Before its first channel, a subscriber's ping is answered by a plain word: only a sign of life.
                    if isinstance(reply, list):
                        self.on_push(reply)
                    continue
                awaited, _ = pending.popleft()
                if isinstance(reply, ServerError):
                    if reply.code in TAKES_NO_WRITES:
                        self.clock.refused(self._heard)
                    awaited.fail(reply)
                else:
                    awaited.answer(reply)
        except (ProtocolError, IndexError) as error:
            self.close(f"{self.endpoint} does not speak the store's protocol ({error})")

    def connection_lost(self, exc: Exception | None) -> None:
        if self.closed:
            return
        self.closed = True
        if self._tick is not None:
            self._tick.cancel()
        if self._transport is not None:
            self._transport.abort()
        words = f"the connection to {self.endpoint} was lost" + (f": {exc}" if exc else "")
        while self._pending:
            self._pending.popleft()[0].fail(LinkLost(words, sent=True))
        if not self._lost.done():
            self._lost.set_result(None)

    def _flush(self) -> None:
        if self._outgoing and self._transport is not None:
            self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()

    def _on_tick(self) -> None:
        """Tell callers whose time is up, notice a node that went silent, and ask for its state now and then."""
        if self._forks != forks.count:
            return
        now = self._loop.time()
        self._tick = self._loop.call_later(TICK_SECONDS, self._on_tick)
        self._note_silence(now)
        for awaited in [awaited for awaited, deadline in self._pending if deadline <= now]:
            awaited.fail(LinkTimeout())
        if self._pending and now - max(self._heard, self._asked) > STALL_SECONDS:
            self.close(f"nothing heard for {STALL_SECONDS:.0f} s")
        elif now >= self._beat_at and self.on_push is None:
            self._beat_at = now + BEAT_SECONDS
            self._ask_state(now + STALL_SECONDS)
        elif not self._pending and self._probes and self.on_push is None and now - self._heard > PROBE_SECONDS:
            self.send(("PING",), now + STALL_SECONDS).add_done_callback(_ignore)

    def _note_silence(self, now: float) -> None:
        """Tell the node's clock of requests that wait for an answer; not of the time in which this process itself stood still."""
        if now - self._ticked > PROBE_SECONDS:
            self._running_since = now
        self._ticked = now
        since = max(self._heard, self._asked, self._running_since)
        if self._pending and now - since > UNANSWERED_SECONDS:
            self.clock.unanswered(since, now)
        elif self._heard > self.clock.unanswered_until:
            self.clock.answered()

    # What a node says of itself

    async def _sign_in(self, address: Address, *, sentinel: bool, bare: bool) -> None:
        limit = self._loop.time() + CONNECT_SECONDS
        password = address.sentinel_password if sentinel else address.password
        if password is not None:
            who = (address.user,) if address.user and not sentinel else ()
            await self.send(("AUTH", *who, password), limit)
        if sentinel or bare:
            return
        if address.database:
            await self.send(("SELECT", address.database), limit)
        asking = self._ask_state(limit)
        await asking[0]
        self.clock.reached(self._loop.time())  # before it learns a time whose answer may have waited
        await asking[1]
        self._probes = True

    def _ask_state(self, limit: float) -> tuple[asyncio.Future[Reply], asyncio.Future[Reply]]:
        asked_at = self._loop.time()
        facts, time = self.send(("INFO", "replication"), limit), self.send(("TIME",), limit)
        facts.add_done_callback(self._on_facts)
        time.add_done_callback(lambda done: self._on_time(done, asked_at))
        return facts, time

    def _on_facts(self, done: asyncio.Future[Reply]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        facts = read_info(done.result())
        self.primary = facts.get("role") == "master"
        self.replication_id = facts.get("master_replid", "?")
        if not self.primary:
            self.close("the node is a replica now")

    def _on_time(self, done: asyncio.Future[Reply], asked_at: float) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        now = self._loop.time()
        stood_still = self._running_since > asked_at or now - self._ticked > PROBE_SECONDS
        if stood_still and self.clock.known:
            return  # the answer may have waited for us, who would expect too little
        seconds, micros = cast("list[bytes]", done.result())
        self.clock.learn(int(seconds) * 1000 + int(micros) / 1000, (asked_at + now) / 2)


class _More:
    """Stands for: the reader needs more bytes."""


_MORE: Final = _More()


def _ignore(done: asyncio.Future[Reply]) -> None:
    """Take the outcome of a command that nobody waits for."""
    if not done.cancelled():
        done.exception()


def read_info(reply: Reply) -> dict[str, str]:
    """Read INFO's text into a dictionary."""
    text = reply.decode() if isinstance(reply, bytes) else ""
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
