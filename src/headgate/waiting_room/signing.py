"""Signed tokens: tickets that a server verifies by itself, place tokens that restore a place, and proofs of a site.

Tickets are Ed25519 JWS, since servers have only public keys. Place tokens are verified only here, so they are HMACs
under a secret derived from the same key, fast enough for every entry. The first key signs and all keys verify, so keys
are rotated by appending a new one everywhere, then putting it first, and removing the old one a day later.
"""

from __future__ import annotations

import base64
import hmac
import time
import uuid
from binascii import b2a_base64
from typing import Final

import msgspec
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import KeySet, OctKey, OKPKey

from headgate.kit.problems import Forbidden
from headgate.waiting_room.problems import KeysInvalid, TicketExpired, TicketInvalid

ALGORITHM: Final = "Ed25519"
PLACE_SECONDS: Final = 86_400
LEEWAY_SECONDS: Final = 5.0
STORE_TIME: Final = (
    "X-Store-Time"  # a header beside the public keys: the store's time in seconds, by which tickets expire
)
LONGEST_TOKEN: Final = 4096
# A token's header may have values of any type, for which the library raises these.
_UNREADABLE: Final = (JoseError, ValueError, TypeError)
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


class Ticket(msgspec.Struct, frozen=True, omit_defaults=True):
    """The claims of a signed ticket: its id, user, queue, generation, server and expiry."""

    jti: str
    sub: str
    aud: str
    gen: int
    exp: int
    srv: str = ""
    addr: str = ""
    ns: str = "default"


class PlaceToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """The claims of a place token: the user's place in one generation of a queue."""

    sub: str
    aud: str
    gen: int
    place: int
    exp: int
    ns: str = "default"
    account: bool = False
    name: str = ""


class _Proof(msgspec.Struct, frozen=True):
    sub: str
    aud: str
    exp: float


class PublicKeys:
    """The public keys that verify tickets."""

    def __init__(self, keys: KeySet) -> None:
        self._keys = keys

    @classmethod
    def read(cls, content: bytes) -> PublicKeys:
        """Read a gateway's `/.well-known/jwks.json`."""
        return cls(KeySet.import_key_set(msgspec.json.decode(content)))

    def knows(self, ticket: str) -> bool:
        """Tell whether the key that a ticket names is one of these."""
        try:
            kid = jws.extract_compact(ticket.encode()).headers().get("kid")
        except _UNREADABLE:
            kid = None
        # A ticket that names no key is tried with the keys that we have.
        return not isinstance(kid, str) or kid in {key.kid for key in self._keys.keys}

    def check_ticket(
        self,
        ticket: str,
        *,
        queue: str,
        instance_id: str | None = None,
        namespace: str = "default",
        now: float | None = None,
    ) -> Ticket:
        """Check a signed ticket for a queue and, if given, a server; raises TicketInvalid or TicketExpired.

        `now` is the store's time in seconds; without it the clock of this machine is used.
        """
        if len(ticket) > LONGEST_TOKEN:
            raise TicketInvalid
        try:
            found = jws.deserialize_compact(ticket, self._keys, algorithms=[ALGORITHM])
            claims = msgspec.json.decode(found.payload, type=Ticket)
        except _UNREADABLE as error:
            raise TicketInvalid from error
        if claims.aud != queue or claims.ns != namespace:
            raise TicketInvalid("This ticket is for another queue.")
        if instance_id is not None and claims.srv not in ("", instance_id):
            raise TicketInvalid("This ticket holds a seat on another server.")
        if claims.exp + LEEWAY_SECONDS < (time.time() if now is None else now):
            raise TicketExpired
        return claims


