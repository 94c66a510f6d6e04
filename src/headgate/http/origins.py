"""Web origins, as in the `Origin` header of browsers: scheme, host and port."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from headgate.kit.settings import SettingInvalid

ANY: Final = "*"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def origin_of(text: str) -> str | None:
    """Normalize an origin as browsers do (lower case, no default port); None if the text is not an origin."""
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
    """Parse the origins of a setting; `*` means all."""
    found = set()
    for text in texts:
        origin = ANY if text == ANY else origin_of(text)
        if origin is None:
            raise SettingInvalid(f"{setting} has {text!r}, which is not an origin such as https://shop.example:8443.")
        found.add(origin)
    return frozenset(found)
