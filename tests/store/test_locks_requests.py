"""Several requests in one holder's name, as clients over HTTP make them when they hear nothing: the last one counts."""

from __future__ import annotations

import asyncio

import msgspec

from headgate.locks import Locks
from headgate.locks.model import Grant, LockRequest
from tests.store.lock_world import LONG_TTL, are_waiting, is_free, is_held, within
from tests.topology import eventually


def wants(locks: Locks, count: int = 2) -> list[LockRequest]:
    """Give what a first and a second request ask for, and more if asked."""
    want = locks.lock("a", ttl=LONG_TTL).request
    return [msgspec.structs.replace(want, request_id=f"r{n + 1}") for n in range(count)]


async def test_what_a_later_request_has_got_is_not_given_back_by_an_earlier_one(locks: Locks) -> None:
    first, second, third = wants(locks, 3)
    grant = await locks.grant(first, "me")
    assert (await locks.grant(second, "me")).fence == grant.fence
    await locks.withdraw(first, "me")
    assert await is_held(locks)
    await locks.withdraw(second, "me")
    assert await is_free(locks)
    await locks.grant(third, "me")
    await locks.withdraw(second, "me")
    assert await is_held(locks)
    await locks.withdraw(third, "me")
    assert await is_free(locks)
    await locks.grant(first, "me")
    await locks.release_as("default", "a", "me")
    assert await is_free(locks)


async def test_a_place_that_a_later_request_waits_in_is_not_left_by_an_earlier_one(locks: Locks, other: Locks) -> None:
    first, second = wants(locks)
    held = await other.lock("a", ttl=LONG_TTL).acquire()
    waits = [asyncio.create_task(locks.grant(first, "me"))]
    await eventually(lambda: are_waiting(other, 1))
    waits.append(asyncio.create_task(other.grant(second, "me")))
    await eventually(lambda: _last_request(other, "r2"))
    waits[0].cancel()
    await asyncio.wait(waits[:1])
    await locks.withdraw(first, "me")
    assert await are_waiting(other, 1)
    await held.release()
    grant = await within(5, waits[1])
    await locks.withdraw(first, "me")
    assert (await other.show("a")).fence == grant.fence
    await other.withdraw(second, "me")
    assert await is_free(other)


async def test_a_lock_that_was_handed_over_is_given_back_by_the_request_that_waited(locks: Locks) -> None:
    first, second = wants(locks)
    held = await locks.lock("a", ttl=LONG_TTL).acquire()
    waiting = asyncio.create_task(locks.grant(second, "me"))
    await eventually(lambda: are_waiting(locks, 1))
    await held.release()
    await within(5, waiting)
    await locks.withdraw(first, "me")
    assert await is_held(locks)
    await locks.withdraw(second, "me")
    assert await is_free(locks)


async def test_two_who_wait_in_one_name_are_both_told(locks: Locks) -> None:
    held = await locks.lock("a", ttl=LONG_TTL).acquire()
    waits: list[asyncio.Task[Grant]] = []
    for want in wants(locks, 3):
        waits.append(asyncio.create_task(locks.grant(want, "me")))
        await eventually(lambda: _in_line(locks, len(waits)))
    waits[0].cancel()
    await asyncio.wait(waits[:1])
    await held.release()
    fences = {grant.fence for grant in await within(5, asyncio.gather(*waits[1:]))}
    assert fences == {(await locks.show("a")).fence}
    await locks.release_as("default", "a", "me")


async def _last_request(locks: Locks, request: str) -> bool:
    thing = locks.thing("a")
    value = await locks.store.read(thing, "HGET", thing.key("waiters"), "me")
    return isinstance(value, bytes) and value.split()[1] == request.encode()


def _in_line(locks: Locks, count: int) -> bool:
    """Tell whether so many of this process stand in line, whatever their names."""
    line = locks._lines.get(locks.thing("a"))
    return line is not None and len(line._waiters) == count
