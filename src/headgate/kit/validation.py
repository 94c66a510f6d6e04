"""Turns msgspec's validation errors into sentences for the person who sent the value."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from msgspec import inspect

from headgate.kit.ids import MEMBER_PATTERN, THING_PATTERN

_MOST_FIELD, _MOST_WORDS = 128, 300
_WHERE: Final = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<where>.*)`)?\Z", re.DOTALL)
_FIELD: Final = re.compile(r"^Object (?P<how>contains unknown|missing required) field `(?P<name>.*)`\Z", re.DOTALL)
_KIND: Final = re.compile(r"^Expected `(?P<kinds>[^`]*)`, got `?.*\Z", re.DOTALL)
_BOUND: Final = re.compile(r"^Expected `(?:int|float)(?: \| null)?` (?P<sign>>=|<=|>|<) (?P<bound>\S+)\Z")
_LENGTH: Final = re.compile(
    r"^Expected `(?P<kind>\w+)(?: \| null)?` of length (?P<sign>>=|<=)? ?(?P<length>\d+)(?:, got .*)?\Z"
)
_MULTIPLE: Final = re.compile(r"^Expected `\w+(?: \| null)?` that's a multiple of (?P<of>\S+)\Z")
_PATTERN: Final = re.compile(r"^Expected `str(?: \| null)?` matching regex (?P<pattern>.*)\Z", re.DOTALL)
_STEP: Final = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<item>[^\]]*)\]")
_TIME: Final = "a time with its zone, such as 2026-12-24T18:00:00Z"
_KINDS: Final = {
    "int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list",
    "object": "an object", "bytes": "text in base64", "datetime": _TIME, "null": "null",
}  # fmt: skip
_PARTS: Final = {"str": "character", "bytes": "byte", "array": "item", "object": "entry"}
_BOUNDS: Final = {">=": "{} or more", "<=": "{} or less", ">": "more than {}", "<": "less than {}"}
_FORMS: Final = {
    rf"^{THING_PATTERN}\Z": '1 to 128 of A-Z a-z 0-9 _ . : - (but not "." or "..")',
    rf"^{MEMBER_PATTERN}\Z": "1 to 64 of A-Z a-z 0-9 _ -",
}
_FLAT: Final = str.maketrans(dict.fromkeys(map(chr, (*range(32), 127, *range(128, 160))), " "))


def flat(text: str) -> str:
    """Replace control characters by spaces, so that a text from outside stays on one line."""
    return text.translate(_FLAT)


def explain(error: Exception, kind: Any = None) -> tuple[str, str]:
    """Give a sentence that says what is wrong, and the field concerned; `kind` is the expected type."""
    what, where = _parted(error)
    named = _FIELD.match(what)
    field = flat((f"{where}.{named['name']}" if named else where).lstrip(".")[:_MOST_FIELD])
    if named:
        missing = named["how"] == "missing required"
        return (f"{field} is missing." if missing else f"There is no field named `{field}`."), field
    rule = _rule(what, _type_at(kind, where))
    if rule is not None:
        return f"{field or 'The value'} {rule}.", field
    words = flat(what[:_MOST_WORDS]).rstrip(".")
    return (f"{words}, in {field}." if field else f"{words}."), field


def requirement(error: Exception, kind: Any = None) -> str:
    """Give the rule that a value breaks, to be put after its name: `must be 100 or more`."""
    what, where = _parted(error)
    rule = _rule(what, _type_at(kind, where)) if not where else None
    return rule or f"is not usable ({explain(error, kind)[0].rstrip('.')})"


def listed(words: list[str]) -> str:
    """Join words as alternatives: `a, b or c`."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _parted(error: Exception) -> tuple[str, str]:
    parts = _WHERE.match(str(error))
    return (parts["what"], parts["where"] or "") if parts else (str(error), "")


def _rule(what: str, kind: inspect.Type | None) -> str | None:
    """Give the rule of a msgspec message; None if the message is not one of msgspec's."""
    if what.startswith("Invalid enum value"):
        choices = _choices(kind)
        return f"must be {listed(choices)}" if choices else f"cannot be {flat(what[19:_MOST_WORDS])}"
    if what.startswith("Invalid RFC3339 encoded datetime"):
        return f"must be {_TIME}"
    if (bound := _BOUND.match(what)) is not None:
        number = bound["bound"]
        return f"must be {_BOUNDS[bound['sign']].format(number.removesuffix('.0'))}"
    if (length := _LENGTH.match(what)) is not None:
        return _length_rule(length["kind"], length["sign"], int(length["length"]))
    if (multiple := _MULTIPLE.match(what)) is not None:
        return f"must be a multiple of {multiple['of'].removesuffix('.0')}"
    if (pattern := _PATTERN.match(what)) is not None:
        said = pattern["pattern"][1:-1].replace("\\\\", "\\")
        return f"must be {_FORMS[said]}" if said in _FORMS else f"must match the pattern {flat(said[:_MOST_WORDS])}"
    kinds = _KIND.match(what)
    names = [_KINDS.get(each) for each in kinds["kinds"].split(" | ")] if kinds is not None else []
    choices = _choices(kind)
    if choices and names[:1] == ["text"]:
        return f"must be {listed(choices)}"
    return f"must be {listed([each for each in names if each])}" if names and None not in names else None


def _length_rule(kind: str, sign: str | None, length: int) -> str:
    part = _PARTS.get(kind, "item")
    many = {"entry": "entries"}.get(part, f"{part}s")
    count = f"{'one' if length == 1 else length} {part if length == 1 else many}"
    if sign == ">=":
        return f"needs at least {count}"
    return f"may have at most {count}" if sign == "<=" else f"must have {count}"


def _choices(kind: inspect.Type | None) -> list[str]:
    for each in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
        if isinstance(each, inspect.EnumType):
            return [str(member.value) for member in each.cls]
        if isinstance(each, inspect.LiteralType):
            return [str(value) for value in each.values if value != ""]
    return []


def _type_at(kind: Any, where: str) -> inspect.Type | None:
    """Find the type at a path such as `.limits[0].count` in the expected type."""
    if kind is None:
        return None
    found: inspect.Type | None = _type_info(kind)
    for step in _STEP.finditer(where):
        found = _inside(found, step["name"], step["item"])
    return found


def _inside(kind: inspect.Type | None, name: str | None, item: str | None) -> inspect.Type | None:
    for each in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
        if name is not None and isinstance(each, inspect.StructType):
            return next((field.type for field in each.fields if field.encode_name == name), None)
        if item is not None and isinstance(each, inspect.DictType):
            return each.value_type
        if item is not None and isinstance(each, inspect.CollectionType):
            return each.item_type
    return None


@lru_cache(maxsize=256)
def _type_info(kind: Any) -> inspect.Type | None:
    try:
        return inspect.type_info(kind)
    except Exception:  # noqa: BLE001  # a type that msgspec itself does not know; the sentence is then less exact
        return None
