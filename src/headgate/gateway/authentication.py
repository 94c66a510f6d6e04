"""Authentication of requests by token or console session, and the rate limits of client addresses."""

from __future__ import annotations

from headgate.gateway.console import Sessions
from headgate.gateway.limits import MakeBuckets, RequestLimiter, limiters
from headgate.gateway.settings import GatewaySettings
from headgate.gateway.tokens import Keyring
from headgate.http.client_addresses import ClientAddresses
from headgate.http.exchange import Exchange
from headgate.http.routes import ANONYMOUS, Access, Caller
from headgate.kit.ids import thing_name
from headgate.kit.problems import Forbidden, Unauthorized

DEFAULT_NAMESPACE = "default"


class Authentication:
    """Finds the caller of each request and checks its role and its limits."""

    def __init__(
        self,
        keyring: Keyring,
        settings: GatewaySettings,
        sessions: Sessions | None = None,
        shared: MakeBuckets | None = None,
    ) -> None:
        self.limits = limiters(settings.limits, shared)
        self._clients = ClientAddresses(settings.trusted_proxies)
        self._failures = self.limits["unauthorized"]
        self._keyring = keyring
        self._sessions = sessions

    def authenticate(
        self, exchange: Exchange, access: Access, limiter: RequestLimiter | None, *, bearer: bool = True
    ) -> tuple[Caller, str]:
        """Return the caller and the client's address, or raise.

        A public route needs no token, and ignores one that is not valid: behind a proxy, `Authorization` may belong to the
        site. The limits of an address do not apply to callers with a token, nor to a trusted proxy that asks for itself.
        """
        target = exchange.target
        client, is_proxy = self.client(exchange)
        headers = target.headers
        secret = headers.get(b"x-api-token")
        if secret is None and bearer and b"authorization" in headers:
            secret = _bearer(headers[b"authorization"])
        caller = ANONYMOUS if secret is None else self._keyring.caller(secret) or ANONYMOUS
        if access is not Access.PUBLIC:
            if secret is None and self._sessions is not None and b"cookie" in headers:
                caller = self._sessions.caller(target.method, headers) or ANONYMOUS
            if caller is ANONYMOUS:
                self._failures.take_address(client)
                raise Unauthorized("Send a token in X-API-Token." if secret is None else "This token is not valid.")
            if not caller.may(access):
                raise Forbidden(f"This needs a token with the role {access}, not {caller.role}.")
        elif caller is ANONYMOUS and limiter is not None and not is_proxy:
            limiter.take_address(client)
        return caller, client

    def spend(self, exchange: Exchange, caller: Caller, limit: str) -> None:
        """Count a request against a further limit of its client's address; raises RateLimited.

        A caller with a token is counted too. A service's token makes its X-Forwarded-For trusted, so that its visitors are
        counted; a service that forwards no address asks for itself and is not counted.
        """
        vouched = caller.may(Access.SERVICE)
        client, is_proxy = self._clients.address(exchange.client, exchange.target.head.pairs, vouched=vouched)
        if not is_proxy:
            self.limits[limit].take_address(client)

    def client(self, exchange: Exchange) -> tuple[str, bool]:
        """Return the client's address, and whether it is a trusted proxy that asks for itself."""
        return self._clients.address(exchange.client, exchange.target.head.pairs)


def chosen_namespace(caller: Caller, wanted: str | None) -> str:
    """Return the namespace of a call: the requested one, else the only one of the caller, else the default."""
    if wanted is None:
        return caller.namespace or DEFAULT_NAMESPACE
    if caller.namespace is not None and wanted != caller.namespace:
        raise Forbidden(f"This token may only be used in the namespace {caller.namespace}.")
    return thing_name(wanted, "namespace")


def refuse_limited(caller: Caller, access: Access) -> None:
    """Raise Forbidden for a token that is limited to a namespace, on a route that belongs to all namespaces."""
    if caller.namespace is not None and access is not Access.PUBLIC:
        raise Forbidden(f"This token may only be used in the namespace {caller.namespace}; this route has none.")


def _bearer(authorization: bytes) -> bytes | None:
    if authorization[:7].lower() != b"bearer ":
        return None
    return authorization[7:].strip()
