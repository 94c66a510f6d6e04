"""The registry on a real store: registration, heartbeats, discovery, expiry, protection, overrides."""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec
import pytest

from headgate.kit.problems import InvalidRequest
from headgate.registry.filters import parse_filters
from headgate.registry.model import Check, CheckKind, Instance, InstanceBeat, OverrideChange, Record, Registered
from headgate.registry.problems import Evicted, ServiceFull, Superseded, UnknownInstance
from headgate.registry.registry import Registry
from headgate.registry.settings import RegistrySettings
from headgate.registry.sweep import Sweeper, SweepResult
from headgate.store import Store, Thing
from tests.store.stopped_clock import StoppedClock
from tests.topology import eventually

pytestmark = pytest.mark.anyio
NS = "default"


def record(id_: str = "", **fields: object) -> Record:
    return Record(type="game", group="kr-1", instance_id=id_, **fields)  # type: ignore[arg-type]


async def add(registry: Registry, id_: str = "", **fields: object) -> Registered:
    return await registry.register(NS, record(id_, **fields))


async def beat(registry: Registry, id_: str, **fields: object) -> int:
    return await registry.heartbeat(NS, "game", "kr-1", InstanceBeat(id_, **fields))  # type: ignore[arg-type]


async def ids(registry: Registry, **choice: object) -> list[str]:
    listing = await registry.discover(NS, "game", "kr-1", **choice)  # type: ignore[arg-type]
    return sorted(instance.instance_id for instance in listing.instances)


async def pass_time(clock: StoppedClock, sweeper: Sweeper, thing: Thing, from_ms: int, to_ms: int) -> list[SweepResult]:
    """Let time pass with a worker's visit every two seconds, as in a running system."""
    visits = []
    for ms in range(from_ms, to_ms + 1, 2000):
        clock.set(ms)
        visits.append(await sweeper.sweep(thing))
    return visits


async def history(registry: Registry, thing: Thing) -> list[tuple[str, str]]:
    return [(change.kind, change.member) for change in (await registry.feed.read(thing, 0)).changes]


@pytest.fixture
async def clock(store: Store) -> StoppedClock:
    return StoppedClock(store)


@pytest.fixture
async def registry(store: Store, clock: StoppedClock) -> Registry:
    return Registry(store)


@pytest.fixture
async def sweeper(registry: Registry) -> Sweeper:
    return Sweeper(registry)


@pytest.fixture
async def game(registry: Registry) -> Thing:
    return registry.service(NS, "game", "kr-1")


async def test_a_registered_instance_is_found_with_everything_it_said(registry: Registry) -> None:
    made = await add(
        registry, hostname="g1", private_ip="10.0.0.5", port=7000, metadata={"v": "1"}, performance={"tps": 3, "s": "x"},
        system_info={"cpu": 16},
    )  # fmt: skip
    assert len(made.instance_id) == 26
    (found,) = (await registry.discover(NS, "game", "kr-1")).instances
    assert found.metadata == {"v": "1"}
    assert found.metrics == found.performance == {"tps": 3, "s": "x"}
    assert (found.system_info, found.hostname, found.port) == ({"cpu": 16}, "g1", 7000)
    assert found.last_heartbeat.endswith("Z")
    assert found.available


async def test_registering_the_same_again_makes_no_revision_but_a_new_registration(registry: Registry) -> None:
    first = await add(registry, "a", hostname="h")
    second = await add(registry, "a", hostname="h")
    assert second.revision == first.revision
    assert second.registration > first.registration
    assert (await add(registry, "a", hostname="other")).revision > first.revision


async def test_an_older_registration_may_neither_beat_nor_remove(registry: Registry) -> None:
    old = await add(registry, "a")
    new = await add(registry, "a")
    with pytest.raises(Superseded):
        await beat(registry, "a", registration=old.registration)
    with pytest.raises(Superseded):
        await registry.remove(NS, "game", "kr-1", "a", registration=old.registration)
    assert await beat(registry, "a", registration=new.registration) == new.registration
    assert await ids(registry) == ["a"]


async def test_a_registration_repeated_with_its_nonce_is_the_same(registry: Registry) -> None:
    first = await registry.register(NS, record("a"), nonce="attempt-1")
    again = await registry.register(NS, record("a"), nonce="attempt-1", registration=0)
    assert (again.registration, again.revision) == (first.registration, first.revision)


