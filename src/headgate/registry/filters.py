"""Filters on instances: `metadata.version==1.2`, `metrics.load<0.8`, `group in kr-1,kr-2`, `metadata.gpu exists`.

`lua/include/passes.lua` filters in the store, `passes` here; a test compares them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from headgate.kit.problems import InvalidRequest
from headgate.registry.model import Instance

MOST: Final = 16
OWN: Final = frozenset(
    {
        "instanceId", "type", "group", "hostname", "publicIp", "privateIp", "port", "protocol", "weight", "enabled",
        "ephemeral", "healthy", "draining", "suspect",
    }
)  # fmt: skip
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_COMPARISON = re.compile(r"\s*([^\s=!<>]+)\s*(==|!=|>=|<=|>|<)\s*(.*?)\s*", re.DOTALL)
_WORD = re.compile(r"\s*(\S+)\s+(in|exists)(?:\s+(.*?))?\s*", re.DOTALL)
_ATTRIBUTES = {name: re.sub(r"[A-Z]", lambda letter: "_" + letter[0].lower(), name) for name in OWN}


class Literal(msgspec.Struct, frozen=True):
    """A value in a filter: its text, and its number if the text is one."""

    words: str
    number: float | None


class Filter(msgspec.Struct, frozen=True):
    """One condition: a field, an operator and the values to compare with."""

    part: str
    key: str
    operator: str
    literals: tuple[Literal, ...] = ()

    def arguments(self) -> tuple[str, str, str, str, str]:
        """Encode it as arguments of the script."""
        if self.operator == "in":
            words = msgspec.json.encode([[literal.words, _number_text(literal)] for literal in self.literals]).decode()
            return self.part, self.key, self.operator, words, ""
        first = self.literals[0] if self.literals else Literal("", None)
        return self.part, self.key, self.operator, first.words, _number_text(first)


def parse_filters(texts: Sequence[str]) -> list[Filter]:
    """Parse filters; raises InvalidRequest."""
    if len(texts) > MOST:
        raise InvalidRequest(f"At most {MOST} filters.", field="filter")
    return [parse_filter(text) for text in texts]


def parse_filter(text: str) -> Filter:
    """Parse one filter; raises InvalidRequest."""
    if found := _COMPARISON.fullmatch(text):
        field, operator, words = found.groups()
        literals: tuple[Literal, ...] = (_literal(words),)
    elif found := _WORD.fullmatch(text):
        field, operator, words = found.groups()
        if (operator == "exists") == bool(words):
            raise InvalidRequest(f"{text!r} is not a filter: 'field in a,b' or 'field exists'.", field="filter")
        literals = tuple(_literal(word.strip()) for word in words.split(",")) if words else ()
    else:
        raise InvalidRequest(
            f"{text!r} is not a filter; write field==value (or != > >= < <=), 'field in a,b' or 'field exists'.",
            field="filter",
        )
    part, _, key = field.partition(".")
    if part in {"metadata", "metrics", "performance", "systemInfo"} and key:
        return Filter("metrics" if part == "performance" else part, key, operator, literals)
    if field in OWN:
        return Filter("own", field, operator, literals)
    raise InvalidRequest(
        f"{field!r} is no field to filter by; take metadata.x, metrics.x, systemInfo.x or one of {', '.join(sorted(OWN))}.",
        field="filter",
    )


def passes_all(instance: Instance, filters: Iterable[Filter]) -> bool:
    """Whether an instance passes every filter."""
    return all(passes(value_of(instance, filter_), filter_) for filter_ in filters)


def passes(value: object, filter_: Filter) -> bool:
    """Whether one value passes; None stands for a missing field."""
    match filter_.operator:
        case "==":
            return _equals(value, filter_.literals[0])
        case "!=":
            return not _equals(value, filter_.literals[0])
        case "exists":
            return value is not None
        case "in":
            return any(_equals(value, literal) for literal in filter_.literals)
    limit = filter_.literals[0].number
    if limit is None or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    number = float(value)
    match filter_.operator:
        case ">":
            return number > limit
        case ">=":
            return number >= limit
        case "<":
            return number < limit
        case _:
            return number <= limit


def _equals(value: object, literal: Literal) -> bool:
    if isinstance(value, bool):
        return literal.words == ("true" if value else "false")
    if isinstance(value, int | float):
        return literal.number is not None and float(value) == literal.number
    return isinstance(value, str) and value == literal.words


def value_of(instance: Instance, filter_: Filter) -> object:
    """Give the field of an instance that a filter compares."""
    match filter_.part:
        case "metadata":
            return instance.metadata.get(filter_.key)
        case "metrics":
            return instance.metrics.get(filter_.key)
        case "systemInfo":
            return instance.system_info.get(filter_.key)
    value: object = getattr(instance, _ATTRIBUTES[filter_.key])
    return value


def _literal(words: str) -> Literal:
    number = float(words) if _NUMBER.fullmatch(words) else None
    return Literal(words, number if number is not None and math.isfinite(number) else None)


def _number_text(literal: Literal) -> str:
    return "" if literal.number is None else repr(literal.number)
