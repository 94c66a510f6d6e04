"""People wait their turn: lines, promotion, tickets, and the seats of the servers behind the door."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.waiting_room.model import (
        Beat,
        Board,
        Entry,
        Eta,
        Reason,
        Redeemed,
        Seat,
        Servers,
        State,
        Status,
        User,
    )
    from headgate.waiting_room.policy import Policy, PolicyChange, QueueView
    from headgate.waiting_room.room import WaitingRoom
    from headgate.waiting_room.settings import WaitingRoomSettings

__all__ = [
    "Beat",
    "Board",
    "Entry",
    "Eta",
    "Policy",
    "PolicyChange",
    "QueueView",
    "Reason",
    "Redeemed",
    "Seat",
    "Servers",
    "State",
    "Status",
    "User",
    "WaitingRoom",
    "WaitingRoomSettings",
]

_HOMES = ("settings", "model", "policy", "room")


def __getattr__(name: str) -> object:
    """Import what is asked for when it is: every process reads the settings, few need a room and its signatures."""
    if name in __all__:
        for home in _HOMES:
            found: object = getattr(import_module(f"{__name__}.{home}"), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
