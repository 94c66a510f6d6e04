"""What users import: `from headgate.sdk import Headgate`, and whatever they catch or hand over."""

from typing import TYPE_CHECKING

from headgate.kit.lazily import offered

if TYPE_CHECKING:
    from headgate.config.model import UnknownKey, UnknownVersion
    from headgate.kit.problems import (
        Closed,
        DeadlineExceeded,
        Forbidden,
        HeadgateError,
        InvalidRequest,
        NotFound,
        OutcomeUnknown,
        RateLimited,
        StoreUnavailable,
        Unauthorized,
        VersionConflict,
    )
    from headgate.locks import (
        AlreadyHeld,
        FenceOutdated,
        LockHeld,
        LockLost,
        NotHolder,
        NotReplicated,
        Quorum,
        QuorumLost,
    )
    from headgate.registry.model import Record
    from headgate.relay.model import Limit, Upstream
    from headgate.relay.problems import LineFull, PermitExpired, UpstreamUnknown
    from headgate.sdk.client import Headgate
    from headgate.sdk.discovery import ServiceDiscoveryClient
    from headgate.sdk.http import GatewayUnavailable
    from headgate.sdk.lifespan import registered
    from headgate.sdk.sync import HeadgateSync
    from headgate.waiting_room.policy import PolicyChange
    from headgate.waiting_room.problems import (
        NotInLine,
        QueueClosed,
        QueueFull,
        QueueUnknown,
        TicketExpired,
        TicketInvalid,
        TicketUsed,
    )

__all__ = [
    "AlreadyHeld",
    "Closed",
    "DeadlineExceeded",
    "FenceOutdated",
    "Forbidden",
    "GatewayUnavailable",
    "Headgate",
    "HeadgateError",
    "HeadgateSync",
    "InvalidRequest",
    "Limit",
    "LineFull",
    "LockHeld",
    "LockLost",
    "NotFound",
    "NotHolder",
    "NotInLine",
    "NotReplicated",
    "OutcomeUnknown",
    "PermitExpired",
    "PolicyChange",
    "QueueClosed",
    "QueueFull",
    "QueueUnknown",
    "Quorum",
    "QuorumLost",
    "RateLimited",
    "Record",
    "ServiceDiscoveryClient",
    "StoreUnavailable",
    "TicketExpired",
    "TicketInvalid",
    "TicketUsed",
    "Unauthorized",
    "UnknownKey",
    "UnknownVersion",
    "Upstream",
    "UpstreamUnknown",
    "VersionConflict",
    "registered",
]

_HOMES = (
    "sdk.client", "kit.problems", "waiting_room.problems", "relay.problems", "sdk.http", "sdk.lifespan", "sdk.discovery",
    "sdk.sync", "locks", "config.model", "registry.model", "relay.model", "waiting_room.policy",
)  # fmt: skip
__getattr__ = offered(__name__, __all__, [f"headgate.{home}" for home in _HOMES])
