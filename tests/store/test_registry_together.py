"""Registrations that come together share a call to the store, and each has its own outcome."""

from __future__ import annotations

import asyncio

import pytest

from headgate.kit.problems import HeadgateError, InvalidRequest
from headgate.registry.model import Json, Record, Registered, check_json
from headgate.registry.problems import Evicted, ServiceFull, Superseded
from headgate.registry.registry import REGISTER, Registry
from headgate.registry.settings import RegistrySettings
from headgate.store import Store

pytestmark = pytest.mark.anyio


def record(name: str, **fields: object) -> Record:
    return Record(type="game", group="g", instance_id=name, **fields)  # type: ignore[arg-type]


async def test_one_refusal_concerns_nobody_else(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(store)
    await registry.register("default", record("evicted"))
    await registry.remove("default", "game", "g", "evicted", reason="evicted", evict_seconds=60)
    first = await registry.register("default", record("again"))
    await registry.register("default", record("again", hostname="newer"))
    calls = 0
    run = store.run

    async def counted(script: object, *arguments: object, **names: object) -> object:
        nonlocal calls
        calls += script is REGISTER
        return await run(script, *arguments, **names)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "run", counted)
    outcomes = await asyncio.gather(
        *(registry.register("default", record(f"i{number}")) for number in range(100)),
        registry.register("default", record("evicted")),
        registry.renew("default", record("again"), first.registration),
        return_exceptions=True,
    )
    assert calls <= 10
    assert all(isinstance(each, Registered) for each in outcomes[:100])
    made = [each for each in outcomes if isinstance(each, Registered)]
    assert len({each.registration for each in made}) == 100
    assert len({each.revision for each in made}) == 100
    assert isinstance(outcomes[100], Evicted)
    assert isinstance(outcomes[101], Superseded)
    listing = await registry.discover("default", "game", "g")
    assert {each.instance_id for each in listing.instances} == {"again", *(f"i{number}" for number in range(100))}


async def test_of_those_that_come_together_only_as_many_as_fit_are_taken(store: Store) -> None:
    registry = Registry(store, RegistrySettings(most_instances=10))
    outcomes = await asyncio.gather(
        *(registry.register("default", record(f"i{number}")) for number in range(25)), return_exceptions=True
    )
    assert sum(isinstance(each, Registered) for each in outcomes) == 10
    assert sum(isinstance(each, ServiceFull) for each in outcomes) == 15
    assert len((await registry.discover("default", "game", "g")).instances) == 10


async def test_the_same_id_twice_at_once_is_one_instance_and_the_later_wins(store: Store) -> None:
    registry = Registry(store)
    older, newer = await asyncio.gather(
        registry.register("default", record("i", hostname="a")), registry.register("default", record("i", hostname="b"))
    )
    assert older.registration < newer.registration
    (instance,) = (await registry.discover("default", "game", "g")).instances
    assert instance.hostname == "b"
    with pytest.raises(Superseded):
        await registry.renew("default", record("i", hostname="a"), older.registration)


async def test_a_refused_registration_leaves_no_trace(store: Store) -> None:
    registry = Registry(store)
    with pytest.raises(HeadgateError):
        await registry.renew("default", record("i"), 5)
    assert await registry.services("default") == ([], None)
    thing = registry.service("default", "game", "g")
    assert await store.read(thing, "EXISTS", thing.key("meta")) == 0


def nested(depth: int) -> Json:
    value: Json = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize("value", [nested(17), {"n": 2**64 + 1}, {"list": [[[-(2**65)]]]}])
def test_what_is_too_deep_or_too_large_is_refused(value: Json) -> None:
    with pytest.raises(InvalidRequest):
        check_json(value, "metadata")


@pytest.mark.parametrize("value", [nested(16), {"n": 2**64}, {"n": 2**63 - 1}, {"list": [[]] * 40}, {"t": "9" * 40}])
def test_what_fits_is_taken(value: Json) -> None:
    assert check_json(value, "metadata")
