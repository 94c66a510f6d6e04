"""Sentences about a value that does not have the form it should."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from headgate.kit.ids import ThingName
from headgate.kit.validation import explain, listed, requirement


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    ERROR = "error"


class Part(msgspec.Struct, forbid_unknown_fields=True):
    level: Level | None = None


class Sent(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    need: int
    per_second: float | None = None
    tick_ms: Annotated[int, Meta(ge=100)] = 100
    above: Annotated[float, Meta(gt=0)] = 1
    most: Annotated[int, Meta(le=5)] = 1
    below: Annotated[float, Meta(lt=5)] = 1
    even: Annotated[int, Meta(multiple_of=2)] = 2
    level: Level = Level.INFO
    word: Literal["yes", "no"] = "yes"
    nickname: Annotated[str, Meta(min_length=1, max_length=3)] = "a"
    names: Annotated[list[str], Meta(max_length=2)] = []
    pair: tuple[int, int] = (1, 1)
    name: ThingName = "a"
    form: Annotated[str, Meta(pattern=r"^a\d\Z")] = "a1"
    at: datetime | None = None
    on: bool = False
    parts: list[Part] = []
    by_name: dict[str, Part] = {}


@pytest.mark.parametrize(
    ("sent", "sentence", "field"),
    [
        ({"perSecond": "abc"}, "perSecond must be a number or null.", "perSecond"),
        ({"need": "x"}, "need must be a whole number.", "need"),
        ({"tickMs": 5}, "tickMs must be 100 or more.", "tickMs"),
        ({"above": 0}, "above must be more than 0.", "above"),
        ({"most": 6}, "most must be 5 or less.", "most"),
        ({"below": 5}, "below must be less than 5.", "below"),
        ({"even": 3}, "even must be a multiple of 2.", "even"),
        ({"level": "loud"}, "level must be debug, info or error.", "level"),
        ({"level": 7}, "level must be debug, info or error.", "level"),
        ({"word": "maybe"}, "word must be no or yes.", "word"),
        ({"nickname": ""}, "nickname needs at least one character.", "nickname"),
        ({"nickname": "abcd"}, "nickname may have at most 3 characters.", "nickname"),
        ({"names": ["a", "b", "c"]}, "names may have at most 2 items.", "names"),
        ({"pair": [1]}, "pair must have 2 items.", "pair"),
        ({"name": "a b"}, 'name must be 1 to 128 of A-Z a-z 0-9 _ . : - (but not "." or "..").', "name"),
        ({"form": "b"}, r"form must match the pattern ^a\d\Z.", "form"),
        ({"at": "noon"}, "at must be a time with its zone, such as 2026-12-24T18:00:00Z.", "at"),
        ({"on": "x"}, "on must be true or false.", "on"),
        ({"parts": [{"level": "loud"}]}, "parts[0].level must be debug, info or error.", "parts[0].level"),
        ({"byName": {"x": {"level": "loud"}}}, "byName[...].level must be debug, info or error.", "byName[...].level"),
        ({"parts": [{"x": 1}]}, "There is no field named `parts[0].x`.", "parts[0].x"),
        ({"value": 1}, "There is no field named `value`.", "value"),
        ({"need": None, "a": 1}, "need must be a whole number.", "need"),
    ],
)
def test_a_field_is_told_what_it_must_be(sent: dict[str, object], sentence: str, field: str) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert({"need": 1, **sent}, Sent)
    assert explain(raised.value, Sent) == (sentence, field)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert({}, Sent)
    assert explain(raised.value, Sent) == ("need is missing.", "need")


def test_a_whole_body_of_another_kind_and_words_of_our_own() -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(1, Sent)
    assert explain(raised.value, Sent) == ("The value must be an object.", "")
    assert requirement(raised.value, Sent) == "must be an object"
    assert explain(msgspec.ValidationError("Two doors\nare one too many - at `$.doors`")) == (
        "Two doors are one too many, in doors.",
        "doors",
    )


def test_choices_are_listed_as_people_say_them() -> None:
    assert [listed(words) for words in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a or b", "a, b or c"]
