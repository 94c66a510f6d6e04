"""Finds the route of a request: a table for fixed paths, a tree of segments for paths with parameters.

Segments are compared as the client sent them and only parameters are decoded. So an encoded slash stays inside its parameter,
and each route is reached by one spelling of its path.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar
from urllib.parse import unquote_to_bytes

from headgate.kit.problems import InvalidRequest

R = TypeVar("R")
_REMAINDER = ":path"


class Resource(Generic[R]):
    """The routes of one path, by method."""

    __slots__ = ("allow", "names", "routes", "template")

    def __init__(self, template: str, names: tuple[str, ...]) -> None:
        self.template = template
        self.names = names
        self.routes: dict[str, R] = {}
        self.allow = ""

    def add(self, method: str, route: R) -> None:
        """Add the route of a method; GET also handles HEAD."""
        if method in self.routes:
            raise ValueError(f"two operations are {method} {self.template}")
        self.routes[method] = route
        if method == "GET":
            self.routes.setdefault("HEAD", route)
        self.allow = ", ".join(sorted({*self.routes, "OPTIONS"}))


class _Node(Generic[R]):
    __slots__ = ("fixed", "parameter", "remainder", "resource")

    def __init__(self) -> None:
        self.fixed: dict[bytes, _Node[R]] = {}
        self.parameter: _Node[R] | None = None
        self.resource: Resource[R] | None = None
        self.remainder: Resource[R] | None = None


class Router(Generic[R]):
    """All resources, by path."""

    def __init__(self, routes: Iterable[tuple[str, str, R]]) -> None:
        self._resources: dict[str, Resource[R]] = {}
        self._fixed: dict[bytes, Resource[R]] = {}
        self._root: _Node[R] = _Node()
        for method, path, route in routes:
            self._resource(path).add(method, route)

    def find(self, path: bytes) -> tuple[Resource[R], dict[str, str]] | None:
        """Return the resource at a path as it was sent, and its decoded parameters."""
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed, {}
        segments = path.split(b"/")[1:]
        found = self._walk(self._root, segments, 0)
        if found is None:
            return None
        resource, values = found
        return resource, {name: _decoded(name, value) for name, value in zip(resource.names, values, strict=True)}

    def _walk(self, node: _Node[R], segments: list[bytes], index: int) -> tuple[Resource[R], list[bytes]] | None:
        """Match fixed segments first, then parameters, then a `:path` parameter; backtrack if that does not match."""
        if index == len(segments):
            return (node.resource, []) if node.resource is not None else None
        segment = segments[index]
        if segment in node.fixed:
            found = self._walk(node.fixed[segment], segments, index + 1)
            if found is not None:
                return found
        if node.parameter is not None and segment:
            found = self._walk(node.parameter, segments, index + 1)
            if found is not None:
                return found[0], [segment, *found[1]]
        if node.remainder is not None and segment:
            return node.remainder, [b"/".join(segments[index:])]
        return None

    def _resource(self, path: str) -> Resource[R]:
        if not path.startswith("/"):
            raise ValueError(f"a path begins with a slash: {path}")
        if path in self._resources:
            return self._resources[path]
        segments = path.split("/")[1:]
        names = tuple(segment[1:-1].removesuffix(_REMAINDER) for segment in segments if segment.startswith("{"))
        resource = self._resources[path] = Resource(path, names)
        if not names:
            self._fixed[path.encode()] = resource
        node = self._root
        for index, segment in enumerate(segments):
            if segment.endswith(_REMAINDER + "}"):
                if index + 1 != len(segments):
                    raise ValueError(f"only the last parameter may take the rest of the path: {path}")
                node.remainder = _unique(node.remainder, resource)
                return resource
            if segment.startswith("{"):
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.fixed.setdefault(segment.encode(), _Node())
        node.resource = _unique(node.resource, resource)
        return resource


def _unique(existing: Resource[R] | None, resource: Resource[R]) -> Resource[R]:
    if existing is not None:
        raise ValueError(f"{existing.template} and {resource.template} are the same path; name their parameters alike")
    return resource


def _decoded(name: str, value: bytes) -> str:
    try:
        return (unquote_to_bytes(value) if b"%" in value else value).decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name} in the path is not UTF-8.", field=name) from error
