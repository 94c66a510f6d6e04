"""The reference game server: a chat room behind the waiting room, and the client that enters it."""

from headgate.arena.server import Arena
from headgate.arena.settings import ArenaSettings

__all__ = ["Arena", "ArenaSettings"]
