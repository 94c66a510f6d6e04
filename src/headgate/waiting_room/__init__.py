"""People wait their turn: lines, promotion, tickets, and the seats of the servers behind the door."""

from typing import TYPE_CHECKING

from headgate.kit.lazy_imports import lazy_names

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

_MODULES = {
    "Policy": "policy",
    "PolicyChange": "policy",
    "QueueView": "policy",
    "WaitingRoom": "waiting_room",
    "WaitingRoomSettings": "settings",
}
__getattr__ = lazy_names(__name__, {name: f"{__name__}.{_MODULES.get(name, 'model')}" for name in __all__})
