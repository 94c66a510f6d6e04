"""Files of `web/`, read at the start and served from memory; a request never reaches the file system."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from headgate.http.routes import Access, Answer, Call, Operation
from headgate.kit.problems import NotFound

CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
# Allows only our own files: no inline scripts, no other sites, no framing.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


class PageFile:
    """One file with its headers."""

    def __init__(self, path: Path) -> None:
        self.body = path.read_bytes()
        self.content_type = CONTENT_TYPES[path.suffix]
        self.etag = f'"{sha256(self.body).hexdigest()[:16]}"'
        self._headers = {"cache-control": "no-cache", "etag": self.etag}
        if path.suffix == ".html":
            self._headers["content-security-policy"] = POLICY

    def answer(self, call: Call) -> Answer:
        """Return the file, or 304 if the client has it already."""
        if call.header("if-none-match") == self.etag:
            return Answer(status=304, headers=self._headers)
        return Answer(self.body, headers=self._headers, content_type=self.content_type)


def page_operation(path: str, page: PageFile, name: str) -> Operation:
    """Serve one page at a fixed address."""

    async def show(call: Call) -> Answer:
        return page.answer(call)

    return Operation("GET", path, show, name, access=Access.PUBLIC, tag="pages", name=name, documented=False)


def asset_operation(path: str, directory: Path, name: str) -> Operation:
    """Serve all files of a directory below a path that ends in `{file:path}`."""
    pages = {file.relative_to(directory).as_posix(): PageFile(file) for file in _files(directory)}

    async def show(call: Call) -> Answer:
        page = pages.get(call.path["file"])
        if page is None:
            raise NotFound
        return page.answer(call)

    return Operation("GET", path, show, name, access=Access.PUBLIC, tag="pages", name=name, documented=False)


def _files(directory: Path) -> Iterator[Path]:
    return (file for file in sorted(directory.rglob("*")) if file.is_file() and file.suffix in CONTENT_TYPES)
