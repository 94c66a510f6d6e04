"""Origins of pages, as the browser's `Origin` header names them: scheme, host and port, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from headgate.kit.settings import SettingInvalid

ANY: Final = "*"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def origin_of(text: str) -> str | None:
    """Write an origin as browsers do (lower case, without a default port); None if the text is no origin."""
    if not text.isprintable() or " " in text:
        return None
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
        if host and not host.isascii():
            host = host.encode("idna").decode()
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not host or parts.username is not None or parts.netloc.endswith(":"):
        return None
    if parts.path not in ("", "/") or parts.query or parts.fragment or text.endswith(("?", "#")):
        return None
    shown = f"[{host}]" if ":" in host else host
    return (
        f"{parts.scheme}://{shown}"
        if port in (None, _DEFAULT_PORTS[parts.scheme])
        else f"{parts.scheme}://{shown}:{port}"
    )


def read_origins(texts: Iterable[str], setting: str) -> frozenset[str]:
    """Read the origins of a setting; `*` stands for all of them."""
    found = set()
    for text in texts:
        origin = ANY if text == ANY else origin_of(text)
        if origin is None:
            raise SettingInvalid(f"{setting} has {text!r}, which is not an origin such as https://shop.example:8443.")
        found.add(origin)
    return frozenset(found)
