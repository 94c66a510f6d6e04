"""The client address of requests and connections, read from X-Forwarded-For if it was sent by a trusted proxy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network

from headgate.http.networks import Network, within
from headgate.kit.settings import SettingInvalid

MOST_HOPS = 16
Headers = Sequence[tuple[bytes, bytes]]


class AddressCount:
    """Counts the open connections of each client address, except those of trusted proxies."""

    def __init__(self, most: int, trusted_proxies: Sequence[str] = ()) -> None:
        self._most = most
        self._networks = [_network(text) for text in trusted_proxies]
        self._open: dict[str, int] = {}
        self._cached_network = lru_cache(maxsize=4096)(self._network_of)

    def add(self, client: tuple[str, int] | None) -> bool:
        """Count a connection; return False if its address has reached its limit."""
        address = self._cached_network(client[0]) if client is not None else None
        if address is None:
            return True
        count = self._open.get(address, 0)
        if count >= self._most:
            return False
        self._open[address] = count + 1
        return True

    def remove(self, client: tuple[str, int] | None) -> None:
        """Stop counting a connection that was added."""
        address = self._cached_network(client[0]) if client is not None else None
        if address is not None:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]

    def __len__(self) -> int:
        return len(self._open)

    def _network_of(self, address: str) -> str | None:
        return None if within(address, self._networks) else client_network(address)


class ClientAddresses:
    """Finds the client address of a request."""

    def __init__(self, trusted_proxies: Sequence[str]) -> None:
        self._networks = [_network(text) for text in trusted_proxies]
        self._trusted = lru_cache(maxsize=4096)(self._is_trusted)

    def address(self, client: tuple[str, int] | None, headers: Headers, *, vouched: bool = False) -> tuple[str, bool]:
        """Return the client's address, and whether it is a trusted proxy that asks for itself.

        `vouched` says that the request carries a service's token, which is trusted like a proxy.
        """
        peer = client[0] if client else ""
        if not vouched and (not self._networks or not self._trusted(peer)):
            return peer, False
        hops: list[bytes] = []
        for name, value in headers:
            if name == b"x-forwarded-for":
                hops += value.split(b",")
        # Each proxy appends its peer's address, so the last address that is not a trusted proxy is the client. The client
        # itself may have written the addresses before it.
        for hop in reversed(hops[-MOST_HOPS:]):
            address = _without_port(hop.strip().decode("latin-1"))
            if address is None:
                return peer, False
            if not self._trusted(address):
                return address, False
            peer = address
        return peer, not hops

    def _is_trusted(self, text: str) -> bool:
        return within(text, self._networks)


def _network(text: str) -> Network:
    try:
        return ip_network(text, strict=False)
    except ValueError as error:
        raise SettingInvalid(f"gateway.trusted_proxies has {text!r}, which is not an address or a network.") from error


def _without_port(text: str) -> str | None:
    """Remove port and brackets from an address; None if it is not an address."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text))
    except ValueError:
        return None


def client_network(address: str) -> str:
    """Return the key under which an address is counted: an IPv6 address counts as its /64, which one customer controls."""
    return _ipv6_network(address) if ":" in address else address


@lru_cache(maxsize=16_384)
def _ipv6_network(address: str) -> str:
    try:
        parsed = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{parsed.exploded[:19]}::/64"
