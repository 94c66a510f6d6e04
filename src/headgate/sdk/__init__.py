"""What users import: `from headgate.sdk import Headgate`."""

from headgate.locks import AlreadyHeld, FenceOutdated, LockHeld, LockLost, NotHolder, Quorum, QuorumLost
from headgate.sdk.client import Headgate
from headgate.sdk.discovery import ServiceDiscoveryClient
from headgate.sdk.http import GatewayUnavailable
from headgate.sdk.lifespan import registered
from headgate.sdk.sync import HeadgateSync

__all__ = [
    "AlreadyHeld",
    "FenceOutdated",
    "GatewayUnavailable",
    "Headgate",
    "HeadgateSync",
    "LockHeld",
    "LockLost",
    "NotHolder",
    "Quorum",
    "QuorumLost",
    "ServiceDiscoveryClient",
    "registered",
]
