"""Domain types of config: values and versions, rules for keys, and parsers of contents."""

from __future__ import annotations

import json
import re
import tomllib
from enum import StrEnum
from functools import partial
from typing import Any, Final

import msgspec
import yaml  # type: ignore[import-untyped]

from headgate.config.problems import ContentInvalid
from headgate.kit.ids import config_key
from headgate.kit.problems import InvalidRequest
from headgate.kit.wire import iso_time

# Verbs after a key in our routes.
VERBS: Final = frozenset({"watch", "history", "rollback"})
# New keys may not begin or end with these; older keys that do can be read and deleted.
RESERVED: Final = VERBS | {"gray", "schemas"}
MASK: Final = "••••••"


class ContentType(StrEnum):
    """The format of a content."""

    TEXT = "text"
    JSON = "json"
    TOML = "toml"
    YAML = "yaml"
    PROPERTIES = "properties"


class Value(msgspec.Struct, frozen=True, rename="camel"):
    """One version of a key; a deletion has kind `removed` and no content."""

    key: str
    version: int
    content: str = ""
    content_type: ContentType = ContentType.TEXT
    updated_at: str = ""
    updated_by: str = ""
    reason: str = ""
    secret: bool = False
    kind: str = "put"
    diff: str | None = None

    def masked(self) -> Value:
        """Give a copy without the content if it is secret."""
        if not self.secret:
            return self
        return msgspec.structs.replace(self, content=MASK if self.kind == "put" else "", diff=None)

    def parsed(self) -> Any:
        """Parse the content: an object, a list or a text."""
        return parse(self.content, self.content_type)


class ConfigEntry(msgspec.Struct, frozen=True):
    """A version as it is stored."""

    key: str
    kind: str
    version: int
    at: int
    author: str
    reason: str
    content: str = ""
    type: ContentType = ContentType.TEXT
    secret: bool = False

    def value(self) -> Value:
        """Convert it to a `Value`."""
        at = iso_time(self.at)
        return Value(
            self.key, self.version, self.content, self.type, at, self.author, self.reason, self.secret, self.kind
        )


ANY_VERSION: Final = -1


class Draft(msgspec.Struct, frozen=True):
    """A new version; `expected` is the version it replaces (0: none may exist, `ANY_VERSION`: one must exist).

    Without content the key is deleted. `content_type` and `secret` None keep what the key has (text and not secret, if
    it is new).
    """

    key: str
    content: str | None
    content_type: ContentType | None = None
    expected: int | None = None
    secret: bool | None = None


class Published(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to a publish."""

    version: int
    revision: int


class Update(msgspec.Struct, frozen=True):
    """One publish as a watcher sees it: all its keys, at one revision."""

    revision: int
    values: list[Value]


def check_key(key: str) -> str:
    """Validate a key to read or delete: its last part may not be a verb of our routes."""
    config_key(key, "key")
    parts = key.split("/")
    if "" in parts or "." in parts or ".." in parts:
        raise InvalidRequest(f"The key {key} has an empty part, or one of dots alone.", field="key")
    if parts[-1] in VERBS:
        raise _reserved(key, parts[-1])
    return key


def check_new_key(key: str) -> str:
    """Validate a key to write: neither its first nor its last part may be reserved."""
    check_key(key)
    first, *_, last = (*key.split("/"), key.rpartition("/")[2])
    for part in (first, last):
        if part in RESERVED:
            raise _reserved(key, part)
    return key


def _reserved(key: str, part: str) -> InvalidRequest:
    return InvalidRequest(
        f"The key {key} begins or ends with {part}; watch, history, rollback, gray and schemas are reserved there.",
        field="key",
    )


def parse(content: str, type_: ContentType) -> Any:
    """Parse a content; raises ContentInvalid with the position of the first error."""
    try:
        match type_:
            case ContentType.JSON:
                return json.loads(content, parse_constant=partial(_refuse_constant, content))
            case ContentType.TOML:
                return tomllib.loads(content)
            case ContentType.YAML:
                return yaml.safe_load(content)
            case ContentType.PROPERTIES:
                return _parse_properties(content)
            case ContentType.TEXT:
                return content
    except json.JSONDecodeError as error:
        raise _invalid(error.msg, error.lineno, error.colno) from error
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        end = content.count("\n") + 1, len(content.rpartition("\n")[2]) + 1
        line, column = (int(found[1]), int(found[2])) if found else end
        raise _invalid(str(error).partition(" (at")[0], line, column) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        words = getattr(error, "problem", None) or "not readable"
        raise _invalid(str(words), mark.line + 1 if mark else 1, mark.column + 1 if mark else 1) from error
    except (RecursionError, ValueError) as error:
        raise _invalid("it is nested too deeply or holds what cannot be read", 1, 1) from error


def _refuse_constant(content: str, name: str) -> None:
    """Refuse NaN and Infinity, which Python's parser accepts, with their position."""
    at = next((found.start() for found in _STRING_OR_CONSTANT.finditer(content) if found[0][0] != '"'), 0)
    raise json.JSONDecodeError(f"{name} is not JSON", content, at)


def _invalid(words: str, line: int, column: int) -> ContentInvalid:
    return ContentInvalid(f"Line {line}, column {column}: {words}.", line=line, column=column)


_STRING_OR_CONSTANT = re.compile(r'"(?:[^"\\]|\\.)*"|NaN|-?Infinity', re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SPLIT = re.compile(r"(?<!\\)(?:\\\\)*(\s*[=:]\s*|\s+)")
_PLAIN = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def _parse_properties(content: str) -> dict[str, str]:
    """Parse Java properties: key=value, comments, continued lines and escapes."""
    found: dict[str, str] = {}
    lines = content.splitlines()
    number = 0
    while number < len(lines):
        first, line = number, lines[number].lstrip()
        number += 1
        if not line or line[0] in "#!":
            continue
        while len(line) - len(line.rstrip("\\")) & 1 and number < len(lines):
            line = line[:-1] + lines[number].lstrip()
            number += 1
        broken = re.search(r"\\u(?![0-9a-fA-F]{4})", line)
        if broken:
            raise _invalid("\\u needs four hexadecimal digits", first + 1, broken.start() + 1)
        parts = _SPLIT.split(line, maxsplit=1)
        key, value = (parts[0], parts[2]) if len(parts) == 3 else (line, "")
        if not key:
            raise _invalid("there is no key before the value", first + 1, 1)
        found[_unescaped(key)] = _unescaped(value)
    return found


def _unescaped(text: str) -> str:
    def plain(found: re.Match[str]) -> str:
        word = found[1]
        return chr(int(word[1:], 16)) if word[0] == "u" and len(word) == 5 else _PLAIN.get(word, word)

    return _ESCAPE.sub(plain, text)
