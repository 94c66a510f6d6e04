"""What users import: `from headgate.sdk import Headgate`."""

from typing import TYPE_CHECKING

from headgate.kit.lazily import offered

if TYPE_CHECKING:
    from headgate.kit.problems import Closed, StoreUnavailable
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
    from headgate.sdk.client import Headgate
    from headgate.sdk.discovery import ServiceDiscoveryClient
    from headgate.sdk.http import GatewayUnavailable
    from headgate.sdk.lifespan import registered
    from headgate.sdk.sync import HeadgateSync

__all__ = [
    "AlreadyHeld",
    "Closed",
    "FenceOutdated",
    "GatewayUnavailable",
    "Headgate",
    "HeadgateSync",
    "LockHeld",
    "LockLost",
    "NotHolder",
    "NotReplicated",
    "Quorum",
    "QuorumLost",
    "ServiceDiscoveryClient",
    "StoreUnavailable",
    "registered",
]

_HOMES = ("client", "http", "lifespan", "discovery", "sync")
__getattr__ = offered(
    __name__, __all__, [*(f"{__name__}.{home}" for home in _HOMES), "headgate.locks", "headgate.kit.problems"]
)
