"""Lua scripts as typed operations: one file each, whose header says which keys and arguments it takes.

The header is not a comment but the contract: the store builds the keys from it, counts the arguments against it, knows
from it whether a call may be repeated, and refuses to load a file that does not keep to it.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from headgate.store.keys import Thing, part_of_key

SHARED: Final = Path(__file__).parent / "include"
_NUMBERED = re.compile(r"(?<![\w.])(\d+)(\.\.)?\s+([a-z_][\w/<>-]*)")
_INCLUDE = re.compile(r"^--@include (\w+)\Z")
_GROUP = re.compile(r"^group (\w+)\b")
_PLACE = re.compile(r"<(\w+)>")


class BrokenScript(Exception):
    """A Lua file does not keep to the form of ours; the message names it and says what is wrong."""


class Header(msgspec.Struct, frozen=True):
    """The contract in a script's header: its keys, arguments and refusals, and whether a call may be repeated."""

    summary: str
    keys: tuple[str, ...]
    arguments: int
    variadic: bool
    context: bool
    refusals: tuple[str, ...]
    reads: bool
    repeatable: bool
    long: str


class Script:
    """One atomic operation; its source is complete, with what it includes."""

    __slots__ = ("_parts", "_places", "_template", "header", "name", "path", "sha", "source")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.stem
        self.header = read_header(path)
        self._parts = _expand(path)
        # All keys as one text, filled in at once; the signs between and before them are in no key.
        self._template = "\n".join(f"\r{key}" for key in self.header.keys)
        self._places = sorted(set(_PLACE.findall(self._template)))
        self.source = self.render({})
        self.sha = sha_of(self.source)

    def keys(self, thing: Thing, names: Mapping[str, str]) -> list[str]:
        """Build the keys this script takes, for one thing."""
        text = self._template
        for place in self._places:
            text = text.replace(f"<{place}>", part_of_key(names[place]))
        return text.replace("\r", thing.base).split("\n") if text else []

    def check_arguments(self, given: int) -> None:
        """Refuse a call that does not fit the header: a mistake in our own code."""
        wanted = self.header.arguments
        if given < wanted or (given > wanted and not self.header.variadic):
            raise TypeError(f"{self.name}.lua takes {wanted} arguments, not {given}")

    def render(self, instead: Mapping[str, str]) -> str:
        """Give the whole source, with some includes replaced by others."""
        return "".join(instead.get(name, text) for name, text in self._parts)

    def __repr__(self) -> str:
        return f"<script {self.name}>"


@cache
def script(package: str, name: str) -> Script:
    """Load `lua/NAME.lua` of a package."""
    module = sys.modules[package]
    if module.__file__ is None:
        raise BrokenScript(f"{package} has no folder")
    return Script(Path(module.__file__).parent / "lua" / f"{name}.lua")


def sha_of(source: str) -> str:
    """Name a source the way the server does."""
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


def read_header(path: Path) -> Header:
    """Read the contract at the head of a file."""
    lines = path.read_text().splitlines()
    if not lines or not lines[0].startswith("#!lua"):
        raise BrokenScript(f"{path.name}: the first line must be #!lua, with its flags")
    sections = _sections(lines[1:])
    reads = "no-writes" in lines[0]
    for needed in ("SUMMARY", "KEYS", "ARGV", "RETURNS", *(() if reads else ("AGAIN",))):
        if not sections.get(needed):
            raise BrokenScript(f"{path.name}: the header says nothing under {needed}")
    keys = _numbered(path, _with_group(path, sections["KEYS"]))
    arguments = _numbered(path, sections["ARGV"])
    again = sections.get("AGAIN", "")
    if not reads and not again.startswith(("same answer", "never")):
        raise BrokenScript(f"{path.name}: AGAIN must begin with 'same answer' or 'never'")
    context = bool(arguments) and arguments[0][0] == "context"
    fixed = [name for name, variadic in arguments if not variadic]
    return Header(
        summary=sections["SUMMARY"],
        keys=tuple(name for name, _ in keys),
        arguments=len(fixed) - context,
        variadic=any(variadic for _, variadic in arguments),
        context=context,
        refusals=tuple(re.findall(r"\b[A-Z][A-Z_]+\b", sections.get("REFUSES", ""))),
        reads=reads,
        repeatable=reads or again.startswith("same answer"),
        long=sections.get("LONG", ""),
    )


def _sections(lines: list[str]) -> dict[str, str]:
    """Split a header into its sections, by the word in capitals that each begins with."""
    sections: dict[str, str] = {"SUMMARY": ""}
    section = "SUMMARY"
    for line in lines:
        if not line.startswith("---"):
            break
        text = line[3:].strip()
        word, _, rest = text.partition(" ")
        if word in {"KEYS", "ARGV", "RETURNS", "REFUSES", "AGAIN", "LONG"}:
            section, text = word, rest.strip()
        sections[section] = f"{sections.get(section, '')} {text}".strip()
    return sections


def _with_group(path: Path, text: str) -> str:
    """Replace a leading `group NAME` by the keys that the include NAME_keys declares."""
    group = _GROUP.match(text)
    if group is None:
        return text
    lines = _find(path, f"{group[1]}_keys").read_text().splitlines()
    return f"{_sections(lines)['KEYS']} {text[group.end() :]}"


def _numbered(path: Path, text: str) -> list[tuple[str, bool]]:
    """Read `1 name (words)   2 name   3.. names`; words in brackets explain and are passed over."""
    if text == "none":
        return []
    plain = re.sub(r"\([^()]*\)", "", text)
    found = [(int(number), name, bool(dots)) for number, dots, name in _NUMBERED.findall(plain)]
    if [number for number, _, _ in found] != list(range(1, len(found) + 1)):
        raise BrokenScript(f"{path.name}: the header must count 1, 2, 3 …, not: {text}")
    return [(name, variadic) for _, name, variadic in found]


def _expand(path: Path) -> list[tuple[str, str]]:
    """Give the file as pieces, each with the include's name it came from; each include once, before its first use."""
    parts: list[tuple[str, str]] = []
    included: set[str] = set()

    def add(file: Path, name: str) -> None:
        text: list[str] = []
        for line in file.read_text().splitlines():
            include = _INCLUDE.match(line)
            if include is None:
                text.append(line + "\n")
            elif include[1] not in included:
                included.add(include[1])
                parts.append((name, "".join(text)))
                text = []
                add(_find(path, include[1]), include[1])
        parts.append((name, "".join(text)))

    add(path, "")
    return parts


def _find(path: Path, name: str) -> Path:
    for folder in (path.parent / "include", path.parent.parent / "include", SHARED):
        if (folder / f"{name}.lua").is_file():
            return folder / f"{name}.lua"
    raise BrokenScript(f"{path.name}: there is no include named {name}")
