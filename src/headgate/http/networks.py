"""Addresses and networks of clients and proxies, read from what operators write."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from headgate.kit.problems import InvalidRequest

Network = IPv4Network | IPv6Network


def read_networks(texts: Sequence[str]) -> list[Network]:
    """Read addresses and networks; a host's bits must not be set."""
    try:
        return [ip_network(text) for text in texts]
    except ValueError as error:
        raise InvalidRequest(f"{error}.", field="addresses") from error


def within(client: str, networks: Sequence[Network]) -> bool:
    """Tell whether a client's address is in one of the networks; an IPv4 address in IPv6 clothing is an IPv4 address."""
    try:
        address: IPv4Address | IPv6Address = ip_address(client)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)
