"""Path rules: `*` is anything within one segment, `**` anything at all, and `/a/**` is `/a` and all below it.

A rule is matched without backtracking. The positions of a path that the rule's end can begin at are the bits of one integer,
counted from the path's end; each part of the rule, from its last to its first, moves all of them at once. So the cost is the
number of parts times the length of the path, whatever the path looks like. What depends on the path alone (where its slashes
are, where a text begins) is worked out once for all rules, without a loop in Python over the path.
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
    """Bring text to the form in which paths and rules are compared: without case, and each letter written in one way."""
    return unicodedata.normalize("NFC", text.casefold())


def check_globs(globs: Sequence[str], field: str) -> None:
    """Refuse a list of rules that is too long, or one of which cannot work."""
    if len(globs) > MOST_GLOBS:
        raise InvalidRequest(
            f"A queue has at most {MOST_GLOBS} path rules in {field}; these are {len(globs)}.", field=field
        )
    for glob in globs:
        check_glob(glob, field)


def check_glob(glob: str, field: str = "paths") -> str:
    """Refuse a rule that cannot match any path, or that would be costly to match."""
    if not glob.startswith("/") or len(glob) > LONGEST_GLOB or any(ord(sign) < 32 for sign in glob):
        raise InvalidRequest(f"A path rule begins with / and has at most {LONGEST_GLOB} characters.", field=field)
    if len(_PARTS.findall(glob)) > MOST_STARS:
        raise InvalidRequest(f"A path rule has at most {MOST_STARS} stars.", field=field)
    try:
        unquote(glob, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidRequest("What is percent-encoded in a path rule is UTF-8.", field=field) from error
    return glob


class Subject:
    """A path to match: its bytes, and as bits counted from its end, where its slashes are and where texts begin."""

    def __init__(self, path: str) -> None:
        self.path = path.encode(errors="surrogatepass")
        self._signs: dict[int, int] = {}
        self._texts: dict[bytes, int] = {}

    @cached_property
    def slashes(self) -> int:
        """The bits of all slashes."""
        return self._places_of_sign(0x2F)

    @cached_property
    def within(self) -> int:
        """The bits of all that is no slash."""
        return self.slashes ^ ((1 << len(self.path)) - 1)

    def places(self, text: bytes) -> int:
        """Find all places where a text is, as the bits at which it ends; kept, since many rules have the same texts."""
        found = self._texts.get(text)
        if found is None:
            if len(self._texts) >= _MOST_TEXTS:
                self._texts.clear()
            found = self._texts[text] = self._find(text)
        return found

    def _find(self, text: bytes) -> int:
        path, found = self.path, 0
        last = len(path) - len(text)
        at = path.find(text)
        for _ in range(_FEW):
            if at < 0:
                return found
            found |= 1 << (last - at)
            at = path.find(text, at + 1)
        # It is there often: take the places of each of its signs, moved to where the text would end.
        found, signs = -1, self._signs
        for number, sign in enumerate(reversed(text)):
            places = signs.get(sign)
            if places is None:
                places = signs[sign] = self._places_of_sign(sign)
            found &= places >> number
        return found

    def _places_of_sign(self, sign: int) -> int:
        return int(self.path.translate(b"0" * sign + b"1" + b"0" * (255 - sign)), 2) if self.path else 0


class Glob:
    """One rule, taken apart: the text before its first star, that star, and the parts behind it."""

    def __init__(self, glob: str, *, literal: bool) -> None:
        before, *parts = _PARTS.split(glob.rstrip("/") or "/")
        self._before = _spelt_out(before, literal=literal)
        self._star = parts[0] if parts else None
        # Texts and stars take turns; behind the first star comes a text. They are matched from the last to the first.
        self._behind: list[bytes | str] = [
            part if number % 2 else _spelt_out(part, literal=literal) for number, part in enumerate(parts[1:]) if part
        ][::-1]
        self._longest = max((part for part in self._behind if isinstance(part, bytes)), key=len, default=b"")

    def capture(self, subject: Subject) -> str | None:
        """Give the longest text that the first star can stand for (empty without a star); None if the path is not meant."""
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
        # What lies before the first star was no end of it.
        ends = self._ends(subject) & ((2 << (len(path) - len(before))) - 1)
        if self._star == "*":
            # The star ends before the first slash; what lies behind that was no end of it.
            slash = path.find(b"/", len(before))
            behind = 0 if slash < 0 else len(path) - slash
            ends = ends >> behind << behind
        return _text(path[len(before) : len(path) - _lowest(ends)]) if ends else None

    def _ends(self, subject: Subject) -> int:
        """Find where the parts behind the first star may begin, as bits counted from the end of the path."""
        ends = 1
        for part in self._behind:
            if isinstance(part, bytes):
                ends = (ends & subject.places(part)) << len(part)
            elif part == "*":
                # Adding carries each bit to the end of its run of signs that are no slashes, and marks what lies between.
                ends |= ((ends & subject.within) + subject.within) ^ subject.within
            elif part == "**":
                ends = (2 << len(subject.path)) - (1 << _lowest(ends))
            else:
                ends |= subject.slashes << 1
            if not ends:
                break
        return ends


class PathRules:
    """A list of rules for paths in their normal form; with `literal`, for paths as they were written."""

    def __init__(self, globs: Sequence[str], *, literal: bool = False) -> None:
        self._globs = [_parsed(glob, literal) for glob in globs]

    def __bool__(self) -> bool:
        return bool(self._globs)

    def capture(self, paths: Sequence[str]) -> str | None:
        """Give what the first star of the first matching rule stands for; None if no rule matches any of these paths."""
        if self._globs:
            for path in paths:
                subject = _subject(path)
                for glob in self._globs:
                    if (captured := glob.capture(subject)) is not None:
                        return captured
        return None

    def match(self, paths: Sequence[str]) -> bool:
        """Tell whether one of these paths is meant."""
        return self.capture(paths) is not None


def _spelt_out(text: str, *, literal: bool) -> bytes:
    """Decode what is percent-encoded in a rule, as it is in paths; a rule may be copied from a browser."""
    decoded = unquote(text)
    form = unicodedata.normalize("NFC", decoded) if literal else normal_form(decoded)
    return form.encode(errors="surrogatepass")


def _text(path: bytes) -> str:
    return path.decode(errors="surrogatepass")


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


@lru_cache(maxsize=64)
def _subject(path: str) -> Subject:
    """Prepare a path; kept, since each queue asks."""
    return Subject(path)


@lru_cache(maxsize=1024)
def _parsed(glob: str, literal: bool) -> Glob:
    return Glob(glob, literal=literal)
