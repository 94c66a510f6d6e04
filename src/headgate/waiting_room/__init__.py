"""Users wait their turn: queues, promotion, tickets, and the seats of servers."""

from typing import TYPE_CHECKING

from headgate.kit.lazily import offered

if TYPE_CHECKING:
    from headgate.waiting_room.model import Eta, Reason, State
    from headgate.waiting_room.policy import Policy, PolicyChange
    from headgate.waiting_room.settings import WaitingRoomSettings
    from headgate.waiting_room.waiting_room import WaitingRoom
    from headgate.waiting_room.wire import (
        Beat,
        Board,
        Entry,
        QueueView,
        Redeemed,
        RenewedSession,
        Seat,
        Servers,
        Status,
        User,
    )

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

_HOMES = ("settings", "model", "policy", "wire", "waiting_room")
__getattr__ = offered(__name__, __all__, [f"{__name__}.{home}" for home in _HOMES])
