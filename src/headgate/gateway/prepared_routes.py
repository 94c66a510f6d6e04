"""Routes with everything computed that does not depend on the request."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.gateway.decoding import NAMESPACE, BodyReader, QueryReader
from headgate.gateway.limits import Buckets, RequestLimiter
from headgate.gateway.metrics import Tally
from headgate.gateway.settings import GatewaySettings
from headgate.http.client_addresses import client_network
from headgate.http.routes import Mount, Operation


class PreparedRoute:
    """An operation with its readers, its limits and its metrics."""

    __slots__ = (
        "access", "body", "handler", "limiter", "namespaced", "prompt", "query", "status", "tally", "title", "user", "users",
    )  # fmt: skip

    def __init__(self, operation: Operation, settings: GatewaySettings, limits: dict[str, RequestLimiter]) -> None:
        self.access = operation.access
        self.handler = operation.handler
        self.namespaced = operation.namespaced
        self.prompt = operation.prompt
        self.status = operation.status
        self.user = operation.user
        self.title = f"{operation.method} {operation.path}"
        self.tally = Tally(operation.id)
        self.limiter = limits[operation.limit] if operation.limit else None
        self.users = self.limiter.users if self.limiter is not None else None
        self.query = QueryReader(operation.query, namespaced=operation.namespaced)
        self.body: BodyReader | None = None
        if operation.body is not None:
            limit = operation.body_limit or settings.body_limit
            self.body = BodyReader(
                operation.body, limit=limit, seconds=settings.body_seconds, optional=operation.body_optional
            )


class UnroutedRequest:
    """Stands in for a route in logs and metrics, for a request that has none."""

    __slots__ = ("status", "tally", "title")

    def __init__(self, title: str, tally: Tally) -> None:
        self.title = title
        self.tally = tally
        self.status = 204


class MountRoute(UnroutedRequest):
    """A mounted application and its metrics."""

    __slots__ = ("mount", "prefix")

    def __init__(self, mount: Mount) -> None:
        super().__init__(mount.prefix, Tally(f"mount {mount.prefix}"))
        self.mount = mount
        self.prefix = mount.prefix.rstrip("/").encode()


class CachedRoute:
    """The route and the path parameters of a request; cached in the request's target if the client is anonymous.

    For an anonymous request to a public route, it also caches the client's address and its rate-limit buckets, because
    nothing but the target and the connection decides them.
    """

    __slots__ = ("anonymous", "client", "limits", "namespace", "network", "path", "route")

    def __init__(self, route: PreparedRoute, path: Mapping[str, str]) -> None:
        self.route = route
        self.path = path
        self.namespace = path.get(NAMESPACE)
        self.anonymous = False
        self.client = self.network = ""
        self.limits: Buckets | None = None

    def cache_client(self, client: str, *, is_proxy: bool) -> None:
        """Cache the client's address; requests that a trusted proxy makes for itself are not limited."""
        self.anonymous = True
        self.client = client
        self.network = client_network(client)
        self.limits = None if is_proxy or self.route.limiter is None else self.route.limiter.addresses
