"""Requests as bytes, for what no client library would send."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

Header = tuple[str, str]
BROWSER: Header = ("Accept", "text/html")


class Reply:
    """The first answer that came back, read as it stands."""

    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ")[1])
        self.headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])]

    def all(self, name: str) -> list[str]:
        """Give every value of a header."""
        return [value for key, value in self.headers if key == name]


def send(
    url: str,
    target: str | bytes,
    headers: Iterable[Header] = (BROWSER,),
    *,
    method: str = "GET",
    version: str = "1.1",
    body: bytes = b"",
) -> Reply:
    """Send one request with no tidying up, and read what comes until the connection closes."""
    where = urlsplit(url)
    host = [("Host", where.netloc)] if version == "1.1" else []
    if isinstance(target, bytes):
        target = target.decode("latin-1")
    lines = [f"{method} {target} HTTP/{version}", *(f"{name}: {value}" for name, value in (*host, *headers))]
    if not any(name == "Connection" for name, _ in headers):
        lines.append("Connection: close")
    with socket.create_connection((where.hostname or "", where.port or 0), timeout=20) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)
        raw = b""
        while chunk := connection.recv(65536):
            raw += chunk
            head, _, rest = raw.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            if rest and length and len(rest) >= int(length[1]):
                break
    return Reply(raw)
