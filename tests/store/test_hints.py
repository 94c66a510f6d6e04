"""Hints reach listeners; whoever may have missed one is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headgate.store import Store, StoreSettings, Thing, open_store
from tests.store.scripts import TELL
from tests.topology import FaultyProxy, Node, Standalone, Topology, eventually


async def heard(store: Store, thing: Thing, words: list[str | None]) -> None:
    """Make sure that a listener is subscribed: it is told None."""
    await eventually(lambda: None in words, 5, f"{thing} is subscribed")
    words.clear()


async def test_a_hint_reaches_every_listener_of_its_thing_and_no_other(store: Store) -> None:
    """Things in many slots: on a cluster their hints are published on every node and heard on one."""
    things = [store.thing("t", "default", f"x{n}") for n in range(12)]
    words: dict[int, list[str | None]] = {n: [] for n in range(12)}
    twice: list[str | None] = []
    listeners = [store.hints.listen(thing, "events", words[n].append) for n, thing in enumerate(things)]
    for listener in listeners:
        listener.__enter__()
    with store.hints.listen(things[0], "events", twice.append):
        for n, thing in enumerate(things):
            await heard(store, thing, words[n])
        for n, thing in enumerate(things):
            await store.run(TELL, thing, f"words-{n}")
        await eventually(lambda: all(words.values()))
        assert words == {n: [f"words-{n}"] for n in range(12)}
        assert twice[-1] == "words-0"
    for listener in listeners:
        listener.__exit__(None, None, None)


async def test_a_second_listener_is_told_at_once_that_it_may_have_missed_something(store: Store) -> None:
    thing = store.thing("t", "default", "x")
    first: list[str | None] = []
    second: list[str | None] = []
    with store.hints.listen(thing, "events", first.append):
        await heard(store, thing, first)
        with store.hints.listen(thing, "events", second.append):
            assert second == [None]


async def test_who_stopped_listening_hears_nothing(store: Store) -> None:
    thing = store.thing("t", "default", "x")
    gone: list[str | None] = []
    here: list[str | None] = []
    with store.hints.listen(thing, "events", gone.append):
        await heard(store, thing, gone)
    with store.hints.listen(thing, "events", here.append):
        await heard(store, thing, here)
        await store.run(TELL, thing, "words")
        await eventually(lambda: here == ["words"])
        assert gone == []


async def test_a_listener_that_fails_costs_the_others_nothing(store: Store) -> None:
    def failing(_: str | None) -> None:
        raise ValueError("a listener's mistake")

    thing = store.thing("t", "default", "x")
    words: list[str | None] = []
    with store.hints.listen(thing, "events", failing), store.hints.listen(thing, "events", words.append):
        await heard(store, thing, words)
        await store.run(TELL, thing, "one")
        await store.run(TELL, thing, "two")
        await eventually(lambda: words == ["one", "two"])


async def test_a_killed_subscriber_comes_back_and_says_that_hints_may_be_missing(
    store: Store, server: Topology
) -> None:
    thing = store.thing("t", "default", "x")
    words: list[str | None] = []
    with store.hints.listen(thing, "events", words.append):
        await heard(store, thing, words)
        assert sum(node.command("CLIENT", "KILL", "TYPE", "pubsub") for node in server.nodes if _is_store(node.name))
        await heard(store, thing, words)
        await store.run(TELL, thing, "after")
        await eventually(lambda: words == ["after"])


@pytest.mark.topology("standalone")
async def test_one_connection_serves_all_listeners(fresh_server: Callable[..., Standalone], prefix: str) -> None:
    server = fresh_server()
    async with open_store(StoreSettings(url=server.url, prefix=prefix, deadline_ms=10_000)) as store:
        words: list[str | None] = []
        thing = store.thing("t", "default", "x")
        with (
            store.hints.listen(thing, "events", words.append),
            store.hints.listen(thing, "other", words.append),
            store.hints.listen(store.thing("t", "default", "y"), "events", words.append),
        ):
            await eventually(lambda: len(words) == 3)
            assert subscribers(server.node) == 1
        await eventually(lambda: not server.node.command("PUBSUB", "CHANNELS"))
    await eventually(lambda: subscribers(server.node) == 0)


@pytest.mark.topology("standalone")
async def test_a_silent_connection_is_given_up(server: Standalone, prefix: str) -> None:
    """No reset comes: only the missing answer to a ping tells that nobody is there."""
    async with FaultyProxy(server.node.port) as proxy:
        async with open_store(StoreSettings(url=proxy.url, prefix=prefix, deadline_ms=10_000)) as store:
            thing = store.thing("t", "default", "x")
            words: list[str | None] = []
            with store.hints.listen(thing, "events", words.append):
                await heard(store, thing, words)
                silenced = set(proxy.links)
                proxy.blackhole()
                await eventually(lambda: not store.hints.connected, 12)
                proxy.heal()
                await heard(store, thing, words)
                assert not silenced & proxy.links
                await store.run(TELL, thing, "after")
                await eventually(lambda: words == ["after"])


def subscribers(node: Node) -> int:
    return str(node.command("CLIENT", "LIST", "TYPE", "pubsub")).count("id=")


def _is_store(name: str) -> bool:
    return not name.startswith("sentinel")
