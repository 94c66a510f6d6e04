"""`headgate doctor` finds damage in the data of a store, and says what to do about it."""

from __future__ import annotations

import asyncio

import pytest

from headgate.cli.commands.doctor import data_checks
from headgate.cli.commands.doctor.finding import Finding, Severity
from headgate.locks import LockHeld
from headgate.locks.locks import Locks
from headgate.registry.model import Record
from headgate.registry.registry import Registry
from headgate.registry.settings import RegistrySettings
from headgate.relay.job_queue import JOB_NEXT
from headgate.relay.jobs import BURY, FORGET, REAP, SILENT
from headgate.relay.upstreams import GONE_MS, Upstreams
from headgate.store import Index, Store, StoreSettings, acl, open_store
from tests.store.relay_world import window
from tests.topology import Topology

CHECKS = {
    "queues": data_checks.queues,
    "services": data_checks.services,
    "locks": data_checks.locks,
    "upstreams": data_checks.upstreams,
}


async def one(store: Store, check: str) -> Finding:
    """Give the one finding of a check."""
    (found,) = [finding async for finding in CHECKS[check](store)]
    return found


async def test_an_empty_store_has_no_contradiction(store: Store) -> None:
    for check in CHECKS:
        found = await one(store, check)
        assert (found.level, found.found) == (Severity.OK, f"no contradiction in 0 {check} with 0 members")


@pytest.mark.parametrize(
    ("command", "key", "words", "said"),
    [
        ("ZREM", "deadlines", ("a",), "instance a would never expire"),
        ("ZADD", "deadlines", (1, "ghost"), "there are 2 records and 3 deadlines"),
        ("HDEL", "states", ("a",), "there are 2 records and 1 states"),
        ("HDEL", "records", ("b",), "there are 1 records and 2"),
    ],
)
async def test_a_service_whose_parts_do_not_agree(
    store: Store, command: str, key: str, words: tuple[str | int, ...], said: str
) -> None:
    registry = Registry(store, RegistrySettings())
    for instance in ("a", "b"):
        record = Record(type="game", group="g", instance_id=instance, private_ip="127.0.0.1", port=1)
        await registry.register("default", record)
    assert (await one(store, "services")).found == "no contradiction in 1 service with 2 members"
    thing = registry.service("default", "game", "g")
    await store.write(thing, command, thing.key(key), *words)
    found = await one(store, "services")
    assert found.level is Severity.PROBLEM
    assert f"default/game%2Fg contradicts itself: {said}" in found.found
    assert "headgate service remove" in found.advice


async def test_a_lock_whose_line_does_not_agree(store: Store) -> None:
    async with Locks(store) as locks:
        async with locks.lock("a", ttl=30):
            waiting = asyncio.ensure_future(_wait(locks))
            try:
                thing = locks.thing("a")
                async with asyncio.timeout(10):
                    while await store.read(thing, "ZCARD", thing.key("line")) != 1:
                        await asyncio.sleep(0.01)
                assert (await one(store, "locks")).level is Severity.OK
                await store.write(thing, "HSET", thing.key("waiters"), "ghost", "nobody 1")
                found = await one(store, "locks")
                assert (found.level, "1 wait in line and 2 are known" in found.found) == (Severity.PROBLEM, True)
            finally:
                waiting.cancel()
                await asyncio.wait((waiting,))


async def _wait(locks: Locks) -> None:
    with pytest.raises(LockHeld):
        async with locks.lock("a", ttl=30, wait=20):
            pass


@pytest.fixture
async def upstreams(store: Store) -> Upstreams:
    made = Upstreams(store)
    await made.note_new_store()
    await made.put("a", window(1, 60))
    return made


async def test_an_upstream_whose_parts_do_not_agree(store: Store, upstreams: Upstreams) -> None:
    assert (await one(store, "upstreams")).found == "no contradiction in 1 upstream with 0 members"
    thing = upstreams.thing("a")
    await store.write(thing, "ZADD", thing.key("turns"), 1, "ghost")
    found = await one(store, "upstreams")
    assert found.level is Severity.PROBLEM
    assert found.found.startswith(
        "default/a contradicts itself: it counts what users share, and they share no limit (and"
    )
    assert f"delete the keys {thing.base}*" in found.advice
    await store.write(thing, "UNLINK", *(thing.key(name) for name in ("meta", "policy", "turns")))
    await upstreams.put("a", window(1, 60))
    assert (await one(store, "upstreams")).level is Severity.OK, "the advice helps"
    assert (await upstreams.status("a")).held_ms > 50_000, "nothing is sent for one window"


async def scanned(store: Store) -> list[Finding]:
    """Give all that `doctor` says of upstreams, also what it finds by a walk through the key space."""
    return [finding async for finding in data_checks.upstreams(store)]


@pytest.mark.topology("standalone")
async def test_who_may_not_walk_through_the_key_space_is_told_so(server: Topology, prefix: str) -> None:
    url = server.add_user(prefix, acl.rules("worker", prefix))
    async with open_store(StoreSettings(url=url, prefix=prefix)) as store:
        found = await scanned(store)
    assert [finding.level for finding in found] == [Severity.OK, Severity.OK]
    assert found[-1].found.startswith("not looked for: NOPERM")


async def test_keys_of_a_user_whom_no_list_names_are_found(store: Store, upstreams: Upstreams) -> None:
    thing = upstreams.thing("a")
    await store.write(thing, "ZADD", thing.key("done/%EC%82%AC%EA%B3%BC"), 1, "r1.1.1/1")
    (found,) = await scanned(store)
    assert found.level is Severity.PROBLEM
    assert "user 사과: there are keys, and the list of users has no such user" in found.found


async def test_an_upstream_that_the_list_has_lost_is_found(store: Store, upstreams: Upstreams) -> None:
    index = Index(store, "upstream")
    await store.write(index.home, "ZREM", index.home.key("names"), upstreams.thing("a").tag)
    _, found = await scanned(store)
    assert (found.level, found.found) == (Severity.PROBLEM, "default/a is served and is not in the list of upstreams")
    assert "headgate relay upstream set" in found.advice
    await upstreams.put("a", window(1, 60))
    (found,) = await scanned(store)
    assert found.level is Severity.OK, "the advice helps"


async def test_keys_of_an_upstream_that_is_gone_are_found(store: Store, upstreams: Upstreams) -> None:
    thing, index = upstreams.thing("a"), Index(store, "upstream")
    await upstreams.remove("a")
    assert await store.run(FORGET, thing, GONE_MS) == 1
    await store.write(index.home, "ZREM", index.home.key("names"), thing.tag)
    assert await store.run(SILENT, thing, 10) == []
    assert await store.run(BURY, thing, "u1", "r1", "0", 1000, user="u1") == b"0"
    assert await store.run(REAP, thing, "u1", 1000, user="u1") == 1
    assert await store.run(JOB_NEXT, thing, "u1", "r1", 1, 1000, user="u1") == [], "who comes late leaves no key"
    assert [finding.level for finding in await scanned(store)] == [Severity.OK], (
        "that it was removed stays known for a day"
    )
    await store.write(thing, "HSET", thing.key("state"), "pause", 1)
    await store.write(thing, "ZADD", thing.key("line/u1"), 1, "r1.1.1")
    _, found = await scanned(store)
    names = f"{thing.key('line/u1')}, {thing.key('state')}"
    assert (found.level, found.found) == (Severity.WARNING, f"2 keys are left of default/a, which is gone: {names}")
    assert "UNLINK" in found.advice
