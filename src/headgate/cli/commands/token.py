"""`headgate token …`: the tokens of callers, through a gateway or directly in the store."""

from __future__ import annotations

import getpass
from typing import Literal, cast
from urllib.parse import quote

from msgspec import structs

from headgate.cli import output
from headgate.cli.error_advice import instead
from headgate.cli.options import Json
from headgate.cli.target import Url, target
from headgate.gateway.api import NewToken, TokenFacts, TokenList, TokenRequest
from headgate.gateway.tokens import Token, Tokens, TokenUnknown
from headgate.http.routes import Access
from headgate.kit.ids import thing_name
from headgate.sdk.http import Http

Role = Literal["admin", "service", "read"]

_PATH = "/api/admin/tokens"


async def list_tokens(*, url: Url = None, json: Json = False) -> None:
    """Show all tokens, without the tokens themselves.

    Parameters
    ----------
    json
        Print JSON.
    """
    async with target(url) as headgate:
        backend = headgate.backend
        if isinstance(backend, Http):
            found = (await backend.request("GET", _PATH, answer=TokenList)).tokens
        else:
            found = [_facts(token) for token in await Tokens(backend).list()]
    if json:
        output.as_json(found)
        return
    output.table(
        ("name", "role", "namespace", "created", "by"),
        [
            (token.name, token.role, token.namespace or "all", f"{token.created_at:%Y-%m-%d %H:%M}Z", token.created_by)
            for token in found
        ],
        empty="There are no tokens yet; `headgate token create NAME --role service` makes one.",
    )


async def create(
    name: str,
    *,
    role: Role,
    namespace: str | None = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Make a token and print it, once: nobody can ask for it again.

    Parameters
    ----------
    name
        What the token is for.
    role
        What it may do: read looks, service calls on behalf of its users, admin does everything.
    namespace
        The only namespace it is good for.
    json
        Print JSON.
    """
    thing_name(name, "name")
    if namespace is not None:
        thing_name(namespace, "namespace")
    async with target(url) as headgate:
        backend = headgate.backend
        if isinstance(backend, Http):
            body = TokenRequest(name=name, role=role, namespace=namespace)
            made = await backend.request("POST", _PATH, answer=NewToken, body=body)
        else:
            text, token = await Tokens(backend).create(name, Access(role), namespace, by=getpass.getuser())
            made = NewToken(**structs.asdict(_facts(token)), token=text)
    if json:
        output.as_json(made)
    else:
        output.line(made.token)


async def revoke(name: str, *, url: Url = None) -> None:
    """Make the tokens of this name worthless, on every gateway within a second.

    Parameters
    ----------
    name
        What the token was made for.
    """
    thing_name(name, "name")
    async with target(url) as headgate:
        backend = headgate.backend
        with instead(TokenUnknown, f"There is no token {name}; `headgate token list` shows those that are there."):
            if isinstance(backend, Http):
                await backend.request("DELETE", f"{_PATH}/{quote(name, safe='')}", answer=type(None))
            else:
                await Tokens(backend).revoke(name)
    output.say(f"headgate: {name} is revoked.")


def _facts(token: Token) -> TokenFacts:
    caller = token.caller
    return TokenFacts(
        id=token.id,
        name=caller.name,
        role=cast("Role", caller.role.value),
        namespace=caller.namespace,
        created_at=token.created_at,
        created_by=token.creator,
    )
