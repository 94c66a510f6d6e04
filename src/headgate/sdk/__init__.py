"""What users import: `from headgate.sdk import Headgate`."""

from headgate.sdk.client import Headgate
from headgate.sdk.http import GatewayUnavailable

__all__ = ["GatewayUnavailable", "Headgate"]
