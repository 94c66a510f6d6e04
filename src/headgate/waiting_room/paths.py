"""Which requests a queue guards, and which may always pass.

The two are read differently on purpose. What is guarded is matched generously: case, percent-encoding, doubled slashes and
dots make no difference, since the site behind may see through them too. It may also see through fewer of them than we do
(`/sale/..;/x` is `/x` to one server and below `/sale` to another), so a path is guarded if any way to read it is. What may
bypass is matched literally: a path that is not already in its plain form bypasses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from itertools import product
from typing import Final
from urllib.parse import unquote

from headgate.kit.problems import InvalidRequest

_DECODINGS: Final = 4
Network = IPv4Network | IPv6Network


def plain_path(target: str) -> str:
    """Bring a request's path to the form that rules are matched on: decoded, lower-case, without `//` and dots."""
    return _read(_decoded(target)[-1], slashes=True, parameters=False, dots=False)


@lru_cache(maxsize=64)
def readings(target: str) -> tuple[str, ...]:
    """Give every path that a server may take a request's for, the plain one first; kept, since each queue asks."""
    found: dict[str, None] = {}
    for path in reversed(_decoded(target)):
        # What a path does not have cannot be read in two ways.
        ways = product(
            (True, False) if "\\" in path else (True,),
            (False, True) if ";" in path else (False,),
            (False, True) if "/." in path or "\\." in path else (False,),
        )
        for slashes, parameters, dots in ways:
            found[_read(path, slashes=slashes, parameters=parameters, dots=dots)] = None
    return tuple(found)


def _decoded(target: str) -> list[str]:
    """Give the path of a request as it was sent, decoded once, decoded twice, and so on until nothing is left to decode."""
    path = target.split("?", 1)[0].split("#", 1)[0]
    if not path.startswith("/") and (scheme := path.find("://")) > 0:
        start = path.find("/", scheme + 3)
        path = path[start:] if start > 0 else "/"
    paths = [path]
    while len(paths) <= _DECODINGS and (decoded := unquote(paths[-1], errors="replace")) != paths[-1]:
        paths.append(decoded)
    return paths


def _read(path: str, *, slashes: bool, parameters: bool, dots: bool) -> str:
    """Read a path in one way: whether `\\` is a slash, and whether `;…` and dot segments are kept as they are."""
    if slashes:
        path = path.replace("\\", "/")
    segments: list[str] = []
    for segment in path.casefold().split("/"):
        name = segment if parameters else segment.split(";", 1)[0]
        if name == ".." and not dots:
            segments[-1:] = []
        elif name and (name != "." or dots):
            segments.append(name)
    return "/" + "/".join(segments)


def literal_path(target: str) -> str | None:
    """Give the path as it was sent if it is in plain form but for its case; None if it hides anything."""
    path = target.split("?", 1)[0]
    trimmed = path.rstrip("/") or "/"
    return trimmed if plain_path(path) == trimmed.casefold() else None


class PathRules:
    """A list of globs: `*` is anything within one segment, `**` anything at all; `/a/**` is `/a` and all below it."""

    def __init__(self, globs: Sequence[str], *, literal: bool = False) -> None:
        self._literal = literal
        self._patterns = [_compiled(glob if literal else glob.casefold()) for glob in globs]

    def match(self, target: str) -> bool:
        """Tell whether a request's path is meant."""
        return self.capture(target) is not None

    def capture(self, target: str) -> str | None:
        """Give what the first star of the matching rule stands for (empty without a star); None if no rule matches."""
        literal = literal_path(target) if self._literal else None
        for path in readings(target) if not self._literal else () if literal is None else (literal,):
            for pattern in self._patterns:
                if found := pattern.fullmatch(path):
                    return found[1] or "" if pattern.groups else ""
        return None


def check_glob(glob: str) -> str:
    """Refuse a glob that cannot match any path."""
    if not glob.startswith("/") or len(glob) > 512 or any(ord(sign) < 32 for sign in glob):
        raise InvalidRequest("A path rule begins with / and has at most 512 characters.", field="paths")
    return glob


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


@lru_cache(maxsize=1024)
def _compiled(glob: str) -> re.Pattern[str]:
    parts = re.split(r"(/\*\*$|\*\*|\*)", glob.rstrip("/") or "/")
    signs = {"/**": "(?:/(.*))?", "**": "(.*)", "*": "([^/]*)"}
    return re.compile("".join(signs.get(part, re.escape(part)) for part in parts), re.DOTALL)
