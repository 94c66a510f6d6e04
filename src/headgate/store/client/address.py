"""Parses the URL of a store."""

from __future__ import annotations

import ssl
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from headgate.kit.problems import InvalidRequest

DEFAULT_PORT = 6379
SENTINEL_PORT = 26379
NOT_READABLE = (
    "cannot be read: a port is a number up to 65535, a database is a number, an IPv6 address has [ and ] around it, "
    "and what is special in a password is percent-encoded"
)


class StoreKind(StrEnum):
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
    """The parsed URL of a store: its layout, nodes and credentials."""

    kind: StoreKind
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


def check_address(url: str) -> None:
    """Refuse a store's URL that cannot be parsed, without opening the certificates that it names."""
    _parsed(url)


def parse_address(url: str) -> Address:
    """Parse a store's URL; errors never contain the password."""
    address, tls_options = _parsed(url)
    return address if tls_options is None else msgspec.structs.replace(address, tls=_tls(tls_options))


def _parsed(url: str) -> tuple[Address, dict[str, str] | None]:
    """Give the address without its certificates, and the options that name them, None without TLS."""
    try:
        split = urlsplit(url)
    except ValueError:
        raise InvalidRequest(f"The store's URL {NOT_READABLE}.", field="store") from None
    family, _, layout = split.scheme.partition("+")
    if family not in {"valkey", "valkeys", "redis", "rediss"} or layout not in {"", "sentinel", "cluster"}:
        raise InvalidRequest(
            "A store's URL begins with valkey://, valkeys:// (TLS), valkey+sentinel:// or valkey+cluster://.",
            field="store",
        )
    kind = StoreKind(layout) if layout else StoreKind.STANDALONE
    sign_in, _, hosts = split.netloc.rpartition("@")
    user, _, password = sign_in.partition(":")
    options = dict(parse_qsl(split.query))
    path = split.path.strip("/")
    try:
        nodes = tuple(_endpoint(host, kind) for host in hosts.split(",") if host)
        database = int(options.pop("db", "0") if kind is not StoreKind.STANDALONE else path or "0")
    except ValueError:
        raise InvalidRequest(f"The store's URL {NOT_READABLE}.", field="store") from None
    if database < 0:
        raise InvalidRequest("The number of the store's database is 0 or more.", field="store")
    if not nodes:
        raise InvalidRequest("The store's URL names no host.", field="store")
    if kind is StoreKind.SENTINEL and not path:
        raise InvalidRequest("Name the primary after the sentinels: valkey+sentinel://host1,host2/NAME.", field="store")
    if kind is StoreKind.CLUSTER and database:
        raise InvalidRequest("A cluster has only database 0.", field="store")
    address = Address(
        kind=kind,
        nodes=nodes,
        user=unquote(user) or None,
        password=unquote(password) or None,
        database=database,
        primary_name=path if kind is StoreKind.SENTINEL else "",
        sentinel_password=options.get("sentinel_password"),
    )
    return address, options if family in {"valkeys", "rediss"} else None


def _endpoint(text: str, kind: StoreKind) -> Endpoint:
    default = SENTINEL_PORT if kind is StoreKind.SENTINEL else DEFAULT_PORT
    split = urlsplit(f"//{text}")
    if not split.hostname:
        raise ValueError("there is no host")
    return Endpoint(split.hostname, split.port or default)


def _tls(options: dict[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
        if "cert" in options:
            context.load_cert_chain(options["cert"], options.get("key"))
    except OSError as error:
        raise InvalidRequest(f"The store's certificates could not be read: {error}.", field="store") from error
    return context
