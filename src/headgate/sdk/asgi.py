"""ASGI middleware for the services of Headgate's users."""

from headgate.sdk.fence_guard import FenceGuard

__all__ = ["FenceGuard"]