class SigningKeys:
    """The private keys, newest first; without keys nothing is signed."""

    def __init__(self, keys: list[OKPKey]) -> None:
        self._keys = keys
        self._secrets = {str(key.kid): _secret(key) for key in keys}
        self._macs = {kid: hmac.new(secret, digestmod="sha256") for kid, secret in self._secrets.items()}
        self._heads = {_base64(b'{"alg":"HS256","kid":"%s"}' % kid.encode()): kid for kid in self._secrets}
        self._head = next(iter(self._heads), "")

    def __bool__(self) -> bool:
        return bool(self._keys)

    @classmethod
    def read(cls, text: str) -> SigningKeys:
        """Read a JWKS with private Ed25519 keys."""
        try:
            found = msgspec.json.decode(text, type=dict[str, list[dict[str, str | list[str]]]])["keys"]
            keys = [OKPKey.import_key(key) for key in found]
        except (JoseError, ValueError, KeyError) as error:
            raise KeysInvalid from error
        if not keys or any(key.curve_name != "Ed25519" or not key.is_private for key in keys):
            raise KeysInvalid
        for key in keys:
            key.ensure_kid()
        return cls(keys)

    @classmethod
    def generate(cls) -> str:
        """Make a JWKS with one new key, as text."""
        key = OKPKey.generate_key("Ed25519")
        key.ensure_kid()
        return msgspec.json.encode({"keys": [key.as_dict(private=True)]}).decode()

    def jwks(self) -> dict[str, object]:
        """Give the public keys as a JWKS."""
        return {"keys": [{**key.as_dict(private=False), "use": "sig", "alg": ALGORITHM} for key in self._keys]}

    def public(self) -> PublicKeys:
        """Give the public keys that verify tickets."""
        return PublicKeys(KeySet(list(self._keys)))

    def sign_ticket(self, ticket: Ticket) -> str:
        """Sign a ticket."""
        newest = self._keys[0]
        header = {"alg": ALGORITHM, "kid": newest.kid, "typ": "JWT"}
        return jws.serialize_compact(header, msgspec.json.encode(ticket), newest, algorithms=[ALGORITHM])

    def sign_place(self, place: PlaceToken) -> str:
        """Sign a place token; empty without keys."""
        if not self._keys:
            return ""
        body = f"{self._head}.{_base64(msgspec.json.encode(place))}"
        return f"{body}.{_base64(self._mac(self._heads[self._head], body))}"

    def read_place(self, token: str, *, namespace: str, queue: str, user_id: str | None) -> PlaceToken:
        """Verify a place token for a queue and, if given, a user; raises Forbidden. It may have expired."""
        head, _, rest = token.partition(".")
        body, _, signature = rest.partition(".")
        kid = self._heads.get(head) if len(token) <= LONGEST_TOKEN else None
        if kid is None or not hmac.compare_digest(
            _base64(self._mac(kid, f"{head}.{body}")).encode(), signature.encode()
        ):
            raise Forbidden("This place token is not one of ours.")
        place = msgspec.json.decode(_from_base64(body), type=PlaceToken)
        if (place.ns, place.aud, place.sub) != (namespace, queue, user_id or place.sub):
            raise Forbidden("This place token is for another place.")
        return place

    def secrets(self) -> list[tuple[str, bytes]]:
        """Give a secret of each key, newest first, from which other parts derive secrets for tokens of their own."""
        return list(self._secrets.items())

    def derived_user(self, *parts: str) -> str:
        """Derive an id from these parts; it is always the same, and without the secret nobody can derive it."""
        secret = next(iter(self._secrets.values()), b"")
        if not secret:
            return str(uuid.uuid4())
        message = "\n".join(("user", *parts)).encode()
        return str(uuid.UUID(bytes=hmac.digest(secret, message, "sha256")[:16], version=4))

    def _mac(self, kid: str, message: str) -> bytes:
        mac = self._macs[kid].copy()  # with the key already hashed, which is half the cost
        mac.update(message.encode())
        return mac.digest()


class ProofKeys:
    """The keys that verify a site's proofs: a shared secret (HS256), or public Ed25519 keys."""

    def __init__(self, secret: str = "", jwks: str = "") -> None:
        self._secret = OctKey.import_key(secret) if secret else None
        self._keys = KeySet.import_key_set(msgspec.json.decode(jwks)) if jwks else None

    def check(self, proof: str, *, queue: str, user_id: str, now: float) -> None:
        """Verify a site's proof of a user at the store's time `now`, in seconds; raises Forbidden."""
        claims = self._read(proof)
        if claims is None or claims.sub != user_id or claims.aud != queue:
            raise Forbidden("This proof does not speak for this user and this queue.")
        if claims.exp < now:
            raise Forbidden("This proof is too old.")

    def _read(self, proof: str) -> _Proof | None:
        for key, algorithm in ((self._secret, "HS256"), (self._keys, ALGORITHM)):
            if key is None or len(proof) > LONGEST_TOKEN:
                continue
            try:
                return msgspec.json.decode(
                    jws.deserialize_compact(proof, key, algorithms=[algorithm]).payload, type=_Proof
                )
            except _UNREADABLE:
                continue
        return None


def _secret(key: OKPKey) -> bytes:
    seed = _from_base64(str(key.as_dict(private=True)["d"]))
    return hmac.digest(seed, b"headgate place tokens", "sha256")


def _base64(content: bytes) -> str:
    return b2a_base64(content, newline=False).rstrip(b"=").translate(_URL_SAFE).decode()


def _from_base64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