async def test_one_that_comes_back_is_refused_if_another_has_its_id(registry: Registry, clock: StoppedClock) -> None:
    first = await add(registry, "a")
    await registry.remove(NS, "game", "kr-1", "a")
    back = await registry.register(NS, record("a"), nonce="attempt-1", registration=first.registration)
    assert back.registration > first.registration
    later = await add(registry, "a", hostname="later", ttl_seconds=5)
    with pytest.raises(Superseded):
        await registry.register(NS, record("a"), nonce="attempt-1", registration=first.registration)
    assert await beat(registry, "a", registration=later.registration) == later.registration
    clock.set(6_000)
    alone = await registry.register(NS, record("a"), nonce="attempt-1", registration=first.registration)
    assert alone.registration > later.registration, "nobody has it any more"


async def test_a_nonce_takes_out_what_it_registered_and_nobody_else(registry: Registry) -> None:
    old = await add(registry, "a")
    await registry.register(NS, record("a"), nonce="attempt-1")
    assert not await registry.remove(NS, "game", "kr-1", "a", nonce="attempt-0")
    assert await registry.locate(NS, "a") == ("game", "kr-1")
    with pytest.raises(Superseded):
        await registry.remove(NS, "game", "kr-1", "a", registration=old.registration, nonce="attempt-0")
    assert await ids(registry) == ["a"]
    assert await registry.remove(NS, "game", "kr-1", "a", registration=old.registration, nonce="attempt-1")
    await registry.register(NS, record("a"), nonce="attempt-2")
    assert await registry.remove(NS, "game", "kr-1", "a", nonce="attempt-2")
    assert await ids(registry) == []


async def test_heartbeats_and_metrics_make_no_revision_and_metadata_does(registry: Registry, game: Thing) -> None:
    made = await add(registry, "a", metadata={"v": 1})
    await beat(registry, "a")
    await beat(registry, "a", metrics={"load": 2})
    listing = await registry.discover(NS, "game", "kr-1")
    assert listing.revision == made.revision
    assert listing.instances[0].metrics == {"load": 2}
    await beat(registry, "a", metadata={"v": 1})
    assert (await registry.discover(NS, "game", "kr-1")).revision == made.revision
    await beat(registry, "a", metadata={"w": 2})
    listing = await registry.discover(NS, "game", "kr-1")
    assert listing.revision > made.revision
    assert listing.instances[0].metadata == {"w": 2}
    assert listing.instances[0].metrics == {"load": 2}
    assert await history(registry, game) == [("put", "a"), ("put", "a")]


async def test_a_heartbeat_with_the_record_registers_whoever_is_unknown(registry: Registry) -> None:
    with pytest.raises(UnknownInstance):
        await beat(registry, "a")
    made = await registry.renew(NS, record("a", hostname="x"))
    renewed = await registry.renew(NS, record("a", hostname="y"), made.registration)
    assert renewed.registration == made.registration
    assert (await registry.discover(NS, "game", "kr-1")).instances[0].hostname == "y"


async def test_a_late_heartbeat_after_remove_stays_removed(registry: Registry) -> None:
    made = await add(registry, "a")
    assert await registry.remove(NS, "game", "kr-1", "a")
    with pytest.raises(UnknownInstance):
        await beat(registry, "a")
    with pytest.raises(UnknownInstance):
        await registry.renew(NS, record("a"), made.registration)
    assert not await registry.remove(NS, "game", "kr-1", "a")
    assert await ids(registry) == []


async def test_the_dead_are_hidden_at_once_and_removed_with_one_event(
    clock: StoppedClock, registry: Registry, sweeper: Sweeper, game: Thing
) -> None:
    await add(registry, "a")
    await add(registry, "b", ttl_seconds=100)
    clock.set(30_500)
    assert await ids(registry) == ["b"]
    await asyncio.gather(*(sweeper.sweep(game) for _ in range(8)))
    assert await history(registry, game) == [("put", "a"), ("put", "b"), ("removed", "a")]
    with pytest.raises(UnknownInstance):
        await beat(registry, "a")


