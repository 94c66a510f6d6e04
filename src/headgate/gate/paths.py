"""The ways in which a request's path may be read.

A path is bytes. What is guarded is matched generously: case, percent-encoding, doubled slashes and dots make no difference,
since the site behind may see through them too. It may also see through fewer of them than we do (`/sale/..;/x` is `/x` to one
server and below `/sale` to another), so a path is guarded if any way to read it is. A path that cannot be read (it is too
long, is not UTF-8, is encoded too many times over, has a zero byte, or is long and can be read in too many ways) is guarded by
any queue that is on. What may bypass is matched literally: a path that is not already in its plain form bypasses nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from headgate.http.path_rules import normal_form

LONGEST_PATH: Final = 2048
MOST_READ: Final = 4096
_DECODINGS: Final = 4
_BEYOND_ASCII: Final = re.compile(rb"%([89A-Fa-f][0-9A-Fa-f])")
_PARAMETERS: Final = re.compile(r";[^/]*")


class Readings(NamedTuple):
    """The paths that servers may take a request's for, the plain one first, and whether these can be all of them."""

    paths: tuple[str, ...]
    complete: bool


@lru_cache(maxsize=64)
def readings(target: bytes) -> Readings:
    """Read a request's path in every way that a server may; kept, since each queue asks."""
    path = _path_of(target)
    if len(path) > LONGEST_PATH:
        return Readings((), complete=False)
    decoded, complete = _decoded(path)
    found: dict[str, None] = {}
    most = MOST_READ
    for raw in reversed(decoded):
        text = raw.decode(errors="replace")
        # What a path does not have cannot be read in two ways.
        ways = product(
            (True, False) if "\\" in text else (True,),
            (False, True) if ";" in text else (False,),
            (False, True) if "/." in text or "\\." in text else (False,),
        )
        for slashes, parameters, dots in ways:
            if most < len(text):
                return Readings(tuple(found), complete=False)
            most -= len(text)
            found[_read(text, slashes=slashes, parameters=parameters, dots=dots)] = None
    # Some servers end a path at a zero byte, and some do not end it at a fragment.
    plain = b"\0" not in decoded[-1] and b"#" not in target.partition(b"?")[0]
    return Readings(tuple(found), complete and plain and _is_text(decoded))


def literal_path(target: bytes) -> str | None:
    """Give the path as it was sent if it is in plain form but for its case; None if it hides anything.

    Browsers percent-encode what is beyond ASCII, so that alone hides nothing.
    """
    path = _path_of(target)
    if len(path) > LONGEST_PATH:
        return None
    path = _BEYOND_ASCII.sub(lambda sign: bytes((int(sign[1], 16),)), path)
    try:
        text = path.decode()
    except UnicodeDecodeError:
        return None
    trimmed = text.rstrip("/") or "/"
    plain = "%" not in text and normal_form(trimmed) == _read(text, slashes=True, parameters=False, dots=False)
    return trimmed if plain and unicodedata.is_normalized("NFC", trimmed) else None


def _path_of(target: bytes) -> bytes:
    """Take the query, the fragment, and the scheme and host of an absolute address off a request's target."""
    path = target.split(b"?", 1)[0].split(b"#", 1)[0]
    if not path.startswith(b"/") and (scheme := path.find(b"://")) > 0:
        start = path.find(b"/", scheme + 3)
        path = path[start:] if start > 0 else b"/"
    return path


def _decoded(path: bytes) -> tuple[list[bytes], bool]:
    """Give a path as it was sent, decoded once, decoded twice, and so on; and whether nothing is left to decode."""
    paths = [path]
    while (decoded := unquote_to_bytes(paths[-1])) != paths[-1]:
        if len(paths) > _DECODINGS:
            return paths, False
        paths.append(decoded)
    return paths, True


def _is_text(paths: Sequence[bytes]) -> bool:
    try:
        for path in paths:
            path.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read(path: str, *, slashes: bool, parameters: bool, dots: bool) -> str:
    """Read a path in one way: whether `\\` is a slash, and whether `;…` and dot segments are kept as they are."""
    if slashes:
        path = path.replace("\\", "/")
    if not parameters and ";" in path:
        path = _PARAMETERS.sub("", path)
    segments = [segment for segment in path.split("/") if segment and (dots or segment != ".")]
    if not dots and ".." in path:
        segments = _without_parents(segments)
    return normal_form("/" + "/".join(segments))


def _without_parents(segments: list[str]) -> list[str]:
    kept: list[str] = []
    for segment in segments:
        if segment == "..":
            kept[-1:] = []
        else:
            kept.append(segment)
    return kept
