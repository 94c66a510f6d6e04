"""The players inside, and the delivery of messages to all of them.

Messages posted until the next delivery go out together: the frames are joined once, and each connection gets one write.
The more is posted, the more each write carries. Delivery never waits: a player with too many unread bytes is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

import msgspec
from websockets.asyncio.server import ServerConnection
from websockets.protocol import OPEN

from headgate.arena import metrics
from headgate.arena.rate_limits import Allowance
from headgate.waiting_room.model import Reason

MOST_REST: Final = 0.25


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

    def set_cause(self, why: str, reason: Reason) -> None:
        """Record why the connection ends; the first cause wins."""
        if self.why is None:
            self.why, self.reason = why, reason


class ChatRoom:
    """All players inside."""

    def __init__(self, backlog_bytes: int) -> None:
        self.players: dict[str, Player] = {}
        self._backlog_bytes = backlog_bytes
        self._posted: list[_PostedMessage] = []
        self._rest_until = 0.0
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self.players)

    def post(self, frame: bytes, sender: Player | None = None) -> None:
        """Queue a frame for everybody but its sender."""
        self._add(_PostedMessage(frame, sender, None))

    def send(self, player: Player, frame: bytes) -> None:
        """Send a frame to one player, after the frames that were posted before it."""
        if self._posted:
            self._add(_PostedMessage(frame, None, player))
        else:
            metrics.DELIVERED.inc(self._write(player, frame, 1, monotonic()))

    def sweep(self, idle_seconds: float, idle: Callable[[Player], None]) -> None:
        """Call `idle` for every player without a message in either direction for so long."""
        limit = monotonic() - idle_seconds
        for player in list(self.players.values()):
            if player.last < limit and player.why is None:
                idle(player)

    def _add(self, posted: _PostedMessage) -> None:
        if not self._posted:
            self._loop.call_later(max(0.0, self._rest_until - monotonic()), self._deliver)
        self._posted.append(posted)

    def _deliver(self) -> None:
        posted, self._posted = self._posted, []
        started = monotonic()
        shared = [one.frame for one in posted if one.only is None]
        everything = b"".join(shared)
        special = {one.sender or one.only for one in posted}
        delivered = 0
        for player in list(self.players.values()):
            if player not in special:
                delivered += self._write(player, everything, len(shared), started)
                continue
            own = [one.frame for one in posted if one.reaches(player)]
            if own:
                delivered += self._write(player, b"".join(own), len(own), started)
        metrics.DELIVERED.inc(delivered)
        # Pause as long as the delivery took: half of the time stays for other work, and each write carries more.
        now = monotonic()
        self._rest_until = now + min(now - started, MOST_REST)

    def _write(self, player: Player, frames: bytes, count: int, now: float) -> int:
        """Write whole frames to a player's connection; return how many, 0 if it is closing or reads too slowly."""
        connection = player.connection
        if not count or connection.protocol.state is not OPEN:
            return 0
        transport = connection.transport
        if transport.get_write_buffer_size() > self._backlog_bytes:
            player.set_cause("slow", Reason.DROPPED)
            transport.abort()
            return 0
        # Unmasked frames are the same bytes for everybody; the library's own writes between them are whole frames too.
        transport.write(frames)
        player.last = now
        return count


class _PostedMessage(msgspec.Struct, frozen=True, eq=False):
    """A queued frame: for all but its sender, or for one player only."""

    frame: bytes
    sender: Player | None
    only: Player | None

    def reaches(self, player: Player) -> bool:
        """Whether this player gets it."""
        return self.only is player if self.only is not None else self.sender is not player
