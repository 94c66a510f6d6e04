"""Names and ids: validates those from outside, and makes new ones."""

from __future__ import annotations

import os
import re
import unicodedata
from typing import Annotated

from msgspec import Meta
from ulid import ULID

from headgate.kit.problems import InvalidRequest

# A thing's name is a path segment of our URLs, and clients remove the segments . and .. before they send a request.
THING_PATTERN = r"(?!\.\.?\Z)[A-Za-z0-9_.:-]{1,128}"
CONFIG_KEY_PATTERN = r"[A-Za-z0-9_.:/-]{1,128}"
MEMBER_PATTERN = r"[A-Za-z0-9_-]{1,64}"

# The same rules for fields of requests. `$` would also match before a newline at the end.
ThingName = Annotated[str, Meta(pattern=rf"^{THING_PATTERN}\Z")]
MemberId = Annotated[str, Meta(pattern=rf"^{MEMBER_PATTERN}\Z")]

_THING = re.compile(THING_PATTERN, re.ASCII)
_CONFIG_KEY = re.compile(CONFIG_KEY_PATTERN, re.ASCII)
_MEMBER = re.compile(MEMBER_PATTERN, re.ASCII)
DRAWN_TOGETHER = 128
# Random digits in stock, since each os.urandom is a system call. A forked child must not use its parent's.
_random: list[str] = []
os.register_at_fork(after_in_child=_random.clear)
_UUID_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_INVISIBLE = frozenset({"Cc", "Cs", "Co", "Cn", "Zl", "Zp"})
_BLANK = frozenset({"Zs", "Cf", "Mn", "Me"})
_FILLERS = frozenset("\u115f\u1160\u2800\u3164\uffa0")  # letters by category, but invisible
_DIRECTION_MARKS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def thing_name(value: str, field: str = "name") -> str:
    """Check the name of a queue, type, group, namespace, upstream or lock."""
    return _matched(_THING, value, field, '1 to 128 of A-Z a-z 0-9 _ . : - (but not "." or "..")')


def config_key(value: str, field: str = "key") -> str:
    """Check a config key, which may also contain slashes."""
    return _matched(_CONFIG_KEY, value, field, "1 to 128 of A-Z a-z 0-9 _ . : / -")


def member_id(value: str, field: str = "id") -> str:
    """Check the id of a user, instance, session or ticket."""
    return _matched(_MEMBER, value, field, "1 to 64 of A-Z a-z 0-9 _ -")


def sent_secret(value: str, what: str) -> str:
    """Give a token or ticket as a header carries it, without the newline that ends a file; no message repeats it."""
    value = value.strip()
    if not (value.isascii() and value.isprintable()):
        raise InvalidRequest(
            f"{what} has a character that a header cannot carry: a line break, a control character or one beyond ASCII.",
            field="token",
        )
    return value


def display_text(value: str, field: str = "text", most: int = 64) -> str:
    """Check a text that people read: bounded, to be seen, without control characters or marks that turn its direction."""
    if not value or len(value) > most:
        raise InvalidRequest(f"{field} must have 1 to {most} characters.", field=field)
    if value.isascii() and value.isprintable() and not value.isspace():
        return value  # the common case, at a tenth of the cost
    categories = [unicodedata.category(sign) for sign in value]
    if not _INVISIBLE.isdisjoint(categories) or not _DIRECTION_MARKS.isdisjoint(value):
        raise InvalidRequest(f"{field} must not contain control characters.", field=field)
    if all(kind in _BLANK or sign in _FILLERS for kind, sign in zip(categories, value, strict=True)):
        raise InvalidRequest(f"{field} must contain something that can be seen.", field=field)
    return value


def revision_number(value: str, field: str = "revision") -> int:
    """Parse a revision from a query or a header."""
    if not (value.isascii() and value.isdigit() and len(value) <= 16):
        raise InvalidRequest(f"{field} must be a whole number.", field=field)
    return int(value)


def new_ulid() -> str:
    """Make an id that sorts by the time it was made."""
    return str(ULID())


def new_uuid() -> str:
    """Make an id that nobody can guess."""
    # Like uuid.uuid4 at a fraction of the cost: every entry of the waiting room makes one.
    try:
        text = _random.pop()  # without a check first, because another thread may take the last one
    except IndexError:
        text, *more = _drawn()
        _random.extend(more)
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-{_UUID_VARIANT[text[16]]}{text[17:20]}-{text[20:]}"


def _drawn() -> list[str]:
    drawn = os.urandom(16 * DRAWN_TOGETHER).hex()
    return [drawn[at : at + 32] for at in range(0, len(drawn), 32)]


def _matched(pattern: re.Pattern[str], value: str, field: str, rule: str) -> str:
    if not pattern.fullmatch(value):
        raise InvalidRequest(f"{field} must be {rule}.", field=field)
    return value