async def test_not_before_its_time_even_with_frequent_visits(
    clock: StoppedClock, registry: Registry, sweeper: Sweeper, game: Thing
) -> None:
    await add(registry, "a")
    visits = await pass_time(clock, sweeper, game, 2000, 28_000)
    assert not any(visit.removed for visit in visits)
    visits = await pass_time(clock, sweeper, game, 30_100, 30_100)
    assert visits[0].removed == ["a"]


async def test_a_persistent_instance_is_marked_and_comes_back_with_a_heartbeat(
    clock: StoppedClock, registry: Registry, sweeper: Sweeper, game: Thing
) -> None:
    await add(registry, "a", ephemeral=False)
    await sweeper.sweep(game)
    await pass_time(clock, sweeper, game, 2000, 32_000)
    (found,) = (await registry.discover(NS, "game", "kr-1")).instances
    assert not found.healthy
    assert await ids(registry, healthy=True) == []
    await pass_time(clock, sweeper, game, 34_000, 70_000)
    assert await history(registry, game) == [("put", "a"), ("put", "a")]
    await beat(registry, "a")
    assert await ids(registry, healthy=True) == ["a"]
    assert len(await history(registry, game)) == 3


async def test_after_an_absence_of_the_store_nobody_expires_for_one_lease(
    clock: StoppedClock, registry: Registry, sweeper: Sweeper, game: Thing
) -> None:
    for name in ("a", "b"):
        await add(registry, name)
    await sweeper.sweep(game)
    clock.set(180_000)
    assert await ids(registry) == ["a", "b"], "nobody could beat while the store was away"
    assert all(instance.suspect for instance in (await registry.discover(NS, "game", "kr-1")).instances)
    assert (await sweeper.sweep(game)).word == "held"
    await beat(registry, "a")
    visits = await pass_time(clock, sweeper, game, 182_000, 208_000)
    assert not any(visit.removed for visit in visits)
    await beat(registry, "a")
    visits = await pass_time(clock, sweeper, game, 210_500, 212_500)
    assert [name for visit in visits for name in visit.removed] == ["b"]


async def test_mass_expiry_is_held_then_let_go_slowly_and_leaves_by_itself(
    clock: StoppedClock, registry: Registry, sweeper: Sweeper, game: Thing
) -> None:
    for number in range(20):
        await add(registry, f"i{number:02}")
    await sweeper.sweep(game)
    await pass_time(clock, sweeper, game, 2000, 28_000)
    (visit,) = await pass_time(clock, sweeper, game, 30_500, 30_500)
    assert (visit.word, visit.removed) == ("protected", [])
    look = await registry.read_service(game)
    assert look.protection.active
    assert all(instance.suspect and instance.healthy for instance in look.instances)
    assert len(look.instances) == 20
    visits = await pass_time(clock, sweeper, game, 32_000, 58_000)
    assert not any(visit.removed for visit in visits)
    for number in range(5):
        await beat(registry, f"i{number:02}")
    visits = await pass_time(clock, sweeper, game, 60_600, 86_600)
    removed = [len(visit.removed) for visit in visits]
    assert max(removed) <= 4, "a tenth a second, visits are two seconds apart"
    assert sum(removed) == 15
    assert await ids(registry) == [f"i{number:02}" for number in range(5)]
    assert not (await registry.read_service(game)).protection.active


async def test_protection_ends_when_the_late_come_back(
    clock: StoppedClock, registry: Registry, sweeper: Sweeper, game: Thing
) -> None:
    names = [f"i{number:02}" for number in range(10)]
    for name in names:
        await add(registry, name)
    await pass_time(clock, sweeper, game, 0, 28_000)
    await pass_time(clock, sweeper, game, 30_500, 30_500)
    assert (await registry.read_service(game)).protection.active
    for name in names[1:]:
        await beat(registry, name)
    (visit,) = await pass_time(clock, sweeper, game, 32_500, 32_500)
    assert visit.removed == [names[0]]
    assert not (await registry.read_service(game)).protection.active


async def test_an_operator_switches_protection_off(
    clock: StoppedClock, registry: Registry, sweeper: Sweeper, game: Thing
) -> None:
    for number in range(10):
        await add(registry, f"i{number}")
    await pass_time(clock, sweeper, game, 0, 28_000)
    await pass_time(clock, sweeper, game, 30_500, 30_500)
    await registry.protect(NS, "game", "kr-1", "off")
    assert await ids(registry) == []
    assert len((await sweeper.sweep(game)).removed) == 10


