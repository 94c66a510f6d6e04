"""All interpretations of a request's path.

A path is bytes, and servers interpret it differently (`/sale/..;/x` is `/x` to one server and below `/sale` to
another). A path is guarded if any interpretation of it is: case, percent-encoding, doubled slashes and dots make no
difference. A path that has no complete list of interpretations (it is too long, is not UTF-8, is encoded too many
times, has a zero byte, or has too many) is guarded by any queue that is on. Bypass paths are matched literally: a path
not in normal form bypasses nothing.
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
MOST_CHARACTERS: Final = 4096
_DECODINGS: Final = 4
_BEYOND_ASCII: Final = re.compile(rb"%([89A-Fa-f][0-9A-Fa-f])")
_PARAMETERS: Final = re.compile(r";[^/]*")


class PathInterpretations(NamedTuple):
    """The paths that servers may take a target for, the fully decoded one first, and whether the list is complete."""

    paths: tuple[str, ...]
    complete: bool


@lru_cache(maxsize=64)
def interpretations(target: bytes) -> PathInterpretations:
    """List the interpretations of a request's path; cached, since each queue asks."""
    path = _path_of(target)
    if len(path) > LONGEST_PATH:
        return PathInterpretations((), complete=False)
    decoded, complete = _decoded(path)
    found: dict[str, None] = {}
    most = MOST_CHARACTERS
    for raw in reversed(decoded):
        text = raw.decode(errors="replace")
        # Only characters that the path has can be interpreted in two options.
        options = product(
            (True, False) if "\\" in text else (True,),
            (False, True) if ";" in text else (False,),
            (False, True) if "/." in text or "\\." in text else (False,),
        )
        for slashes, parameters, dots in options:
            if most < len(text):
                return PathInterpretations(tuple(found), complete=False)
            most -= len(text)
            found[_normalise(text, slashes=slashes, parameters=parameters, dots=dots)] = None
    # Some servers end a path at a zero byte, and some do not end it at a fragment.
    plain = b"\0" not in decoded[-1] and b"#" not in target.partition(b"?")[0]
    return PathInterpretations(tuple(found), complete and plain and _is_text(decoded))


def literal_path(target: bytes) -> str | None:
    """Give the path as it was sent if it is in normal form, apart from its case; None if it is not.

    Browsers percent-encode non-ASCII characters, so these may be encoded.
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
    plain = "%" not in text and normal_form(trimmed) == _normalise(text, slashes=True, parameters=False, dots=False)
    return trimmed if plain and unicodedata.is_normalized("NFC", trimmed) else None


def _path_of(target: bytes) -> bytes:
    """Strip the query, the fragment, and the scheme and host of an absolute URL from a request's target."""
    path = target.split(b"?", 1)[0].split(b"#", 1)[0]
    if not path.startswith(b"/") and (scheme := path.find(b"://")) > 0:
        start = path.find(b"/", scheme + 3)
        path = path[start:] if start > 0 else b"/"
    return path


def _decoded(path: bytes) -> tuple[list[bytes], bool]:
    """Give a path as it was sent, decoded once, decoded twice, and so on; and whether the last is fully decoded."""
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


def _normalise(path: str, *, slashes: bool, parameters: bool, dots: bool) -> str:
    """Normalise a path: `slashes` makes `\\` a slash, `parameters` keeps `;…`, `dots` keeps dot segments."""
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
