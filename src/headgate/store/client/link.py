"""One connection to one node, shared by every caller in the process.

Commands are pipelined and replies are matched to them by order, so a thousand callers cost one write and one read, not a
thousand connections. The command of a caller that gives up keeps its place in the order, and its reply is dropped. Nothing is
retried here: a lost connection raises LinkLost, and the callers know what they may repeat.
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
OUTAGE_KEPT_MS: Final = 3_600_000
SAME_OUTAGE_SECONDS: Final = 2.0
STEP_MS: Final = 5000
LARGE: Final = 1024
# A node that replies with one of these accepts no writes at all.
TAKES_NO_WRITES: Final = frozenset(
    {"BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "NOREPLICASTOWRITE"}
)


class ServerError(Exception):
    """The server replied with an error."""

    def __init__(self, words: str) -> None:
        self.code, _, self.words = words.partition(" ")
        super().__init__(words)


Reply: TypeAlias = bytes | int | ServerError | list["Reply"] | None


class LinkLost(Exception):
    """The connection ended before the reply came."""

    def __init__(self, words: str, *, sent: bool) -> None:
        self.sent = sent
        super().__init__(words)


class LinkTimeout(LinkLost):
    """The reply did not come before the caller's deadline."""

    def __init__(self) -> None:
        super().__init__("no answer in time", sent=True)


class NodeClock:
    """Predicts a node's clock from our monotonic clock; keeps its last steps forward and back, and its last outage.

    An outage is a time in which the node did not answer or accepted no writes. Until it has accepted a write of ours, a second
    outage that follows at once is part of the first: a node that comes back without its replicas answers but refuses writes.
    A step forward that is only partly undone stays one; its time is converted to the clock as it is now.
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
        self._unwritten_from: float | None = None  # the last outage, if the node has accepted no write of ours since
        self._unwritten_until = 0.0

    @property
    def known(self) -> bool:
        """Tell whether the node's time has been read."""
        return self._base_ms > 0

    def expect(self, monotonic: float) -> int:
        """Give the time that we expect there now; 0 while it is unknown."""
        return int(self._base_ms + (monotonic - self._monotonic) * 1000) if self._base_ms else 0

    def learn(self, time_ms: float, monotonic: float) -> None:
        """Use a reading of the node's clock."""
        expected = self.expect(monotonic)
        leapt = time_ms - expected if expected else 0.0
        if leapt > STEP_MS:
            self.step_ms, self._leapt_ms = int(time_ms), self._leapt_ms + leapt
        elif leapt < -STEP_MS:
            self.turned_ms, self._leapt_ms = int(time_ms), max(0.0, self._leapt_ms + leapt)
            self.step_ms = max(0, int(self.step_ms + leapt)) if self._leapt_ms > STEP_MS else 0
        if abs(leapt) > STEP_MS or time_ms - self._outage_ended_ms > OUTAGE_KEPT_MS:
            self._outage = ""  # after a step its times would be wrong, and scripts get the step instead
        self._base_ms, self._monotonic = time_ms, monotonic

    def for_scripts(self, monotonic: float, advance_ms: int = 0) -> str:
        """Give the expected time, the steps and the outage in the form that scripts read."""
        expected = self.expect(monotonic)
        return f"{expected + advance_ms if expected else 0} {self.step_ms} {self.turned_ms}{self._outage}"

    def unanswered(self, since: float, now: float) -> None:
        """Note that the node has not answered a request from `since` to `now`; this lasts until `answered`."""
        if self._unanswered_from is None:
            self._unanswered_from = self._outage_start(since)
        self.unanswered_until = now
        self._note_if_outage(self._unanswered_from, now)

    def answered(self) -> None:
        """Note that the node answers."""
        self._unanswered_from = None

    def reached(self, now: float) -> None:
        """Note that a new connection to the node was made; a known outage lasted until now."""
        if self._unanswered_from is not None and self.unanswered_until - self._unanswered_from >= OUTAGE_SECONDS:
            self.unanswered(self._unanswered_from, now)
        self.answered()

    def write_refused(self, now: float) -> None:
        """Note that the node refused a write; this lasts until it accepts one."""
        if self._refused_from is None:
            self._refused_from = self._outage_start(now)
        self._refused_until = now
        self._note_if_outage(self._refused_from, now)

    @property
    def write_doubtful(self) -> bool:
        """Tell whether the node has accepted no write of ours since an outage or a refusal."""
        return self._refused_from is not None or self._unwritten_from is not None

    def write_attempted(self, now: float) -> None:
        """Note that a write is attempted: a recent refusal lasted at least until now."""
        if self._refused_from is not None and now - self._refused_until < SAME_OUTAGE_SECONDS:
            self._note_if_outage(self._refused_from, now)

    def write_accepted(self) -> None:
        """Note that the node accepted a write."""
        self._refused_from = self._unwritten_from = None

    def _outage_start(self, since: float) -> float:
        if self._unwritten_from is not None and since - self._unwritten_until < SAME_OUTAGE_SECONDS:
            return self._unwritten_from
        return since

    def _note_if_outage(self, since: float, until: float) -> None:
        """Keep a time without answers or writes if it is long enough to be an outage."""
        if self._base_ms and until - since >= OUTAGE_SECONDS:
            self.note_outage(self.expect(since), self.expect(until))
            self._unwritten_from, self._unwritten_until = since, until

    def note_outage(self, from_ms: int, until_ms: int) -> None:
        """Report to scripts that the node was away between two moments of its own clock."""
        self._outage, self._outage_ended_ms = f" {from_ms} {until_ms}", until_ms