async def test_clean_departures_and_small_services_trigger_no_protection(
    clock: StoppedClock, registry: Registry, sweeper: Sweeper, game: Thing
) -> None:
    for number in range(7):
        await add(registry, f"i{number}")
    await pass_time(clock, sweeper, game, 0, 28_000)
    (visit,) = await pass_time(clock, sweeper, game, 30_500, 30_500)
    assert (visit.word, len(visit.removed)) == ("swept", 7)


@pytest.mark.parametrize("odd", [1.0, 3600.0])
async def test_one_with_another_lease_changes_nothing_for_the_rest(
    clock: StoppedClock, registry: Registry, sweeper: Sweeper, game: Thing, odd: float
) -> None:
    names = [f"i{number}" for number in range(9)]
    for name in names:
        await add(registry, name, ttl_seconds=30.0)
    await registry.register(NS, Record(type="game", group="kr-1", instance_id="odd", ttl_seconds=odd, ephemeral=False))
    for ms in range(0, 34_000, 2000):
        clock.set(ms)
        await sweeper.sweep(game)
        if ms % 10_000 == 0:
            for name in names[1:]:
                await registry.heartbeat(NS, "game", "kr-1", InstanceBeat(name))
    assert await ids(registry) == [*names[1:], "odd"], "one death is no mass expiry"


async def test_the_longest_lease_is_waited_for_when_the_store_was_away(
    clock: StoppedClock, registry: Registry, sweeper: Sweeper, game: Thing
) -> None:
    await add(registry, "slow", ttl_seconds=60.0)
    await add(registry, "quick", ttl_seconds=5.0)
    await sweeper.sweep(game)
    clock.set(90_000)
    assert (await sweeper.sweep(game)).word == "held"
    await pass_time(clock, sweeper, game, 92_000, 130_000)
    await registry.heartbeat(NS, "game", "kr-1", InstanceBeat("slow"))
    await pass_time(clock, sweeper, game, 132_000, 152_000)
    assert await ids(registry) == ["slow"]


async def test_overrides_survive_re_registration_and_departure(registry: Registry) -> None:
    await add(registry, "a")
    changed = await registry.override(NS, "game", "kr-1", "a", OverrideChange(enabled=False, weight=7))
    assert (changed.enabled, changed.weight) == (False, 7)
    await add(registry, "a", weight=2.0)
    await registry.remove(NS, "game", "kr-1", "a")
    await add(registry, "a", weight=2.0)
    (found,) = (await registry.discover(NS, "game", "kr-1")).instances
    assert (found.enabled, found.weight) == (False, 7)
    changed = await registry.override(NS, "game", "kr-1", "a", OverrideChange(enabled=None, weight=None, drain=True))
    assert (changed.enabled, changed.weight, changed.draining) == (True, 2.0, True)
    assert await ids(registry, healthy=True) == []


async def test_an_evicted_instance_may_not_register_until_its_time_is_over(
    clock: StoppedClock, registry: Registry
) -> None:
    await add(registry, "a")
    await registry.remove(NS, "game", "kr-1", "a", reason="evicted", evict_seconds=60)
    with pytest.raises(Evicted, match="in 60 s"):
        await add(registry, "a")
    with pytest.raises(Evicted):
        await registry.renew(NS, record("a"))
    clock.set(61_000)
    await add(registry, "a")
    assert await ids(registry) == ["a"]


async def test_a_tombstone_outlives_no_override_and_an_override_outlives_its_tombstone(
    store: Store, clock: StoppedClock, registry: Registry, sweeper: Sweeper, game: Thing
) -> None:
    for name in ("a", "b"):
        await add(registry, name)
    await registry.override(NS, "game", "kr-1", "b", OverrideChange(enabled=False))
    await registry.remove(NS, "game", "kr-1", "b")
    for name in ("a", "b"):
        await registry.remove(NS, "game", "kr-1", name, reason="evicted", evict_seconds=60)
    clock.set(61_000)
    await sweeper.sweep(game)
    assert await store.read(game, "HKEYS", game.key("overrides")) == [b"b"]
    for name in ("a", "b"):
        await add(registry, name)
    found = {each.instance_id: each for each in (await registry.discover(NS, "game", "kr-1")).instances}
    assert (found["a"].override, found["b"].enabled) == (None, False)


