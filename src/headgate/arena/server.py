"""The arena server: players enter with a ticket, chat and leave; it offers its seats while it runs.

Players stay connected when the store is away. The store learns of sessions from periodic reports, so a session whose
end could not be sent is removed by the next report.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Any, Final

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.protocol import CONNECTING
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from headgate.arena import handshake, metrics
from headgate.arena.chat_room import ChatRoom, Player
from headgate.arena.handshake import SeatService, TicketCheck
from headgate.arena.problems import Draining
from headgate.arena.protocol import FLOODED, Ask, BadFrame, Notice, PlayerCount, Said, framed, from_player, timestamp
from headgate.arena.rate_limits import Allowance, HandshakeFailures
from headgate.arena.settings import ArenaSettings
from headgate.arena.ticket_redeemer import TicketRedeemer
from headgate.kit import traces
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError, NotFound, RateLimited
from headgate.waiting_room.model import Reason

HANDSHAKE_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 2.0
PING_SECONDS: Final = 20.0
FLOOD: Final = 100
SWEEPS: Final = 20
_LEFT: Final = frozenset({CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY, CloseCode.NO_STATUS_RCVD})

log = get_logger()

# The library logs request lines, which contain tickets.
_silent = logging.getLogger("headgate.arena.websockets")
_silent.propagate = False
_silent.addHandler(logging.NullHandler())
_silent.setLevel(logging.CRITICAL)


class _Connection(ServerConnection):
    """A connection that answers the library's own refusals with problem documents."""

    def __init__(self, protocol: ServerProtocol, *arguments: Any, **options: Any) -> None:
        super().__init__(protocol, *arguments, **options)
        # `serve` creates the protocol itself, so this method is replaced on the instance.
        setattr(protocol, "reject", lambda status, _: handshake.library_refusal(int(status)))  # noqa: B010


