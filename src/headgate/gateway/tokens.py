"""API tokens: stored only as hashes, cached by every gateway, revoked everywhere within a second.

All tokens are one thing in the store. A gateway caches them, so that a request needs no store call, and refreshes on a hint or
every 700 ms. Tokens are removed only by a revocation, and revocations are kept. So a token that a gateway knows and the store
does not was lost by the store, and the gateway writes it back.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from typing import cast

import msgspec

from headgate.http.routes import Access, Caller
from headgate.kit.ids import thing_name
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError, InvalidRequest
from headgate.store import Reply, Store, script

CREATE = script(__package__, "token_create")
LIST = script(__package__, "token_list")
REVOKE = script(__package__, "token_revoke")
RESTORE = script(__package__, "token_restore")

MOST_TOKENS = 1000
MOST_REVOCATIONS = 1000
REFRESH_SECONDS = 0.7
_PREFIX = "hg_"
_ANY = "*"

log = get_logger()


class TokenExists(HeadgateError):
    """A token of this name exists already; revoke it or take another name."""

    code, status = "token_exists", 409


class TokensFull(HeadgateError):
    """There are too many tokens; revoke some first."""

    code, status = "tokens_full", 409


class TokenUnknown(HeadgateError):
    """There is no token of this name."""

    code, status = "token_unknown", 404


class Token(msgspec.Struct, frozen=True):
    """A token without its secret."""

    id: str
    caller: Caller
    digest: bytes
    created_at: datetime
    creator: str
    record: str

    @property
    def mark(self) -> str:
        """The name of this token in the list of revocations."""
        return f"{self.id} {self.caller.name}"


class Tokens:
    """The tokens in the store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.thing = store.thing("token", "default", "tokens")

    async def create(self, name: str, role: Access, namespace: str | None = None, *, by: str) -> tuple[str, Token]:
        """Create a token; return its secret, which cannot be read again, and the token."""
        if role is Access.PUBLIC:
            raise InvalidRequest("A token's role is admin, service or read.", field="role")
        thing_name(name, "name")
        if namespace is not None:
            thing_name(namespace, "namespace")
        identity = secrets.token_hex(6)
        text = f"{_PREFIX}{identity}_{secrets.token_urlsafe(32)}"
        digest = sha256(text.encode()).hexdigest()
        arguments = (MOST_TOKENS, identity, name, role.value, namespace or _ANY, digest, by)
        record = await self.store.run(CREATE, self.thing, *arguments)
        return text, _token(identity, cast("bytes", record).decode())

    async def list(self) -> list[Token]:
        """Return all tokens, oldest first."""
        _, tokens, _ = _listed(await self.store.run(LIST, self.thing, ""))
        return sorted(tokens.values(), key=lambda token: token.created_at)

    async def revoke(self, name: str) -> int:
        """Revoke the tokens of this name; 0 if they were revoked before."""
        return cast("int", await self.store.run(REVOKE, self.thing, MOST_REVOCATIONS, thing_name(name, "name")))


class Keyring:
    """This process's cache of the tokens, and the admin token of the settings."""

    def __init__(self, tokens: Tokens, admin_token: str) -> None:
        self._tokens = tokens
        self._admin = sha256(admin_token.encode()).digest() if admin_token else None
        self._version = ""
        self._live: dict[str, Token] = {}
        self._revoked: dict[str, int] = {}
        self._changed = asyncio.Event()

    def caller(self, secret: bytes) -> Caller | None:
        """Return the caller with this token; None if it is not valid."""
        token_id = self.identify(secret)
        return None if token_id is None else self.caller_of(token_id)

    def identify(self, secret: bytes) -> str | None:
        """Return the id of a token; None if it is not valid."""
        digest = sha256(secret).digest()
        if self._admin is not None and compare_digest(digest, self._admin):
            return _ADMIN_ID
        if not secret.startswith(b"hg_"):
            return None
        identity = secret[3:15].decode("latin-1")
        token = self._live.get(identity)
        if token is None or not compare_digest(digest, token.digest):
            return None
        return identity

    def caller_of(self, token_id: str) -> Caller | None:
        """Return the caller of a token's id; None once it is revoked."""
        if token_id == _ADMIN_ID:
            return _ADMIN
        token = self._live.get(token_id)
        return None if token is None else token.caller

    async def keep(self) -> None:
        """Refresh the cache on every hint and every 700 ms, until cancelled."""
        failed = False
        with self._tokens.store.hints.listen(self._tokens.thing, "events", lambda _words: self._changed.set()):
            while True:
                try:
                    async with asyncio.timeout(REFRESH_SECONDS):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                self._changed.clear()
                try:
                    await self.refresh()
                    failed = False
                except HeadgateError as error:
                    if not failed:
                        log.warning("tokens could not be read, the known ones stay in force", error=str(error))
                    failed = True

    async def refresh(self) -> None:
        """Read the tokens if they have changed, and write back those that the store has lost."""
        version, stored, revoked = _listed(await self._tokens.store.run(LIST, self._tokens.thing, self._version))
        if version == self._version:
            return
        lost = [token for token in self._live.values() if token.id not in stored and token.mark not in revoked]
        lost_revocations = {} if len(revoked) >= MOST_REVOCATIONS else _not_in(revoked, self._revoked)
        self._revoked = {**lost_revocations, **revoked}
        known = [*stored.values(), *lost]
        self._live = {token.id: token for token in known if token.mark not in self._revoked}
        self._version = version
        if lost or lost_revocations:
            await self._restore([token for token in lost if token.mark not in self._revoked], lost_revocations)

    async def _restore(self, tokens: Sequence[Token], revoked: dict[str, int]) -> None:
        arguments: list[str | int] = [len(revoked)]
        for mark, at in revoked.items():
            arguments += (mark, at)
        for token in tokens:
            arguments += (token.id, token.record)
        try:
            changes = await self._tokens.store.run(RESTORE, self._tokens.thing, *arguments)
        except HeadgateError:
            self._version = ""  # makes the next refresh try again
            raise
        if changes:
            log.warning("tokens that the store had lost were written back", tokens=len(tokens), revoked=len(revoked))


_ADMIN = Caller("admin", Access.ADMIN)
_ADMIN_ID = "admin"


def _not_in(stored: dict[str, int], cached: dict[str, int]) -> dict[str, int]:
    return {mark: at for mark, at in cached.items() if mark not in stored}


def _listed(reply: Reply) -> tuple[str, dict[str, Token], dict[str, int]]:
    version, *rest = cast("list[Reply]", reply)
    number = cast("bytes", version).decode()
    if not rest:
        return number, {}, {}
    tokens, revoked = (cast("list[bytes]", part) for part in rest)
    return (
        number,
        {
            id.decode(): _token(id.decode(), record.decode())
            for id, record in zip(tokens[::2], tokens[1::2], strict=True)
        },
        {mark.decode(): int(float(at)) for mark, at in zip(revoked[::2], revoked[1::2], strict=True)},
    )


def _token(identity: str, record: str) -> Token:
    name, role, namespace, digest, created_ms, creator = record.split(" ", 5)
    return Token(
        id=identity,
        caller=Caller(name, Access(role), None if namespace == _ANY else namespace),
        digest=bytes.fromhex(digest),
        created_at=datetime.fromtimestamp(int(created_ms) / 1000, UTC),
        creator=creator,
        record=record,
    )
