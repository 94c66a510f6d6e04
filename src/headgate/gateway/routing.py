"""Finding the route of a request: a table for fixed paths, a tree of segments for the others.

Segments are compared as the client sent them and only parameters are decoded, so an encoded slash stays inside its
parameter and no second spelling of a path reaches a route.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar
from urllib.parse import unquote_to_bytes

from headgate.kit.problems import InvalidRequest

R = TypeVar("R")
_REST = ":path"


class Resource(Generic[R]):
    """What there is at one path: a route for each method."""

    __slots__ = ("allow", "names", "routes", "template")

    def __init__(self, template: str, names: tuple[str, ...]) -> None:
        self.template = template
        self.names = names
        self.routes: dict[str, R] = {}
        self.allow = ""

    def add(self, method: str, route: R) -> None:
        """Add the route of a method; GET answers HEAD as well."""
        if method in self.routes:
            raise ValueError(f"two operations are {method} {self.template}")
        self.routes[method] = route
        if method == "GET":
            self.routes.setdefault("HEAD", route)
        self.allow = ", ".join(sorted({*self.routes, "OPTIONS"}))


class _Node(Generic[R]):
    __slots__ = ("any", "fixed", "here", "rest")

    def __init__(self) -> None:
        self.fixed: dict[bytes, _Node[R]] = {}
        self.any: _Node[R] | None = None
        self.here: Resource[R] | None = None
        self.rest: Resource[R] | None = None


class Router(Generic[R]):
    """All resources, by path."""

    def __init__(self, routes: Iterable[tuple[str, str, R]]) -> None:
        self._resources: dict[str, Resource[R]] = {}
        self._fixed: dict[bytes, Resource[R]] = {}
        self._root: _Node[R] = _Node()
        for method, path, route in routes:
            self._resource(path).add(method, route)

    def find(self, path: bytes) -> tuple[Resource[R], dict[str, str]] | None:
        """Give the resource at a path as it was sent, and its decoded parameters."""
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
        """Prefer fixed segments over parameters, and parameters over the rest; step back where that ends nowhere."""
        if index == len(segments):
            return (node.here, []) if node.here is not None else None
        segment = segments[index]
        if segment in node.fixed:
            found = self._walk(node.fixed[segment], segments, index + 1)
            if found is not None:
                return found
        if node.any is not None and segment:
            found = self._walk(node.any, segments, index + 1)
            if found is not None:
                return found[0], [segment, *found[1]]
        if node.rest is not None and segment:
            return node.rest, [b"/".join(segments[index:])]
        return None

    def _resource(self, path: str) -> Resource[R]:
        if not path.startswith("/"):
            raise ValueError(f"a path begins with a slash: {path}")
        if path in self._resources:
            return self._resources[path]
        segments = path.split("/")[1:]
        names = tuple(segment[1:-1].removesuffix(_REST) for segment in segments if segment.startswith("{"))
        resource = self._resources[path] = Resource(path, names)
        if not names:
            self._fixed[path.encode()] = resource
        node = self._root
        for index, segment in enumerate(segments):
            if segment.endswith(_REST + "}"):
                if index + 1 != len(segments):
                    raise ValueError(f"only the last parameter may take the rest of the path: {path}")
                node.rest = _placed(node.rest, resource)
                return resource
            if segment.startswith("{"):
                node.any = node.any or _Node()
                node = node.any
            else:
                node = node.fixed.setdefault(segment.encode(), _Node())
        node.here = _placed(node.here, resource)
        return resource


def _placed(there: Resource[R] | None, resource: Resource[R]) -> Resource[R]:
    if there is not None:
        raise ValueError(f"{there.template} and {resource.template} are the same path; name their parameters alike")
    return resource


def _decoded(name: str, value: bytes) -> str:
    try:
        return (unquote_to_bytes(value) if b"%" in value else value).decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name} in the path is not UTF-8.", field=name) from error
