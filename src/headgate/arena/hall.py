"""Who is inside, and how a message reaches all of them.

Messages posted in one turn of the event loop go out together: their frames are joined once, and each player's connection gets one write.
The more is said, the more each write carries. Nobody is waited for: a player whose unread bytes pass the limit is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from websockets.asyncio.server import ServerConnection
from websockets.protocol import OPEN

from headgate.arena import metrics
from headgate.arena.allowance import Allowance
from headgate.waiting_room.model import Reason


class Player:
    """A connection with a session."""

    __slots__ = ("allowance", "connection", "last", "nickname", "reason", "session_id", "why")

    def __init__(self, connection: ServerConnection, session_id: str, nickname: str, allowance: Allowance) -> None:
        self.connection = connection
        self.session_id = session_id
        self.nickname = nickname
        self.allowance = allowance
        self.last = monotonic()
        self.reason: Reason | None = None
        self.why: str | None = None

    def blame(self, why: str, reason: Reason) -> None:
        """Note why we end this connection; the first cause counts."""
        if self.why is None:
            self.why, self.reason = why, reason


class Hall:
    """All players inside."""

    def __init__(self, backlog_bytes: int) -> None:
        self.players: dict[str, Player] = {}
        self._backlog_bytes = backlog_bytes
        self._posted: list[tuple[bytes, Player | None]] = []
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self.players)

    def post(self, frame: bytes, sender: Player | None = None) -> None:
        """Send a frame to everybody but its sender, at the end of this turn of the loop."""
        if not self._posted:
            self._loop.call_soon(self._deliver)
        self._posted.append((frame, sender))

    def tell(self, player: Player, frame: bytes) -> None:
        """Send a frame to one player, after what was posted before it."""
        if self._posted:
            self._deliver()
        metrics.DELIVERED.inc(self._write(player, frame, 1, monotonic()))

    def sweep(self, idle_seconds: float, idle: Callable[[Player], None]) -> None:
        """Name everybody who has neither sent nor received a message for so long."""
        limit = monotonic() - idle_seconds
        for player in list(self.players.values()):
            if player.last < limit and player.why is None:
                idle(player)

    def _deliver(self) -> None:
        posted, self._posted = self._posted, []
        if not posted:
            return
        now = monotonic()
        everything = b"".join(frame for frame, _ in posted)
        senders = {sender for _, sender in posted if sender is not None}
        delivered = 0
        for player in list(self.players.values()):
            if player not in senders:
                delivered += self._write(player, everything, len(posted), now)
                continue
            others = [frame for frame, sender in posted if sender is not player]
            if others:
                delivered += self._write(player, b"".join(others), len(others), now)
        metrics.DELIVERED.inc(delivered)

    def _write(self, player: Player, frames: bytes, count: int, now: float) -> int:
        """Write whole frames to a player's connection, and give how many; 0 if it is closing or reads too slowly."""
        connection = player.connection
        if connection.protocol.state is not OPEN:
            return 0
        transport = connection.transport
        if transport.get_write_buffer_size() > self._backlog_bytes:
            player.blame("slow", Reason.DROPPED)
            transport.abort()
            return 0
        # Unmasked frames are the same for everybody. They go between the library's own writes, which are whole frames too.
        transport.write(frames)
        player.last = now
        return count
