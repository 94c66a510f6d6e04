"""Keys of one thing share a slot, keys of two things never meet."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from valkey.crc import key_slot

from headgate.store import Store, Thing
from headgate.store.keys import split_tag
from tests.topology import Topology

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(names, names)
@example("a/b", "c")
@example("{", "}")
@example("}{", "%7B")
def test_all_keys_of_a_thing_share_the_slot_that_we_reckon(namespace: str, name: str) -> None:
    thing = Thing("hg", "queue", namespace, name)
    assert {key_slot(thing.key(suffix).encode()) for suffix in ("meta", "waiting", "line/{u}", "{x}")} == {thing.slot}


@given(st.tuples(names, names), st.tuples(names, names))
@example(("a", "b/c"), ("a/b", "c"))
@example(("a", "%2F"), ("a", "/"))
@example(("a", "b}:x"), ("a", "b"))
def test_two_things_have_no_key_in_common(one: tuple[str, str], other: tuple[str, str]) -> None:
    first, second = Thing("hg", "queue", *one), Thing("hg", "queue", *other)
    assert (first.key("meta") == second.key("meta")) == (one == other)
    assert (first == second) == (one == other)
    assert not first.key("meta").startswith(second.base) or one == other


@given(names, names)
def test_a_tag_gives_its_names_back(namespace: str, name: str) -> None:
    assert split_tag(Thing("hg", "queue", namespace, name).tag) == (namespace, name)


def test_a_key_looks_as_documented() -> None:
    assert Thing("hg", "queue", "default", "main").key("waiting") == "hg:queue:{default/main}:waiting"


async def test_the_server_reckons_the_same_slot(store: Store, server: Topology) -> None:
    if server.kind == "cluster":
        for name in ("main", "a.b:c", "x" * 128):
            thing = store.thing("queue", "default", name)
            assert server.nodes[0].command("CLUSTER", "KEYSLOT", thing.key("waiting")) == thing.slot
    assert store.thing("queue", "default", "main").base.startswith(f"{store.prefix}:")