class Arena:
    """One game server: `async with arena.open() as port:`, then `offer` its seats, and `drain` before the end."""

    def __init__(self, settings: ArenaSettings) -> None:
        self.room = ChatRoom(settings.backlog_bytes)
        self.closing = False
        self._settings = settings
        self._proxies = handshake.networks(settings.trusted_proxies)
        self._origins = handshake.AllowedOrigins(settings.origins, settings.address)
        self._failures = HandshakeFailures(settings.handshake_failures)
        self._seats: SeatService | None = None
        self._check: TicketCheck | None = None
        self._redeemer: TicketRedeemer | None = None
        self._admitted: dict[ServerConnection, Player] = {}
        self._entering = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._tasks: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        """Listen and yield the port; handshakes are refused until `offer` is called."""
        settings = self._settings
        metrics.SOFT_CAP.labels(settings.queue).set(settings.capacity)
        metrics.MAX_CAP.labels(settings.queue).set(settings.max_capacity or settings.capacity)
        failure: BaseException | None = None
        async with asyncio.TaskGroup() as self._tasks:
            sweeping = self._tasks.create_task(self._sweep())
            async with serve(
                self._play,
                settings.host,
                settings.port,
                process_request=self._handshake,
                create_connection=_Connection,
                select_subprotocol=_chosen,
                compression=None,  # so that a frame has the same bytes for everybody
                server_header=None,
                open_timeout=HANDSHAKE_SECONDS,
                close_timeout=CLOSE_SECONDS,
                ping_interval=PING_SECONDS,
                max_size=settings.message_bytes,
                logger=_silent,
            ) as server:
                try:
                    yield next(iter(server.sockets)).getsockname()[1]
                except BaseException as error:  # noqa: BLE001  # raised again below, outside of an exception group
                    failure = error
                self.closing = True
            sweeping.cancel()
        if failure is not None:
            raise failure

    def offer(self, seats: SeatService, check: TicketCheck) -> None:
        """Set the seats that players take, and the check of signed tickets."""
        self._seats, self._check, self._redeemer = seats, check, TicketRedeemer(seats)

    async def drain(self) -> None:
        """Accept no new players, notify the present ones, give them time, and close the remaining connections."""
        self.closing = True
        if self._seats is not None:
            try:
                await self._seats.drain()
            except HeadgateError as error:
                log.warning("drain could not be told; the lease ends by itself", error=error.detail)
        if self.room.players:
            seconds = self._settings.drain_seconds
            when = f"in {seconds:.0f} second{'s' if round(seconds) > 1 else ''}" if seconds >= 1 else "now"
            words = f"This server closes {when}; enter again and you will be given another."
            self.room.post(framed(Notice(timestamp(), words)))
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._empty.wait()
        leaving = list(self._admitted.values())
        for player in leaving:
            player.set_cause("drained", Reason.DROPPED)
        await asyncio.gather(*(player.connection.close(CloseCode.GOING_AWAY, "draining") for player in leaving))
        await self._empty.wait()

    async def _handshake(self, connection: ServerConnection, request: Request) -> Response:
        """Accept or refuse a handshake; the ticket is redeemed last, after all other checks."""
        outcome = "failed"
        try:
            with traces.request_span("GET", handshake.PATH, caller=_trace_of(request)) as span:
                answer = await self._admit(connection, request)
                span.answer(answer.status_code)
            outcome = "entered" if answer.status_code == 101 else "not_a_handshake"
            return answer
        except HeadgateError as error:
            outcome = error.code
            if error.status not in (429, 503):
                self._failures.add(self._client(connection, request))
            return handshake.refusal(error)
        finally:
            metrics.HANDSHAKES.labels(outcome).inc()

    async def _admit(self, connection: ServerConnection, request: Request) -> Response:
        if not handshake.is_game_path(request):
            raise NotFound(f"The game is at {handshake.PATH}.")
        self._origins.check(request)
        ticket = handshake.ticket_of(request)
        # A signed ticket is verified without the store, so valid ones are not slowed down by others who guess.
        if not handshake.is_signed(ticket) and self._failures.exhausted(self._client(connection, request)):
            raise RateLimited("Too many refused tickets from this address; wait a little.", retry_after=1)
        accepted = connection.protocol.accept(request)
        if accepted.status_code != 101:
            return accepted
        if self.closing or self._redeemer is None or self._check is None:
            raise Draining(retry_after=1)
        self._entering += 1
        self._empty.clear()
        try:
            await self._enter(connection, ticket, self._redeemer, self._check)
            return accepted
        finally:
            self._entering -= 1
            self._set_if_empty()

    async def _enter(
        self, connection: ServerConnection, ticket: str, redeemer: TicketRedeemer, check: TicketCheck
    ) -> None:
        redeemed = await redeemer.redeem(await handshake.ticket_id(ticket, check))
        if self.closing:
            # `drain` has not seen this player and would not close the connection.
            await self._end(redeemed.session_id, Reason.DROPPED)
            raise Draining("This server is closing; enter again and you will be given another.", retry_after=1)
        if isinstance(redeemed.traceparent, str):
            with traces.span("arena enter", traceparent=redeemed.traceparent, queue=redeemed.queue):
                pass  # ends the player's own trace, which began at the entry
        allowance = Allowance(self._settings.messages_per_second, self._settings.message_burst)
        player = Player(connection, redeemed.session_id, redeemed.user.nickname, allowance)
        self._admitted[connection] = player
        assert self._tasks is not None
        self._tasks.create_task(self._attend(player))
        if connection.state is not CONNECTING:
            raise Draining(retry_after=1)

    async def _attend(self, player: Player) -> None:
        """Wait until a connection has ended, and then end its session."""
        connection = player.connection
        await connection.wait_closed()
        if self.room.players.pop(player.session_id, None) is not None:
            metrics.PLAYERS.labels(self._settings.queue).set(len(self.room))
            self.room.post(framed(Notice(timestamp(), f"{player.nickname} left.")))
        closed = connection.protocol.close_rcvd
        if closed is not None and closed.code in _LEFT:
            player.set_cause("left", Reason.LEFT)
        player.set_cause("lost", Reason.DROPPED)
        assert player.why is not None
        assert player.reason is not None
        metrics.CLOSED.labels(player.why).inc()
        log.debug("player left", session=player.session_id, why=player.why)
        try:
            await self._end(player.session_id, player.reason)
        finally:
            del self._admitted[connection]
            self._set_if_empty()

    async def _end(self, session_id: str, reason: Reason) -> None:
        assert self._seats is not None
        try:
            await self._seats.end(session_id, reason)
        except HeadgateError as error:
            log.warning("session's end could not be told; the next report tells it", error=error.detail)

    def _set_if_empty(self) -> None:
        if not self._admitted and not self._entering:
            self._empty.set()

    async def _play(self, connection: ServerConnection) -> None:
        """Read a player's frames while the connection lasts."""
        player = self._admitted[connection]
        self.room.post(framed(Notice(timestamp(), f"{player.nickname} joined.")), player)
        self.room.players[player.session_id] = player
        metrics.PLAYERS.labels(self._settings.queue).set(len(self.room))
        with suppress(ConnectionClosed):
            async for frame in connection:
                self._receive(player, frame)
                if player.why == "flood":  # for every other cause the connection is closed elsewhere
                    await connection.close(CloseCode.POLICY_VIOLATION, FLOODED)

    def _receive(self, player: Player, frame: str | bytes) -> None:
        left = player.allowance.take()
        if left < 0:
            metrics.RECEIVED.labels("too_fast").inc()
            if left < -FLOOD:
                player.set_cause("flood", Reason.LEFT)
            elif left > -2:  # one notice is enough: an answer to each would double the flood
                self._notice(player, "You are sending too fast; messages were dropped.")
            return
        try:
            message = from_player(frame)
        except BadFrame as error:
            metrics.RECEIVED.labels("bad").inc()
            self._notice(player, str(error))
            return
        metrics.RECEIVED.labels("taken").inc()
        if isinstance(message, Ask):
            self.room.send(player, framed(PlayerCount(len(self.room))))
            return
        player.last = monotonic()
        self.room.post(framed(Said(timestamp(), player.nickname, message.message)), player)

    def _notice(self, player: Player, words: str) -> None:
        self.room.send(player, framed(Notice(timestamp(), words)))

    async def _sweep(self) -> None:
        """Close idle connections."""
        idle = self._settings.idle_seconds
        while True:
            await asyncio.sleep(min(1.0, idle / SWEEPS))
            self.room.sweep(idle, self._close_idle)

    def _close_idle(self, player: Player) -> None:
        player.set_cause("idle", Reason.LEFT)
        assert self._tasks is not None
        self._tasks.create_task(player.connection.close(CloseCode.NORMAL_CLOSURE, "idle"))

    def _client(self, connection: ServerConnection, request: Request) -> str:
        return handshake.client_address(connection.remote_address[0], request, self._proxies)


def _trace_of(request: Request) -> dict[str, str]:
    """Give the trace context of a handshake."""
    found = {name: request.headers.get_all(name) for name in ("traceparent", "tracestate")}
    return {name: values[0] for name, values in found.items() if values}


def _chosen(connection: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Choose a subprotocol that is not the ticket, if the browser offered one."""
    if handshake.SUBPROTOCOL in offered:
        return Subprotocol(handshake.SUBPROTOCOL)
    return offered[0] if offered else None
