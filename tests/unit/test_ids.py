"""Names and ids: what may come in, and those that we make ourselves."""

from __future__ import annotations

import os
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from headgate.kit.ids import DRAWN_TOGETHER, MemberId, ThingName, member_id, new_uuid, thing_name
from headgate.kit.problems import InvalidRequest


def test_an_id_is_a_random_uuid_and_none_comes_twice() -> None:
    made = [new_uuid() for _ in range(3 * DRAWN_TOGETHER)]
    assert len(set(made)) == len(made)
    for text in made:
        assert str(uuid.UUID(text)) == text
        assert (uuid.UUID(text).version, uuid.UUID(text).variant) == (4, uuid.RFC_4122)


def test_threads_do_not_take_the_last_one_from_each_other() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            made = list(threads.map(lambda _: [new_uuid() for _ in range(5000)], range(8)))
    finally:
        sys.setswitchinterval(interval)
    assert len({text for texts in made for text in texts}) == 40_000


def test_a_forked_process_makes_other_ids_than_its_parent() -> None:
    new_uuid()  # so that some are drawn already
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, " ".join(new_uuid() for _ in range(DRAWN_TOGETHER)).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        theirs = pipe.read().decode().split()
    os.waitpid(child, 0)
    assert len(theirs) == DRAWN_TOGETHER
    assert not set(theirs) & {new_uuid() for _ in range(DRAWN_TOGETHER)}


@pytest.mark.parametrize("name", [".", "..", "", "a/b", "nl-1\n", "\n", "a" * 129, "é", "a b"])
def test_these_are_no_names_of_things(name: str) -> None:
    with pytest.raises(InvalidRequest):
        thing_name(name)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(name, ThingName)


@pytest.mark.parametrize("name", ["...", ".a", "a.", "..a", "a..", "-", ":", "a" * 128])
def test_these_are_names_of_things(name: str) -> None:
    assert thing_name(name) == msgspec.convert(name, ThingName) == name


@pytest.mark.parametrize("member", ["nl-1\n", "", ".", "a" * 65])
def test_these_are_no_ids_of_members(member: str) -> None:
    with pytest.raises(InvalidRequest):
        member_id(member)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(member, MemberId)
