"""People wait their turn: lines, promotion, tickets, and the seats of the servers behind the door."""

from typing import TYPE_CHECKING

from headgate.kit.lazily import offered

if TYPE_CHECKING:
    from headgate.waiting_room.model import (
        Beat,
        Board,
        Entry,
        Eta,
        Reason,
        Redeemed,
        RenewedSession,
        Seat,
        Servers,
        State,
        Status,
        User,
    )
    from headgate.waiting_room.policy import Policy, PolicyChange, QueueView
    from headgate.waiting_room.settings import WaitingRoomSettings
    from headgate.waiting_room.waiting_room import WaitingRoom

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
    "RenewedSession",
    "Seat",
    "Servers",
    "State",
    "Status",
    "User",
    "WaitingRoom",
    "WaitingRoomSettings",
]

_HOMES = ("settings", "model", "policy", "waiting_room")
__getattr__ = offered(__name__, __all__, [f"{__name__}.{home}" for home in _HOMES])