async def test_who_moves_to_another_group_is_known_there(store: Store, registry: Registry) -> None:
    await add(registry, "a")
    await registry.register(NS, Record(type="game", group="us-1", instance_id="a"))
    await registry.remove(NS, "game", "kr-1", "a")
    for each in (registry, Registry(store)):
        assert await each.locate(NS, "a") == ("game", "us-1")


async def test_who_is_asked_for_by_its_id_alone_is_not_forgotten(
    store: Store, clock: StoppedClock, registry: Registry
) -> None:
    await add(registry, "long")
    for days in (20, 40, 60):
        clock.set(days * 86_400_000)
        assert await Registry(store).locate(NS, "long") == ("game", "kr-1")
        await registry.locations.forget(NS, "game/kr-1", [f"other{number}" for number in range(20)])
    clock.set(91 * 86_400_000)
    await registry.locations.forget(NS, "game/kr-1", [f"other{number}" for number in range(20)])
    with pytest.raises(UnknownInstance):
        await Registry(store).locate(NS, "long")


async def test_the_tag_follows_who_is_hidden_or_held(
    clock: StoppedClock, registry: Registry, sweeper: Sweeper, game: Thing
) -> None:
    for name in ("a", "b", *"cdefghij"):
        await add(registry, name)

    async def tag() -> str:
        return (await registry.read_service(game)).tag(by_metrics=False)

    seen = [await tag()]
    await pass_time(clock, sweeper, game, 0, 31_000)
    seen.append(await tag())
    assert len(await ids(registry)) == 10, "held"
    await registry.protect(NS, "game", "kr-1", "off")
    seen.append(await tag())
    assert await ids(registry) == []
    for name in ("a", "b"):
        await registry.heartbeat(NS, "game", "kr-1", InstanceBeat(name))
        seen.append(await tag())
    assert len(set(seen)) == len(seen), "each shows others"


async def test_all_groups_of_a_type_and_other_namespaces_apart(registry: Registry) -> None:
    for group in ("kr-1", "us-1"):
        await registry.register(NS, Record(type="game", group=group, instance_id="a"))
    await registry.register("other", Record(type="game", group="kr-1", instance_id="z"))
    await registry.register(NS, Record(type="game2", group="kr-1", instance_id="y"))
    listing = await registry.discover(NS, "game")
    assert sorted(instance.group for instance in listing.instances) == ["kr-1", "us-1"]
    assert set(listing.revisions or {}) == {"kr-1", "us-1"}
    assert {(each.type, each.group) for each in (await registry.services(NS))[0]} == {
        ("game", "kr-1"), ("game", "us-1"), ("game2", "kr-1"),
    }  # fmt: skip


async def test_filters_choose_in_the_store(registry: Registry) -> None:
    await add(registry, "a", metadata={"v": 2, "tier": "gold"}, metrics={"load": 0.5})
    await add(registry, "b", metadata={"v": 10}, metrics={"load": "high"})
    for text, wanted in {
        "metadata.v>9": ["b"], "metadata.tier!=gold": ["b"], "metadata.tier exists": ["a"], "metrics.load<1": ["a"],
        "metadata.v in 2,3": ["a"], "performance.load==high": ["b"], "instanceId==b": ["b"],
    }.items():  # fmt: skip
        assert await ids(registry, filters=parse_filters([text])) == wanted, text
    assert await ids(registry, filters=parse_filters(["metadata.v>1", "metadata.v<5"])) == ["a"]


@pytest.mark.parametrize("text", ["", "metadata", "x==1", "metadata.a = 1", "metadata.a in", "metadata.a exists 1"])
def test_what_is_not_a_filter_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_filters([text])


async def test_what_cannot_be_kept_is_refused(registry: Registry) -> None:
    deep: dict[str, object] = {}
    for _ in range(40):
        deep = {"d": deep}
    for bad in (
        record("a b"), record("x" * 65), record("é"), record(metadata={"a": "x" * 20_000}), record(metadata=deep),
        record(ttl_seconds=0.1), record(metrics={"a": 1 << 70}), msgspec.structs.replace(record(), type="a{b}"),
        record(hostname="a\nb"), record(metrics={"a": 1}, performance={"a": 2}),
    ):  # fmt: skip
        with pytest.raises(InvalidRequest):
            await registry.register(NS, bad)


