"""Path rules: `*` matches within one segment, `**` matches anything, and `/a/**` matches `/a` and everything below it.

Matching does not backtrack. The positions at which the rest of a rule can start are the bits of one integer, counted from the
end of the path; each part of the rule, from the last to the first, shifts all of them at once. So the cost is the number of
parts times the length of the path, for every path. The bits that depend only on the path (slashes, occurrences of a text) are
computed once for all rules, without a Python loop over the path.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Final
from urllib.parse import unquote

from headgate.kit.problems import InvalidRequest

LONGEST_GLOB: Final = 512
MOST_STARS: Final = 8
MOST_GLOBS: Final = 100
_FEW: Final = 16
_MOST_TEXTS: Final = 256
_BELOW: Final = "/**"
_PARTS: Final = re.compile(r"(/\*\*\Z|\*\*|\*)")


def normal_form(text: str) -> str:
    """Normalize text for the comparison of paths and rules: case-folded, in Unicode form NFC."""
    return unicodedata.normalize("NFC", text.casefold())


def check_globs(globs: Sequence[str], field: str) -> None:
    """Raise InvalidRequest if there are too many rules or one of them is not valid."""
    if len(globs) > MOST_GLOBS:
        raise InvalidRequest(
            f"A queue has at most {MOST_GLOBS} path rules in {field}; these are {len(globs)}.", field=field
        )
    for glob in globs:
        check_glob(glob, field)


def check_glob(glob: str, field: str = "paths") -> str:
    """Raise InvalidRequest if a rule cannot match any path or is too long or complex; return it otherwise."""
    if not glob.startswith("/") or len(glob) > LONGEST_GLOB or any(ord(character) < 32 for character in glob):
        raise InvalidRequest(f"A path rule begins with / and has at most {LONGEST_GLOB} characters.", field=field)
    if len(_PARTS.findall(glob)) > MOST_STARS:
        raise InvalidRequest(f"A path rule has at most {MOST_STARS} stars.", field=field)
    try:
        unquote(glob, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidRequest("What is percent-encoded in a path rule is UTF-8.", field=field) from error
    return glob


class Subject:
    """A path to match: its bytes, and the positions of slashes and texts as bits counted from its end."""

    def __init__(self, path: str) -> None:
        self.path = path.encode(errors="surrogatepass")
        self._bytes: dict[int, int] = {}
        self._texts: dict[bytes, int] = {}

    @cached_property
    def slashes(self) -> int:
        """The bits of all slashes."""
        return self._positions_of_byte(0x2F)

    @cached_property
    def non_slashes(self) -> int:
        """The bits of all bytes other than slashes."""
        return self.slashes ^ ((1 << len(self.path)) - 1)

    def positions(self, text: bytes) -> int:
        """Find all occurrences of a text, as the bits at which they end; cached, because many rules share texts."""
        found = self._texts.get(text)
        if found is None:
            if len(self._texts) >= _MOST_TEXTS:
                self._texts.clear()
            found = self._texts[text] = self._find(text)
        return found

    def _find(self, text: bytes) -> int:
        path, found = self.path, 0
        last = len(path) - len(text)
        start = path.find(text)
        for _ in range(_FEW):
            if start < 0:
                return found
            found |= 1 << (last - start)
            start = path.find(text, start + 1)
        # With many occurrences, intersect the positions of each of its bytes, shifted to the end of the text.
        found, known = -1, self._bytes
        for number, byte in enumerate(reversed(text)):
            positions = known.get(byte)
            if positions is None:
                positions = known[byte] = self._positions_of_byte(byte)
            found &= positions >> number
        return found

    def _positions_of_byte(self, byte: int) -> int:
        return int(self.path.translate(b"0" * byte + b"1" + b"0" * (255 - byte)), 2) if self.path else 0


class Glob:
    """One parsed rule: the text before its first star, that star, and the parts after it."""

    def __init__(self, glob: str, *, literal: bool) -> None:
        before, *parts = _PARTS.split(glob.rstrip("/") or "/")
        self._before = _decoded(before, literal=literal)
        self._star = parts[0] if parts else None
        # Texts and stars alternate, beginning with a text. They are matched from the last to the first.
        self._after: list[bytes | str] = [
            part if number % 2 else _decoded(part, literal=literal) for number, part in enumerate(parts[1:]) if part
        ][::-1]
        self._longest = max((part for part in self._after if isinstance(part, bytes)), key=len, default=b"")

    def capture(self, subject: Subject) -> str | None:
        """Return the longest text that the first star can match (empty without a star); None if the path does not match."""
        path, before = subject.path, self._before
        if not path.startswith(before):
            return None
        if self._star is None:
            return None if len(path) > len(before) else ""
        if self._star == _BELOW:
            rest = path[len(before) :]
            return _text(rest[1:]) if not rest or rest[0] == 0x2F else None
        if self._longest not in path:
            return None
        # The first star cannot end before its own start.
        ends = self._ends(subject) & ((2 << (len(path) - len(before))) - 1)
        if self._star == "*":
            # It cannot end after the next slash either.
            slash = path.find(b"/", len(before))
            excluded = 0 if slash < 0 else len(path) - slash
            ends = ends >> excluded << excluded
        return _text(path[len(before) : len(path) - _lowest(ends)]) if ends else None

    def _ends(self, subject: Subject) -> int:
        """Find where the parts after the first star can start, as bits counted from the end of the path."""
        ends = 1
        for part in self._after:
            if isinstance(part, bytes):
                ends = (ends & subject.positions(part)) << len(part)
            elif part == "*":
                # The addition carries each bit to the end of its run of non-slashes and marks all positions between.
                ends |= ((ends & subject.non_slashes) + subject.non_slashes) ^ subject.non_slashes
            elif part == "**":
                ends = (2 << len(subject.path)) - (1 << _lowest(ends))
            else:
                ends |= subject.slashes << 1
            if not ends:
                break
        return ends


class PathRules:
    """A list of rules for normalized paths; with `literal`, for paths with their case."""

    def __init__(self, globs: Sequence[str], *, literal: bool = False) -> None:
        self._globs = [_parsed(glob, literal) for glob in globs]

    def __bool__(self) -> bool:
        return bool(self._globs)

    def capture(self, paths: Sequence[str]) -> str | None:
        """Return the text that the first star of the first matching rule matches; None if no rule matches any path."""
        if self._globs:
            for path in paths:
                subject = _subject(path)
                for glob in self._globs:
                    if (captured := glob.capture(subject)) is not None:
                        return captured
        return None

    def match(self, paths: Sequence[str]) -> bool:
        """Tell whether a rule matches one of these paths."""
        return self.capture(paths) is not None


def _decoded(text: str, *, literal: bool) -> bytes:
    """Percent-decode a rule, which may be copied from a browser, and normalize it."""
    decoded = unquote(text)
    form = unicodedata.normalize("NFC", decoded) if literal else normal_form(decoded)
    return form.encode(errors="surrogatepass")


def _text(path: bytes) -> str:
    return path.decode(errors="surrogatepass")


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


@lru_cache(maxsize=64)
def _subject(path: str) -> Subject:
    """Prepare a path; cached, because it is matched against the rules of each queue."""
    return Subject(path)


@lru_cache(maxsize=1024)
def _parsed(glob: str, literal: bool) -> Glob:
    return Glob(glob, literal=literal)
