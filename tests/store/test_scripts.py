"""Scripts are what their headers say: keys, arguments, refusals, repeats."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headgate.kit.problems import NotFound, RateLimited, StoreFull, StoreRefused, VersionConflict
from headgate.store import Script, Store, StoreSettings, open_store
from headgate.store.errors import ScriptFailed
from headgate.store.scripts.contracts import complaints, operations
from tests.store.scripts import ECHO, NOTE, REFUSE, TALLY, TELL
from tests.topology import Standalone, Topology

OURS = [*operations(), *sorted((Path(__file__).parent / "lua").glob("*.lua"))]

GOOD = """#!lua
--- Do something.
--- KEYS     1 meta (hash, 2 fields)   2 line/<user> (list)
--- ARGV     1 context   2 most   3.. name, value
--- RETURNS  1
--- REFUSES  QUEUE_CLOSED
--- AGAIN    same answer: it always is
--@include clock
local meta, line = KEYS[1], KEYS[2]
local context, most = ARGV[1], ARGV[2]
return redis.error_reply('QUEUE_CLOSED') or { meta, line, context, most }
"""


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_every_operation_keeps_to_its_header(path: Path) -> None:
    assert list(complaints(path)) == []


def test_the_header_is_read_as_it_is_written(tmp_path: Path) -> None:
    header = _script(tmp_path, GOOD).header
    assert header.keys == ("meta", "line/<user>")
    assert (header.arguments, header.variadic, header.context) == (1, True, True)
    assert header.refusals == ("QUEUE_CLOSED",)
    assert header.repeatable
    assert not header.reads


@pytest.mark.parametrize(
    ("good", "bad", "complaint"),
    [
        ("#!lua\n", "\n", "first line must be #!lua"),
        ("--- KEYS ", "--- KEY ", "nothing under KEYS"),
        ("--- AGAIN    same", "--- AGAIN    the same", "AGAIN must begin"),
        ("2 line/<user>", "3 line/<user>", "must count 1, 2, 3"),
        ("3.. name", "4.. name", "must count 1, 2, 3"),
        ("local meta, line = KEYS[1], KEYS[2]", "local meta, line = KEYS[1], KEYS[1]", r"KEYS \[2\] do not match"),
        ("local meta, line = KEYS[1], KEYS[2]", "local meta, line, more = KEYS[1], KEYS[2], KEYS[3]", r"KEYS \[3\]"),
        ("{ meta, line,", "{ meta, KEYS[2],", "named once, in the locals"),
        ("error_reply('QUEUE_CLOSED')", "error_reply('QUEUE_FULL')", "QUEUE_CLOSED is promised"),
        ("--@include clock\n", "", "does not include clock"),
        ("--@include clock", "--@include clocks", "no include named clocks"),
        ("return redis", "string.match(context, '^(%S+)')\nreturn redis", "only read_context does"),
        ("return", "--\n" * 120 + "return", "120 is the most"),
        ("--@include clock", "--@include clock\n--@include long", "above 600 the header says why under LONG"),
    ],
)
def test_a_broken_contract_is_named(tmp_path: Path, good: str, bad: str, complaint: str) -> None:
    assert list(complaints(_write(tmp_path, GOOD))) == []
    assert good in GOOD
    found = list(complaints(_write(tmp_path, GOOD.replace(good, bad, 1))))
    assert any(re.search(complaint, line) for line in found), found


def test_a_group_declares_the_first_keys_once(tmp_path: Path) -> None:
    keys = "--- KEYS     1 meta (hash, 2 fields)   2 line/<user> (list)"
    grouped = GOOD.replace(keys, "--- KEYS     group line   3 events (stream)")
    grouped = grouped.replace("local meta, line = KEYS[1], KEYS[2]", "--@include line_keys\nlocal events = KEYS[3]")
    path = _write(tmp_path, grouped)
    (tmp_path / "include" / "line_keys.lua").write_text(f"{keys}\nlocal meta, line = KEYS[1], KEYS[2]\n")
    assert Script(path).header.keys == ("meta", "line/<user>", "events")
    assert list(complaints(path)) == []
    path.write_text(grouped.replace("--@include line_keys\n", ""))
    assert any("KEYS [1, 2] do not match" in line for line in complaints(path))


def test_an_include_comes_once_and_before_its_use(tmp_path: Path) -> None:
    source = _script(tmp_path, GOOD.replace("--@include clock", "--@include text_of\n--@include clock")).source
    assert source.count("local function text_of") == 1
    order = [source.index(f"local {what}") for what in ("function server_time", "function open_thing", "meta, line")]
    assert order == sorted(order)


def test_names_in_angle_brackets_are_filled_in_safely(store: Store) -> None:
    thing = store.thing("queue", "default", "main")
    assert REFUSE.keys(thing, {"user": "a}/:{b"}) == [f"{store.prefix}:queue:{{default/main}}:line/a%7D%2F%3A%7Bb"]


async def test_a_wrong_number_of_arguments_is_our_own_mistake(store: Store) -> None:
    thing = store.thing("t", "default", "x")
    with pytest.raises(TypeError, match="takes 1 arguments, not 2"):
        await store.run(TALLY, thing, "a", "b")
    with pytest.raises(TypeError, match="takes 2 arguments, not 1"):
        await store.run(NOTE, thing, "a")
    with pytest.raises(TypeError, match="takes 1 arguments, not 0"):
        await store.run(ECHO, thing)


async def test_a_refusal_is_the_exception_with_its_code_and_words(store: Store) -> None:
    thing = store.thing("t", "default", "x")
    with pytest.raises(VersionConflict, match=r"^it is at 7 now$"):
        await store.run(REFUSE, thing, "VERSION_CONFLICT it is at 7 now", user="u")
    with pytest.raises(NotFound, match="There is nothing"):
        await store.run(REFUSE, thing, "NOT_FOUND", user="u")
    with pytest.raises(ScriptFailed, match="QUITE_UNHEARD_OF"):
        await store.run(REFUSE, thing, "QUITE_UNHEARD_OF words", user="u")
    with pytest.raises(RateLimited):
        await store.run(REFUSE, thing, "RATE_LIMITED slow down", user="u")


async def test_a_script_that_the_server_forgot_is_loaded_again(store: Store, server: Topology) -> None:
    thing = store.thing("t", "default", "x")
    assert await store.run(TALLY, thing, "a") == 1
    for node in server.primaries():
        node.command("SCRIPT", "FLUSH", "SYNC")
    assert await store.run(TALLY, thing, "a") == 2


async def test_arguments_arrive_as_they_were_given(store: Store) -> None:
    thing = store.thing("t", "default", "x")
    for given, kept in (("ü\r\n$5", "ü\r\n$5".encode()), (b"\x00\xff", b"\x00\xff"), (2**53, b"9007199254740992")):
        reply = await store.run(NOTE, thing, repr(given), given)
        assert reply == [repr(given).encode(), kept, 1]


async def test_a_thing_without_a_listener_takes_a_hint(store: Store) -> None:
    assert await store.run(TELL, store.thing("t", "default", "x"), "words") == 1


@pytest.mark.topology("standalone")
async def test_a_full_store_takes_no_writes_but_frees_memory(prefix: str) -> None:
    with Standalone() as server:
        async with open_store(StoreSettings(url=server.url, prefix=prefix, deadline_ms=10_000)) as store:
            thing = store.thing("t", "default", "x")
            await store.run(TALLY, thing, "a")
            server.node.command("CONFIG", "SET", "maxmemory", 1)
            with pytest.raises(StoreFull):
                await store.run(TALLY, thing, "a")
            server.node.command("CONFIG", "SET", "maxmemory", 0)
            assert await store.run(TALLY, thing, "a") == 2


@pytest.mark.topology("standalone")
async def test_a_right_taken_away_is_a_refusal_that_names_the_remedy(prefix: str) -> None:
    with Standalone() as server:
        server.node.command("ACL", "SETUSER", "few", "on", ">pw", "~*", "&*", "+@all")
        url = server.url.replace("://", "://few:pw@")
        async with open_store(StoreSettings(url=url, prefix=prefix, deadline_ms=10_000)) as store:
            thing = store.thing("t", "default", "x")
            assert await store.run(TALLY, thing, "a") == 1
            server.node.command("ACL", "SETUSER", "few", "-evalsha")
            with pytest.raises(StoreRefused, match="doctor --acl"):
                await store.run(TALLY, thing, "a")


def _script(folder: Path, source: str) -> Script:
    return Script(_write(folder, source))


def _write(folder: Path, source: str) -> Path:
    path = folder / "sample.lua"
    path.write_text(source)
    (folder / "include").mkdir(exist_ok=True)
    (folder / "include" / "long.lua").write_text("--\n" * 600)
    return path
