"""Where a store is: the URLs people write, taken apart."""

from __future__ import annotations

import ssl
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from headgate.kit.problems import InvalidRequest

DEFAULT_PORT = 6379
SENTINEL_PORT = 26379


class Kind(StrEnum):
    """How a store is laid out."""

    STANDALONE = "standalone"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


class Endpoint(NamedTuple):
    """One node's host and port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Address(msgspec.Struct, frozen=True):
    """A store: its layout, its nodes, and how to sign in there."""

    kind: Kind
    nodes: tuple[Endpoint, ...]
    user: str | None = None
    password: str | None = None
    database: int = 0
    primary_name: str = ""
    sentinel_password: str | None = None
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        scheme = "valkeys" if self.tls else "valkey"
        return f"{scheme}+{self.kind}://{','.join(map(str, self.nodes))}"


def parse_address(url: str) -> Address:
    """Take a store's URL apart; the password never shows in an error."""
    split = urlsplit(url)
    family, _, layout = split.scheme.partition("+")
    if family not in {"valkey", "valkeys", "redis", "rediss"} or layout not in {"", "sentinel", "cluster"}:
        raise InvalidRequest(
            "A store's URL begins with valkey://, valkeys:// (TLS), valkey+sentinel:// or valkey+cluster://.",
            field="store",
        )
    kind = Kind(layout) if layout else Kind.STANDALONE
    sign_in, _, hosts = split.netloc.rpartition("@")
    user, _, password = sign_in.partition(":")
    options = dict(parse_qsl(split.query))
    path = split.path.strip("/")
    try:
        nodes = tuple(_endpoint(host, kind) for host in hosts.split(",") if host)
        database = int(options.pop("db", "0") if kind is not Kind.STANDALONE else path or "0")
    except ValueError as error:
        raise InvalidRequest(f"The store's URL is not readable: {error}.", field="store") from None
    if not nodes:
        raise InvalidRequest("The store's URL names no host.", field="store")
    if kind is Kind.SENTINEL and not path:
        raise InvalidRequest("Name the primary after the sentinels: valkey+sentinel://host1,host2/NAME.", field="store")
    if kind is Kind.CLUSTER and database:
        raise InvalidRequest("A cluster has only database 0.", field="store")
    return Address(
        kind=kind,
        nodes=nodes,
        user=unquote(user) or None,
        password=unquote(password) or None,
        database=database,
        primary_name=path if kind is Kind.SENTINEL else "",
        sentinel_password=options.get("sentinel_password"),
        tls=_tls(options) if family in {"valkeys", "rediss"} else None,
    )


def _endpoint(text: str, kind: Kind) -> Endpoint:
    default = SENTINEL_PORT if kind is Kind.SENTINEL else DEFAULT_PORT
    split = urlsplit(f"//{text}")
    if not split.hostname:
        raise ValueError(f"{text!r} is not a host")
    return Endpoint(split.hostname, split.port or default)


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
        if "cert" in options:
            context.load_cert_chain(options["cert"], options.get("key"))
    except OSError as error:
        raise InvalidRequest(f"The store's certificates could not be read: {error}.", field="store") from error
    return context
