"""Python reads records and replies as the Lua includes write them, whatever their values are."""

from __future__ import annotations

import string
import struct
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import cast

import pytest

import headgate
from headgate.gateway.tokens import _token
from headgate.registry.service_state import NO_OVERRIDE, CachedInstance, StoredInstance, decode_override
from headgate.store import Script, Store
from headgate.waiting_room.statuses import _FACTS, _HOLD, _USER

SOURCE = Path(headgate.__file__).parent
HEADER = """#!lua
--- Write a record.
--- KEYS     1 notes (hash)
--- ARGV     1.. value
--- RETURNS  the record
--- AGAIN    same answer: it only packs
"""


@pytest.fixture(params=range(5))
def random(request: pytest.FixtureRequest) -> Random:
    return Random(cast("int", request.param))


async def write(store: Store, folder: Path, feature: str, body: str, *values: str | int | float) -> bytes:
    """Run a script that packs its arguments by a feature's include."""
    (folder / "include").symlink_to(SOURCE / feature / "lua" / "include")
    file = folder / "pack.lua"
    file.write_text(f"{HEADER}{body}\n")
    return cast("bytes", await store.run(Script(file), store.thing("t", "default", "x"), *values))


def word(random: Random, longest: int = 40) -> str:
    return "".join(random.choices(string.ascii_letters + string.digits + "-_", k=random.randint(1, longest)))


async def test_a_token_is_read_as_it_was_written(store: Store, tmp_path: Path, random: Random) -> None:
    name, namespace, digest, at = word(random), word(random), random.randbytes(32), random.randrange(2**41)
    creator = f"{word(random)} {word(random)}"
    body = "--@include token_record\nreturn pack_token(ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6])"
    record = await write(store, tmp_path, "gateway", body, name, "admin", namespace, digest.hex(), at, creator)
    token = _token("id", record.decode())
    assert (token.caller.name, token.caller.namespace, token.digest, token.creator) == (
        name,
        namespace,
        digest,
        creator,
    )
    assert token.created_at == datetime.fromtimestamp(at / 1000, UTC)


async def test_an_override_is_read_as_it_was_written(store: Store, tmp_path: Path, random: Random) -> None:
    enabled, drain = random.choice(["-", "0", "1"]), random.choice(["-", "0", "1"])
    weight = random.choice(["-", str(random.random() * 100)])
    body = "--@include override_record\nreturn pack_override(ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]))"
    record = await write(store, tmp_path, "registry", body, enabled, weight, drain, random.randrange(2**41))
    override = decode_override(record.decode())
    assert override.enabled == {"-": None, "0": False, "1": True}[enabled]
    assert override.weight == (None if weight == "-" else float(weight))
    assert override.drain == {"-": None, "0": False, "1": True}[drain]


async def test_a_state_is_read_as_it_was_written(store: Store, tmp_path: Path, random: Random) -> None:
    registration, ttl_ms = random.randrange(2**52), random.randrange(2**31)
    flags = [random.choice("01") for _ in range(4)]
    body = """--@include state_record
local notes = KEYS[1]
write_state({ states = notes }, 'x', { registration = ARGV[1], ttl = tonumber(ARGV[2]), ephemeral = ARGV[3],
  reported = ARGV[4], checked = ARGV[5], lapsed = ARGV[6], nonce = ARGV[7] })
return redis.call('HGET', notes, 'x')"""
    record = await write(store, tmp_path, "registry", body, registration, ttl_ms, *flags, word(random))
    instance = StoredInstance("x", "t", "g", "h", "", "", 1, "tcp", 1.0, True, True, {})
    shape = CachedInstance(instance, {}, record.decode(), NO_OVERRIDE, None)
    assert (shape.registration, shape.ttl_ms, shape.ephemeral) == (registration, ttl_ms, flags[0] == "1")
    assert shape.healthy == (flags[1:] == ["1", "1", "0"])


async def test_a_users_answer_is_read_as_it_was_written(store: Store, tmp_path: Path, random: Random) -> None:
    account, place, rank, left = random.randrange(2), random.randrange(2**52), random.randrange(2**32), random.random()
    ticket, server, address = word(random), word(random), word(random, 300)
    body = (
        "--@include answer_record\nreturn struct.pack(ANSWER_FORM, 'P', ARGV[1], ARGV[2], ARGV[3])"
        " .. pack_held(tonumber(ARGV[4]), ARGV[5], ARGV[6], ARGV[7])"
    )
    reply = await write(store, tmp_path, "waiting_room", body, account, place, rank, left, ticket, server, address)
    assert _USER.unpack_from(reply) == (b"P", account, place, rank)
    ms, length = _HOLD.unpack_from(reply, _USER.size)
    rest = reply[_USER.size + _HOLD.size :]
    assert (ms, rest[:length]) == (pytest.approx(left), ticket.encode())
    assert rest[length:] == bytes([len(server)]) + server.encode() + struct.pack("<H", len(address)) + address.encode()


async def test_the_common_part_is_read_as_it_was_written(store: Store, tmp_path: Path, random: Random) -> None:
    generation, age, grace, serving, epoch = (random.randrange(2**40) for _ in range(5))
    free, *forecast = (random.randrange(2**32), *(random.random() * 1000 for _ in range(10)))
    body = """--@include answer_record
local queue = {
  generation = tonumber(ARGV[1]), flow_age = tonumber(ARGV[2]), grace_ms = tonumber(ARGV[3]), serving = tonumber(ARGV[4]),
  epoch = ARGV[5], unattended = true, forecast = struct.pack(FORECAST_FORM, unpack(ARGV, 6)),
}
return pack_common(queue, true)"""
    values = (generation, age, grace, serving, epoch, free, *forecast)
    reply = await write(store, tmp_path, "waiting_room", body, *values)
    expected = (generation, age / 1000, 3, grace, serving, epoch, free, *forecast)
    assert _FACTS.unpack(reply) == pytest.approx(expected)
