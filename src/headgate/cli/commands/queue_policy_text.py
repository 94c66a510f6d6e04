"""Parses a queue's policy from command-line arguments, and formats it for output."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from headgate.gateway.decoding import invalid
from headgate.kit.problems import InvalidRequest
from headgate.waiting_room.policy import MANY_SEATS, Policy, PolicyChange
from headgate.waiting_room.wire import QueueView

NO_LIMIT: Final = "no limit"
_LIMITS: Final = frozenset({"capacity", "ratePerSecond", "maxLength"})
_MAY_BE_NULL: Final = _LIMITS | {"burst"}
_WHEN_EMPTY: Final = {
    "burst": "as the rate",
    "opensAt": "open now",
    "auto": "off",
    "message": "none",
    "template": "none",
}
_FREE_TEXT: Final = frozenset({"message", "template"})


def read_policy(words: tuple[str, ...]) -> PolicyChange:
    """Parse `field=value` arguments; a value is JSON, or plain text if it is not valid JSON."""
    said: dict[str, object] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise InvalidRequest(f"{word} should be a field and its value, such as ratePerSecond=5.")
        value: object = text
        with suppress(msgspec.DecodeError):
            value = msgspec.json.decode(text)
        said[camel(name)] = value
    try:
        return msgspec.convert(said, PolicyChange)
    except msgspec.ValidationError as error:
        raise _refused(invalid(error, PolicyChange), said) from error


def camel(name: str) -> str:
    """Return a field's name in camelCase, as on the wire, however it was typed."""
    first, *rest = name.replace("-", "_").split("_")
    return first + "".join(part.capitalize() for part in rest)


def policy_rows(view: QueueView) -> list[tuple[str, str]]:
    """Return each field of the policy with its formatted value."""
    policy = msgspec.to_builtins(view)
    return [(name, in_words(name, policy[name])) for name in map(camel, Policy.__struct_fields__)]


def figure_rows(view: QueueView) -> list[tuple[str, str]]:
    """Return each figure of the queue's current state; the rate is the measured one."""
    return [
        (name, in_words("capacity", value) if name == "capacity" else plain(value))
        for name, value in msgspec.to_builtins(view.figures).items()
    ]


def changes(old: Mapping[str, object], new: Mapping[str, object]) -> str:
    """Describe a change; for a queue's first policy, the values that differ from the defaults."""
    before: Mapping[str, object] = old or msgspec.to_builtins(Policy())
    changed = [(name, before.get(name), value) for name, value in new.items() if before.get(name) != value]
    if not old:
        return ", ".join(f"{name} {_quoted(name, value)}" for name, _, value in changed) or ("created" if new else "")
    return ", ".join(
        f"{name} {_quoted(name, was)} → {_quoted(name, value)}" if name in old else f"{name} {_quoted(name, value)}"
        for name, was, value in changed
    )


def in_words(name: str, value: object) -> str:
    """Format a field's value; an absent limit or an unset value is described in words."""
    if (value is None or value == "") and name in _WHEN_EMPTY:
        return _WHEN_EMPTY[name]
    unlimited = value is None or (name == "capacity" and isinstance(value, int) and value >= MANY_SEATS)
    return NO_LIMIT if name in _LIMITS and unlimited else plain(value)


def _quoted(name: str, value: object) -> str:
    """Format a field's value in a list of changes, where a text needs quotes."""
    return msgspec.json.encode(value).decode() if name in _FREE_TEXT else in_words(name, value)


def plain(value: object) -> str:
    """Format a value: text as it is, whole numbers without a fraction, anything else as JSON."""
    if isinstance(value, float):
        return f"{value:.15g}"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _refused(error: InvalidRequest, said: dict[str, object]) -> InvalidRequest:
    """Return an error that says which values a field takes, instead of its JSON type."""
    field = str(error.members.get("field", ""))
    if field == "opensAt":
        words = "opensAt is a time with its zone, such as 2026-12-24T18:00:00Z; opensAt=null takes it away."
        return InvalidRequest(words, field=field)
    if field in _MAY_BE_NULL:
        wrong = f"{field} has no value" if said[field] == "" else error.detail.rstrip(".").removesuffix(" or null")
        return InvalidRequest(f"{wrong}; {field}=null takes the limit away.", field=field)
    if field not in said or error.detail.startswith("There is no field"):
        return InvalidRequest(f"{error.detail} `headgate queue show NAME` lists the fields of one.", field=field)
    return error
