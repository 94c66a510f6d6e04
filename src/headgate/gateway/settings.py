"""Settings of the gateway: where it listens, which proxies it trusts, its limits."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from headgate.kit.problems import HeadgateError
from headgate.kit.settings import Doc, Settings

LEAST_TOKEN: Final = 24
ENTRY: Final = "entry"

Positive = Annotated[float, Meta(gt=0)]


class RateLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rate limit of one client address and of one user: a token bucket that refills steadily."""

    per_second: Positive
    burst: Positive
    user_per_second: Positive | None = None
    user_burst: Positive = 1.0


# High per address, because a school or a mobile network shares one address; low per user. Each visitor enters once: 150 at
# once and 300 a minute are more than such a network sends, and less than a script sends in a second.
LIMITS: dict[str, RateLimit] = {
    "entry": RateLimit(per_second=5, burst=150, user_per_second=1, user_burst=10),
    "status": RateLimit(per_second=500, burst=5000, user_per_second=2, user_burst=20),
    "stream": RateLimit(per_second=50, burst=500, user_per_second=1, user_burst=10),
    "gate": RateLimit(per_second=500, burst=5000),
    "unauthorized": RateLimit(per_second=10, burst=1000),
}


class AdminTokenMissing(HeadgateError):
    """There is no admin token; set HEADGATE_ADMIN_TOKEN to a long random text, or run `headgate up`, which makes one."""

    code = "admin_token_missing"


class AdminTokenShort(HeadgateError):
    """The admin token is too short and could be guessed; set HEADGATE_ADMIN_TOKEN to 24 random characters or more."""

    code = "admin_token_short"


def check_admin_token(token: str) -> None:
    """Raise an error if the admin token is missing or could be guessed."""
    if not token:
        raise AdminTokenMissing
    if len(token) < LEAST_TOKEN:
        raise AdminTokenShort


class GatewaySettings(Settings, section="gateway"):
    """The settings of the gateway."""

    host: Annotated[str, Doc("address to listen on; 0.0.0.0 is every address of this machine")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535), Doc("port to listen on; 0 takes a free one", env="HEADGATE_PORT")] = 8080
    workers: Annotated[int, Meta(ge=1, le=256), Doc("processes that answer requests; about one for each core")] = 1
    admin_token: Annotated[
        str,
        Doc(
            "the token that may do everything, 24 characters or more; without it the gateway does not start",
            "HEADGATE_ADMIN_TOKEN",
            True,
        ),
    ] = ""
    signing_keys: Annotated[
        str, Doc("a JWKS with private Ed25519 keys, newest first, that sign tickets", "HEADGATE_SIGNING_KEYS", True)
    ] = ""
    origins: Annotated[
        tuple[str, ...], Doc("sites whose pages may call public routes, such as https://shop.example; * is every site")
    ] = ()
    trusted_proxies: Annotated[
        tuple[str, ...], Doc("addresses and networks of proxies whose X-Forwarded-For is believed")
    ] = ()
    limits: Annotated[
        dict[str, RateLimit],
        Doc("request limits that differ from the built-in ones, by class: entry, status, stream, gate, unauthorized"),
    ] = msgspec.field(default_factory=dict)
    body_limit: Annotated[int, Meta(ge=1), Doc("largest request body in bytes, where a route sets no other")] = (
        1_048_576
    )
    body_seconds: Annotated[Positive, Doc("how long a client may take to send a request's body")] = 10.0
    backpressure: Annotated[int, Meta(ge=1), Doc("open connections that one process holds, idle ones included")] = (
        20_000
    )
    connections_per_address: Annotated[
        int, Meta(ge=1), Doc("open connections of one address that one process holds; trusted_proxies may have all")
    ] = 10_000
    header_cache: Annotated[
        bool, Doc("parse request headers that clients repeat only once; off parses each request, at a fifth more CPU")
    ] = True
    quiet_seconds: Annotated[
        float,
        Meta(ge=0),
        Doc("after a stop signal, how long to go on serving, with Connection: close, while /readyz already says no"),
    ] = 5.0
    stop_seconds: Annotated[Positive, Doc("how long requests under way may take to finish when stopping")] = 5.0
