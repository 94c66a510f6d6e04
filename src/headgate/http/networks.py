"""IP addresses and networks in settings and policies."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from headgate.kit.problems import InvalidRequest

Network = IPv4Network | IPv6Network


def read_networks(texts: Sequence[str]) -> list[Network]:
    """Parse addresses and networks; a network must have no host bits set."""
    try:
        return [ip_network(text) for text in texts]
    except ValueError as error:
        raise InvalidRequest(f"{error}.", field="addresses") from error


def within(client: str, networks: Sequence[Network]) -> bool:
    """Tell whether an address is in one of the networks; an IPv4-mapped IPv6 address counts as IPv4."""
    try:
        address: IPv4Address | IPv6Address = ip_address(client)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)