async def test_a_service_takes_no_more_than_its_limit(store: Store) -> None:
    registry = Registry(store, RegistrySettings(most_instances=2))
    for name in ("a", "b", "a"):
        await add(registry, name)
    with pytest.raises(ServiceFull):
        await add(registry, "c")


async def test_ten_thousand_comings_and_goings_leave_nothing(store: Store) -> None:
    registry = Registry(store, RegistrySettings(history_seconds=1))
    sweeper = Sweeper(registry)
    game = registry.service(NS, "game", "kr-1")

    async def come_and_go(number: int) -> None:
        for turn in range(250):
            name = f"i{number}-{turn}"
            await add(registry, name)
            await registry.remove(NS, "game", "kr-1", name)

    await asyncio.gather(*(come_and_go(number) for number in range(40)))
    store.advance_clock(5000)
    await sweeper.step()
    assert (await registry.feed.read(game, 0)).outcome == "new"
    assert await registry.index.list(NS) == []
    for key in ("meta", "records", "states", "deadlines", "changes", "overrides", "memory"):
        assert await store.read(game, "EXISTS", game.key(key)) == 0, key
    assert await registry.locations.find(NS, "i0-0") is None


async def test_a_stepped_clock_kills_nobody_and_makes_nobody_immortal(
    store: Store, registry: Registry, sweeper: Sweeper, game: Thing
) -> None:
    await add(registry, "a")
    await sweeper.sweep(game)
    store.step_clock(60_000)
    assert (await sweeper.sweep(game)).removed == []
    assert await ids(registry) == ["a"]
    store.step_clock(-60_000)
    await beat(registry, "a")
    assert await ids(registry) == ["a"]
    (deadline,) = cast("list[bytes]", [await store.read(game, "ZSCORE", game.key("deadlines"), "a")])
    look = await registry.read_service(game)
    assert 0 < float(deadline) - look.now_ms <= 30_000, "the lease is still one lease long"


async def test_heartbeats_know_the_service_from_the_id_alone(store: Store, registry: Registry) -> None:
    await add(registry, "a")
    assert await Registry(store).locate(NS, "a") == ("game", "kr-1")
    with pytest.raises(UnknownInstance):
        await registry.locate("other", "a")


async def test_what_is_written_straight_from_the_store_is_what_the_structs_say(
    store: Store, clock: StoppedClock, registry: Registry, sweeper: Sweeper, game: Thing
) -> None:
    check = Check(kind=CheckKind.TCP, port=80)
    await add(registry, "a", metadata={"k": [1, None]}, metrics={"x": 1.5}, system_info={"cpu": 2}, port=7, check=check)
    await add(registry, "b", healthy=False, ephemeral=False)
    await add(registry, "c", ttl_seconds=2)
    await registry.override(NS, "game", "kr-1", "a", OverrideChange(weight=3, drain=True))
    await sweeper.sweep(game)
    for advance in (0, 3000, 60_000):
        clock.set(advance)
        for _ in range(2):  # the second time from what is known
            look = await registry.read_service(game)
            assert msgspec.json.decode(look.body, type=list[Instance]) == look.instances
        await beat(registry, "a", metrics={"x": advance})
        look = await registry.read_service(game)
        assert look.instances[0].metrics == {"x": advance}
        assert look.instances == (await Registry(store).read_service(game)).instances


async def test_a_service_that_was_empty_is_swept_in_time_again(store: Store) -> None:
    """An empty service is visited rarely; a registration, and the heartbeat of a marked instance, change that at once."""
    registry = Registry(store)
    sweeper = Sweeper(registry)
    await add(registry, "a")
    await registry.remove(NS, "game", "kr-1", "a")
    game = registry.service(NS, "game", "kr-1")
    assert (await sweeper.sweep(game)).next_ms == 60_000
    await add(registry, "b", ephemeral=False, ttl_seconds=2)

    async def marked() -> bool:
        await sweeper.step()
        return (
            not (await registry.discover(NS, "game", "kr-1")).instances[0].healthy
            and len(await history(registry, game)) == 4
        )

    await eventually(marked, 2 + 1.5)
    await beat(registry, "b")
    assert (await sweeper.sweep(game)).next_ms <= 2000
