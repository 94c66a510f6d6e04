"""A queue's policy as people write it on a command line, and as they read it there."""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from typing import Final

import msgspec

from headgate.gateway.reading import invalid
from headgate.kit.problems import InvalidRequest
from headgate.waiting_room import PolicyChange, QueueView
from headgate.waiting_room.policy import MANY_SEATS, FailMode, Placement, Policy, Seats

NO_LIMIT: Final = "no limit"
_CHOICES: Final[dict[str, type[StrEnum]]] = {"seats": Seats, "placement": Placement, "failMode": FailMode}
_LIMITS: Final = frozenset({"capacity", "ratePerSecond", "maxLength"})
_MAY_BE_NULL: Final = _LIMITS | {"burst"}


def read_policy(words: tuple[str, ...]) -> PolicyChange:
    """Read `field=value` words; a value is JSON, or plain text where that is no JSON."""
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
        raise _refused(invalid(error), said) from error


def camel(name: str) -> str:
    """Write a field's name as it is on the wire, however it was typed."""
    first, *rest = name.replace("-", "_").split("_")
    return first + "".join(part.capitalize() for part in rest)


def policy_rows(view: QueueView) -> list[tuple[str, str]]:
    """Give each field of the policy, and what it says."""
    policy = msgspec.to_builtins(view)
    return [(name, in_words(name, policy[name])) for name in map(camel, Policy.__struct_fields__)]


def figure_rows(view: QueueView) -> list[tuple[str, str]]:
    """Give each figure of how the queue stands; the rate here is what was measured."""
    return [
        (name, in_words("capacity", value) if name == "capacity" else plain(value))
        for name, value in msgspec.to_builtins(view.figures).items()
    ]


def changes(old: str, new: str) -> str:
    """Say what a change of policy changed; of the first one, what it says beside the defaults."""
    try:
        after = msgspec.json.decode(new, type=dict[str, object])
        before = msgspec.json.decode(old, type=dict[str, object]) if old else msgspec.to_builtins(Policy())
    except msgspec.DecodeError:
        return new
    changed = [(name, before.get(name), value) for name, value in after.items() if before.get(name) != value]
    if not old:
        return ", ".join(f"{name} {in_words(name, value)}" for name, _, value in changed)
    return ", ".join(f"{name} {in_words(name, was)} → {in_words(name, value)}" for name, was, value in changed)


def in_words(name: str, value: object) -> str:
    """Write a field's value; what limits nothing has one word."""
    unlimited = value is None or (name == "capacity" and isinstance(value, int) and value >= MANY_SEATS)
    return NO_LIMIT if name in _LIMITS and unlimited else plain(value)


def plain(value: object) -> str:
    """Write a value: text as it is, whole numbers without their fraction, anything else as JSON."""
    if isinstance(value, float):
        return f"{value:.15g}"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _refused(error: InvalidRequest, said: dict[str, object]) -> InvalidRequest:
    """Say what a field may be, in the place of what kind of JSON it is."""
    field = str(error.members.get("field", ""))
    if field in _CHOICES:
        choices = ", ".join(_CHOICES[field])
        return InvalidRequest(f"{field} cannot be {plain(said[field])}; it is one of {choices}.", field=field)
    if field == "opensAt":
        words = "opensAt is a time with its zone, such as 2026-12-24T18:00:00Z; opensAt=null takes it away."
        return InvalidRequest(words, field=field)
    if field in _MAY_BE_NULL:
        asked = "has no value" if said[field] == "" else f"cannot be {plain(said[field])} ({error.detail.rstrip('.')})"
        return InvalidRequest(f"{field} {asked}; {field}=null takes the limit away.", field=field)
    return InvalidRequest(f"{error.detail} `headgate queue show NAME` lists the fields of one.", field=field)