class Link(asyncio.Protocol):
    """An open, authenticated connection."""

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
        self._last_was_alone = False
        self._transport: asyncio.Transport | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._asked_at = self._ticked = self._running_since = self._loop.time()
        self._received_at = 0.0
        self._probes = False
        self._beat_at = self._asked_at + BEAT_SECONDS
        self._tick: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls, endpoint: Endpoint, address: Address, clock: NodeClock, *, sentinel: bool = False, bare: bool = False
    ) -> Link:
        """Connect and authenticate, with `bare` also to a replica; raises LinkLost or ServerError."""
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
                if link.closed:  # the node is a replica; a caller that got this link would never ask another node
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
        """Queue one command and give the future of its reply, which raises the server's errors.

        A forked child may not send, because the parent might read the reply.
        """
        if self._forks != forks.count:
            raise Forked
        if self.closed:
            raise LinkLost(f"the connection to {self.endpoint} is closed", sent=False)
        packed = pack_command(command)
        pending_reply = PendingReply(loop=self._loop)
        pending_reply.callback = None
        alone = False
        if self._pending:
            self._last_was_alone = False
        else:
            self._asked_at = self._loop.time()
            # The last command shared its write with no other, so this one is written at once too.
            alone, self._last_was_alone = self._last_was_alone, True
        self._pending.append((pending_reply, deadline))
        self._outgoing.append(packed)
        if (alone or len(packed) > LARGE) and self._transport is not None:
            self._flush()
        elif len(self._outgoing) == 1:
            self._loop.call_soon(self._flush)
        return pending_reply

    def push(self, command: tuple[Arg, ...]) -> None:
        """Send a command whose reply is a pushed message (subscribe, unsubscribe, ping)."""
        if not self.closed and self._transport is not None and self._forks == forks.count:
            self._transport.write(pack_command(command))

    def context(self, advance_ms: int = 0) -> str:
        """Give the first argument of most scripts: the node's replication id and the time that we expect there."""
        return f"{self.replication_id} {self.clock.for_scripts(self._loop.time(), advance_ms)}"

    def expected_ms(self) -> int:
        """Give the time that we expect there now; 0 while it is unknown."""
        return self.clock.expect(self._loop.time())

    def time(self) -> float:
        """Read the loop's monotonic clock."""
        return self._loop.time()

    def received_within(self, seconds: float) -> bool:
        """Tell whether anything was received lately."""
        return self._loop.time() - self._received_at < seconds

    def close(self, reason: str = "closed") -> None:
        """Close the connection; pending replies raise LinkLost."""
        self.connection_lost(ConnectionError(reason))

    async def wait_closed(self) -> None:
        """Wait until the connection is closed, from either side."""
        await asyncio.shield(self._lost)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ticked = self._loop.time()
        self._tick = self._loop.call_later(TICK_SECONDS, self._on_tick)

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        reader, pending = self._reader, self._pending
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _MORE:
                if self.on_push is not None:
                    # Before the first channel, the reply to a subscriber's ping is no list; it only shows that the node lives.
                    if isinstance(reply, list):
                        self.on_push(reply)
                    continue
                pending_reply, _ = pending.popleft()
                if isinstance(reply, ServerError):
                    if reply.code in TAKES_NO_WRITES:
                        self.clock.write_refused(self._received_at)
                    pending_reply.fail(reply)
                else:
                    pending_reply.answer(reply)
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
        """Fail the calls whose deadline has passed, close a stalled connection, and read the node's state now and then."""
        if self._forks != forks.count:
            return
        now = self._loop.time()
        self._tick = self._loop.call_later(TICK_SECONDS, self._on_tick)
        self._note_silence(now)
        for pending_reply in [pending_reply for pending_reply, deadline in self._pending if deadline <= now]:
            pending_reply.fail(LinkTimeout())
        if self._pending and now - max(self._received_at, self._asked_at) > STALL_SECONDS:
            self.close(f"nothing heard for {STALL_SECONDS:.0f} s")
        elif now >= self._beat_at and self.on_push is None:
            self._beat_at = now + BEAT_SECONDS
            self._request_state(now + STALL_SECONDS)
        elif not self._pending and self._probes and self.on_push is None and now - self._received_at > PROBE_SECONDS:
            self.send(("PING",), now + STALL_SECONDS).add_done_callback(_ignore)

    def _note_silence(self, now: float) -> None:
        """Report unanswered requests to the node's clock, without the time in which this process itself stood still."""
        if now - self._ticked > PROBE_SECONDS:
            self._running_since = now
        self._ticked = now
        since = max(self._received_at, self._asked_at, self._running_since)
        if self._pending and now - since > UNANSWERED_SECONDS:
            self.clock.unanswered(since, now)
        elif self._received_at > self.clock.unanswered_until:
            self.clock.answered()

    # The state of the node

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
        asking = self._request_state(limit)
        await asking[0]
        self.clock.reached(self._loop.time())  # before `learn`, because the reply to TIME may have waited
        await asking[1]
        self._probes = True

    def _request_state(self, limit: float) -> tuple[asyncio.Future[Reply], asyncio.Future[Reply]]:
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
            return  # the reply may have waited for this process, and the expected time would be too early
        seconds, micros = cast("list[bytes]", done.result())
        self.clock.learn(int(seconds) * 1000 + int(micros) / 1000, (asked_at + now) / 2)


class _More:
    """The parser's mark for an incomplete reply."""


_MORE: Final = _More()


def _ignore(done: asyncio.Future[Reply]) -> None:
    """Take the outcome of a command that is not awaited."""
    if not done.cancelled():
        done.exception()


def read_info(reply: Reply) -> dict[str, str]:
    """Read INFO's text into a dictionary."""
    text = reply.decode() if isinstance(reply, bytes) else ""
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
