"""ASGI middleware for the services of Headgate's users."""

from headgate.sdk.fence_guard import FenceGuard
from headgate.sdk.gate import Gate

__all__ = ["FenceGuard", "Gate"]
