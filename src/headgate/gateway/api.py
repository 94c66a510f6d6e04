"""The gateway's own routes: system facts, tokens, metrics and the API documents."""

from __future__ import annotations

import asyncio
from datetime import datetime
from time import monotonic
from typing import Annotated, Final, Literal

import msgspec

import headgate
from headgate.gateway.pages import PageFile, asset_operation, page_operation
from headgate.gateway.settings import GatewaySettings
from headgate.gateway.tokens import Token, TokenExists, Tokens, TokensFull, TokenUnknown
from headgate.http.routes import Access, Answer, Call, Operation
from headgate.kit import metrics
from headgate.kit.ids import ThingName, thing_name
from headgate.kit.logs import get_logger
from headgate.kit.problems import StoreUnavailable
from headgate.kit.web import web_folder
from headgate.kit.wire import Wire
from headgate.store import Store

log = get_logger()

Name = Annotated[ThingName, msgspec.Meta(examples=["shop-backend"])]


Role = Literal["admin", "service", "read"]
HEALTH_SECONDS: Final = 1.0
_ROLES: Final[dict[Access, Role]] = {Access.ADMIN: "admin", Access.SERVICE: "service", Access.READ: "read"}


class StoreFacts(Wire):
    """Kind, health and versions of the store."""

    kind: str
    healthy: bool
    latency_ms: float | None
    servers: list[str]


class SystemFacts(Wire):
    """Version and workers of this gateway, and its store."""

    version: str
    workers: int
    store: StoreFacts


class TokenRequest(Wire):
    """A token to create: `service` calls on behalf of its users, `read` only reads, `admin` may do everything."""

    name: Name
    role: Role
    namespace: Name | None = None


class TokenFacts(Wire):
    """A token, without its secret."""

    id: str
    name: str
    role: Role
    namespace: str | None
    created_at: Annotated[datetime, msgspec.Meta(tz=True)]
    created_by: str


class NewToken(TokenFacts):
    """A new token with its secret, which is shown only once."""

    token: str


class TokenList(Wire):
    """All tokens, oldest first."""

    tokens: list[TokenFacts]


def operations(store: Store, tokens: Tokens, settings: GatewaySettings) -> list[Operation]:
    """Return the gateway's own operations."""

    async def system(_call: Call) -> SystemFacts:
        return SystemFacts(headgate.__version__, settings.workers, await store_facts(store))

    async def list_tokens(_call: Call) -> TokenList:
        return TokenList([_facts(token) for token in await tokens.list()])

    async def create_token(call: Call) -> Answer:
        request: TokenRequest = call.body
        text, token = await tokens.create(request.name, Access(request.role), request.namespace, by=call.caller.name)
        log.info(
            "token created", name=request.name, role=request.role, namespace=request.namespace, by=call.caller.name
        )
        made = NewToken(**msgspec.structs.asdict(_facts(token)), token=text)
        return Answer(made, 201, {"location": f"/api/admin/tokens/{request.name}"})

    async def revoke_token(call: Call) -> None:
        name = thing_name(call.path["name"], "name")
        if await tokens.revoke(name):
            log.info("token revoked", name=name, by=call.caller.name)

    async def metrics_text(_call: Call) -> Answer:
        return Answer(await metrics.scrape(), content_type=metrics.CONTENT_TYPE)

    return [
        Operation(
            "GET",
            "/api/system",
            system,
            "What runs here",
            description="Version, number of worker processes, and whether the store answers.",
            access=Access.READ,
            tag="system",
            answer=SystemFacts,
        ),
        Operation(
            "GET",
            "/metrics",
            metrics_text,
            "Metrics",
            description="Prometheus' text format, all worker processes of this gateway together.",
            access=Access.READ,
            tag="system",
            content_type="text/plain",
        ),
        Operation(
            "GET", "/api/admin/tokens", list_tokens, "List tokens", access=Access.ADMIN, tag="tokens", answer=TokenList
        ),
        Operation(
            "POST",
            "/api/admin/tokens",
            create_token,
            "Make a token",
            description="The answer is the only place where the secret is ever shown. The token is in force on every "
            "gateway within a second.",
            access=Access.ADMIN,
            tag="tokens",
            body=TokenRequest,
            answer=NewToken,
            status=201,
            errors=(TokenExists, TokensFull),
        ),
        Operation(
            "DELETE",
            "/api/admin/tokens/{name}",
            revoke_token,
            "Revoke a token",
            description="Refused on every gateway within a second. Repeating it changes nothing.",
            access=Access.ADMIN,
            tag="tokens",
            errors=(TokenUnknown,),
        ),
    ]


def documents(openapi: bytes, front: str) -> list[Operation]:
    """Return the routes of the OpenAPI document and its pages; `/` redirects to `front`."""
    web = web_folder() / "docs"
    page = PageFile(web / "index.html")

    async def openapi_json(_call: Call) -> Answer:
        return Answer(openapi, headers={"cache-control": "no-cache"})

    async def front_door(_call: Call) -> Answer:
        return Answer(status=302, headers={"location": front})

    return [
        Operation("GET", "/", front_door, "The first page", access=Access.PUBLIC, tag="system", documented=False),
        Operation(
            "GET", "/openapi.json", openapi_json, "This document", access=Access.PUBLIC, tag="system", documented=False
        ),
        page_operation("/docs", page, "docs"),
        page_operation("/docs/problems", page, "docs_problems"),
        asset_operation("/docs/assets/{file:path}", web, "docs_assets"),
    ]


async def store_facts(store: Store) -> StoreFacts:
    """Read the facts of the store; a store that does not answer is reported as unhealthy."""
    kind = store.address.kind.value
    started = monotonic()
    try:
        await store.ping(asyncio.get_running_loop().time() + HEALTH_SECONDS)
        latency = round((monotonic() - started) * 1000, 3)
        servers = [f"{node.server} {'.'.join(map(str, node.version))}" for node in await store.facts()]
    except StoreUnavailable:
        return StoreFacts(kind=kind, healthy=False, latency_ms=None, servers=[])
    return StoreFacts(kind=kind, healthy=True, latency_ms=latency, servers=servers)


def _facts(token: Token) -> TokenFacts:
    caller = token.caller
    return TokenFacts(
        id=token.id,
        name=caller.name,
        role=_ROLES[caller.role],
        namespace=caller.namespace,
        created_at=token.created_at,
        created_by=token.creator,
    )
