"""Filters choose the same instances in the store and in Python, whatever people write."""

from __future__ import annotations

from secrets import token_hex

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.registry.filters import parse_filter, passes_all
from headgate.registry.model import OverrideChange, Record
from headgate.registry.registry import Registry
from headgate.store import Store
from tests.store.beside import store_beside
from tests.topology import Topology

WORDS = st.sampled_from(
    ["1", "1.0", "1.5", "-2", "1e3", "true", "false", "null", "gold", "GOLD", "", "0x10", "nan", "inf", "10", "9"]
)
VALUES = st.one_of(
    WORDS, st.booleans(), st.none(), st.sampled_from([1, 1.5, -2, 1000, 10, 9, 0, 2**53 + 1, 0.1, {}, [], ["gold"]]),
    st.integers(-(2**63), 2**63), st.floats(allow_nan=False, allow_infinity=False),
)  # fmt: skip
KEYS = st.sampled_from(["a", "b", "a.b"])
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=3)
FIELDS = st.one_of(
    st.builds("{}.{}".format, st.sampled_from(["metadata", "metrics", "performance", "systemInfo"]), KEYS),
    st.sampled_from(["weight", "enabled", "healthy", "draining", "hostname", "port", "instanceId", "ephemeral", "suspect"]),
)  # fmt: skip
FILTERS = st.one_of(
    st.builds("{}{}{}".format, FIELDS, st.sampled_from(["==", "!=", ">", ">=", "<", "<="]), WORDS),
    st.builds("{} in {}".format, FIELDS, st.lists(WORDS.filter(bool), min_size=1, max_size=3).map(",".join)),
    FIELDS.map("{} exists".format),
)
RECORDS = st.builds(
    Record,
    type=st.just("game"), group=st.just("g"), hostname=st.sampled_from(["", "gold", "1"]), port=st.sampled_from([None, 9, 10]),
    weight=st.sampled_from([0.0, 1.0, 1.5]), enabled=st.booleans(), healthy=st.booleans(), ephemeral=st.booleans(),
    metadata=OBJECTS, metrics=OBJECTS, system_info=OBJECTS,
)  # fmt: skip
OVERRIDES = st.sampled_from([OverrideChange(), OverrideChange(weight=10.0), OverrideChange(enabled=False, drain=True)])


async def compare(
    store: Store, records: list[tuple[Record, OverrideChange]], filters: list[str], healthy: bool | None
) -> None:
    registry = Registry(store)
    for number, (record, override) in enumerate(records):
        await registry.register("default", msgspec.structs.replace(record, instance_id=f"i{number}"))
        if override != OverrideChange():
            await registry.override("default", "game", "g", f"i{number}", override)
    parsed = [parse_filter(text) for text in filters]
    everyone = (await registry.discover("default", "game", "g")).instances
    here = [
        each for each in everyone
        if passes_all(each, parsed) and (healthy is None or each.available == healthy)
    ]  # fmt: skip
    for ask, who in ((Registry(store), "the store"), (registry, "what is known of the service")):
        found = (await ask.discover("default", "game", "g", healthy=healthy, filters=parsed)).instances
        assert sorted(each.instance_id for each in here) == sorted(each.instance_id for each in found), who


def test_the_store_and_python_choose_alike(server: Topology) -> None:
    with store_beside(server.url) as (run, store):

        @settings(max_examples=150, deadline=None)
        @given(
            records=st.lists(st.tuples(RECORDS, OVERRIDES), min_size=1, max_size=5),
            filters=st.lists(FILTERS, min_size=1, max_size=3),
            healthy=st.none() | st.booleans(),
        )
        def any_filters(records: list[tuple[Record, OverrideChange]], filters: list[str], healthy: bool | None) -> None:
            store.prefix = f"t{token_hex(4)}"
            run(compare(store, records, filters, healthy))

        any_filters()
