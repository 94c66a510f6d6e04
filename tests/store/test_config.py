"""The promises of config, on a real store: versions, compare-and-set, history, rollback, watches, secrets."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import aclosing
from typing import cast

import pytest

from headgate.config.config import Config
from headgate.config.live_settings import DEFINITIONS, NAMESPACE, LiveSettings
from headgate.config.model import MASK, ContentType, Draft, Update, Value, check_key, parse
from headgate.config.problems import ContentInvalid, NamespaceFull, UnknownKey, UnknownVersion
from headgate.config.settings import ConfigSettings
from headgate.config.watch import Step, follow
from headgate.kit.problems import InvalidRequest, StoreUnavailable, TooLarge, VersionConflict
from headgate.store import Store, StoreSettings, open_store
from headgate.store.watch.feed import Reset, Snapshot
from tests.topology import FaultyProxy, Standalone, Topology, eventually

pytestmark = pytest.mark.anyio
NS = "shop"


@pytest.fixture
async def config(store: Store) -> Config:
    return Config(store)


async def put(config: Config, key: str, content: str, expected: int | None = None, **fields: object) -> int:
    draft = Draft(key, content, expected=expected, **fields)  # type: ignore[arg-type]
    return (await config.publish(NS, [draft], author="ann", reason="because"))[key].version


async def test_versions_count_up_and_remember_who_and_why(config: Config) -> None:
    assert [await put(config, "a", text) for text in ("one", "two", "three")] == [1, 2, 3]
    value = await config.get(NS, "a")
    assert (value.content, value.version, value.updated_by, value.reason) == ("three", 3, "ann", "because")
    history = await config.history(NS, "a")
    assert [each.version for each in history] == [3, 2, 1]
    assert "-two" in (history[0].diff or "")
    assert "+three" in (history[0].diff or "")


async def test_of_fifty_publishers_exactly_one_wins(store: Store) -> None:
    configs = [Config(store) for _ in range(50)]
    await put(configs[0], "a", "start")

    async def attempt(number: int) -> int:
        try:
            return await put(configs[number], "a", f"by {number}", 1)
        except VersionConflict as error:
            return -int(str(error.members["version"]))

    # The losers are told the version that is there now.
    assert sorted(await asyncio.gather(*(attempt(number) for number in range(50)))) == [-2] * 49 + [2]
    assert len(await configs[0].history(NS, "a")) == 2


async def test_creating_only_and_changing_only_what_is_there(config: Config) -> None:
    assert await put(config, "a", "x", 0) == 1
    with pytest.raises(VersionConflict):
        await put(config, "a", "y", 0)
    with pytest.raises(VersionConflict):
        await put(config, "b", "y", 1)


async def test_a_deletion_takes_a_version_and_versions_are_never_reused(config: Config) -> None:
    await put(config, "a", "x")
    await config.publish(NS, [Draft("a", None, expected=1)], author="ann")
    with pytest.raises(UnknownKey):
        await config.get(NS, "a")
    assert await put(config, "a", "again", 0) == 3
    assert [(each.version, each.kind) for each in await config.history(NS, "a")] == [
        (3, "put"),
        (2, "removed"),
        (1, "put"),
    ]


async def test_a_batch_is_all_or_none_at_one_revision(config: Config) -> None:
    await put(config, "a", "x")
    with pytest.raises(VersionConflict):
        await config.publish(NS, [Draft("b", "1"), Draft("a", "2", expected=7)], author="ann")
    assert [value.key for value in (await config.read(NS)).values] == ["a"]
    with pytest.raises(ContentInvalid):
        await config.publish(NS, [Draft("b", "1"), Draft("c", "{", ContentType.JSON)], author="ann")
    made = await config.publish(NS, [Draft("b", "1"), Draft("a", "2", expected=1)], author="ann")
    assert {key: each.version for key, each in made.items()} == {"a": 2, "b": 1}
    assert len({each.revision for each in made.values()}) == 1


async def test_rollback_publishes_the_old_content_anew(config: Config) -> None:
    for text in ("one", "two"):
        await put(config, "a", text)
    made = await config.roll_back(NS, "a", 1, author="bob")
    value = await config.get(NS, "a")
    assert (made.version, value.content, value.updated_by, value.reason) == (3, "one", "bob", "back to version 1")
    with pytest.raises(UnknownVersion):
        await config.roll_back(NS, "a", 9, author="bob")


async def test_retention_is_bounded_by_count_and_age(store: Store) -> None:
    config = Config(store, ConfigSettings(kept_versions=5, kept_days=1))
    for number in range(12):
        await put(config, "a", str(number))
    assert [each.version for each in await config.history(NS, "a")] == [12, 11, 10, 9, 8]
    store.advance_clock(2 * 86_400_000)
    for number in range(3):
        await put(config, "a", f"late {number}")
    kept = [each.version for each in await config.history(NS, "a")]
    assert kept[0] == 15
    assert min(kept) >= 12, "only the newest of the old survives"


@pytest.mark.parametrize(
    ("type_", "bad", "line", "column"),
    [
        ("json", '{\n  "a": }', 2, 8), ("toml", "a = 1\nb = ", 2, 5), ("yaml", "a: 1\nb: [", 2, 5),
        ("properties", "a=1\nb=\\u12g4", 2, 3),
    ],
)  # fmt: skip
async def test_bad_content_is_refused_with_its_position(
    config: Config, type_: str, bad: str, line: int, column: int
) -> None:
    with pytest.raises(ContentInvalid) as caught:
        await put(config, "a", bad, content_type=ContentType(type_))
    assert (caught.value.members["line"], caught.value.members["column"]) == (line, column), caught.value.detail
    assert (await config.read(NS)).values == []


def test_each_type_is_read() -> None:
    assert parse('{"a": [1, null]}', ContentType.JSON) == {"a": [1, None]}
    assert parse("[a]\nb = 1", ContentType.TOML) == {"a": {"b": 1}}
    assert parse("a: [1, x]", ContentType.YAML) == {"a": [1, "x"]}
    text = "# c\na.b = 1\nc : two words\nd\\ e=f\\\n  g\nh=\\u00e9\\n"
    assert parse(text, ContentType.PROPERTIES) == {"a.b": "1", "c": "two words", "d e": "fg", "h": "é\n"}


@pytest.mark.parametrize("key", ["", "a b", "/a", "a//b", "a/", "..", "a/../b", "watch", "a/history", "x" * 129, "é"])
def test_keys_that_cannot_be_are_refused(key: str) -> None:
    with pytest.raises(InvalidRequest):
        check_key(key)


@pytest.mark.parametrize(
    "key", ["gray", "schemas", "gray/a", "a/schemas", "watch/a", "history/b/c", "rollback/x", "a/b/gray"]
)
async def test_reserved_words_begin_and_end_no_new_key_and_an_old_one_can_be_read_and_deleted(
    store: Store, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(store)
    with pytest.raises(InvalidRequest, match=f"The key {key} begins or ends with"):
        await put(config, key, "x")
    with monkeypatch.context() as before:
        before.setattr("headgate.config.config.check_new_key", check_key)
        await put(config, key, "old")
    assert (await config.get(NS, key)).content == "old"
    assert [each.version for each in await config.history(NS, key)] == [1]
    await config.publish(NS, [Draft(key, None)], author="test")
    with pytest.raises(UnknownKey):
        await config.get(NS, key)


async def test_reserved_words_may_be_in_the_middle_or_in_a_name(store: Store) -> None:
    config = Config(store)
    for key in ("a/gray/b", "grayscale", "a/watchers", "schemas.v1"):
        await put(config, key, "x")


async def test_too_much_is_refused(store: Store) -> None:
    config = Config(store, ConfigSettings(most_bytes=10, most_keys=2))
    with pytest.raises(TooLarge):
        await put(config, "a", "x" * 11)
    for key in ("a", "b"):
        await put(config, key, "x")
    with pytest.raises(NamespaceFull, match="2 keys"):
        await put(config, "c", "x")


async def test_a_namespace_is_bounded_by_what_its_values_weigh(store: Store) -> None:
    config = Config(store, ConfigSettings(namespace_bytes=4096))
    for key in ("a", "b", "a"):
        await put(config, key, "x" * 1500)
    with pytest.raises(NamespaceFull, match="4096 bytes"):
        await put(config, "c", "x" * 1500)
    await put(config, "a", "y" * 1500)  # no more than was there
    await config.publish(NS, [Draft("a", None)], author="ann")
    await put(config, "c", "x" * 1500)
    thing = config.space(NS)
    kept = cast("list[bytes]", await store.read(thing, "HVALS", thing.key("values")))
    assert await store.read(thing, "HGET", thing.key("meta"), "size") == str(sum(map(len, kept))).encode()


async def test_the_longest_deleted_key_makes_room(store: Store) -> None:
    config = Config(store, ConfigSettings(most_keys=2))
    for content in ("one", "two", None):
        await config.publish(NS, [Draft("a", content)], author="ann")
    await put(config, "b", "x")
    await config.publish(NS, [Draft("b", None)], author="ann")
    assert await put(config, "c", "x") == 4, "above all that the forgotten one had"
    with pytest.raises(UnknownKey):
        await config.history(NS, "a")
    assert [each.version for each in await config.history(NS, "b")] == [2, 1]
    assert await put(config, "b", "back") == 3
    with pytest.raises(NamespaceFull):
        await put(config, "a", "x")


@pytest.mark.parametrize("seed", range(3))
async def test_keys_that_come_and_go_never_fill_a_namespace_nor_reuse_a_version(store: Store, seed: int) -> None:
    rng = random.Random(seed)
    config = Config(store, ConfigSettings(most_keys=5))
    live: set[str] = set()
    seen: dict[str, int] = {}
    for _ in range(150):
        keys = rng.sample([f"k{n}" for n in range(12)], rng.randint(1, 3))
        drafts = [Draft(key, None if key in live else "x") for key in keys]
        after = live.symmetric_difference(keys)
        # A key that goes in the same publish still has its history, and its place with it.
        if len(live | after) > 5:
            with pytest.raises(NamespaceFull):
                await config.publish(NS, drafts, author="ann")
            continue
        for key, made in (await config.publish(NS, drafts, author="ann")).items():
            assert made.version > seen.get(key, 0)
            seen[key] = made.version
        live = after
        assert {value.key for value in (await config.read(NS)).values} == live
    assert len(seen) == 12


def test_a_secret_is_masked() -> None:
    assert Value("a", 1, "hush", secret=True).masked().content == MASK
    assert Value("a", 1, "open").masked().content == "open"


async def test_what_was_secret_shows_in_no_difference(config: Config) -> None:
    await put(config, "a", "hush one", secret=True)
    await config.publish(NS, [Draft("a", None)], author="ann")
    await put(config, "a", "hush two")
    await put(config, "a", "open", secret=False)
    await put(config, "a", "wide open")
    masked = await config.history(NS, "a", clear=False)
    assert "hush" not in str(masked)
    assert [each.diff is None for each in masked] == [False, True, True, True, True]
    assert "hush two" in str(await config.history(NS, "a"))


async def test_a_secret_stays_one_when_it_is_deleted_made_again_or_rolled_back(config: Config) -> None:
    await put(config, "a", "harmless")
    await put(config, "a", "hush", secret=True)
    await config.publish(NS, [Draft("a", None)], author="ann")
    await put(config, "a", "hush again")
    assert (await config.get(NS, "a")).secret
    await config.roll_back(NS, "a", 1, author="ann")
    assert (await config.get(NS, "a")).secret


async def test_a_content_type_that_nobody_names_stays_what_it_was(config: Config) -> None:
    await put(config, "a", "{}", content_type=ContentType.JSON)
    await put(config, "a", '{"b": 1}')
    assert (await config.get(NS, "a")).content_type is ContentType.JSON
    with pytest.raises(ContentInvalid):
        await put(config, "a", "not json")
    await put(config, "new", "words")
    assert (await config.get(NS, "new")).content_type is ContentType.TEXT


@pytest.mark.parametrize(("content", "column"), [("NaN", 1), ('{"NaN": Infinity}', 9), ('["\\"", -Infinity]', 8)])
def test_what_only_python_calls_json_is_refused_where_it_stands(content: str, column: int) -> None:
    with pytest.raises(ContentInvalid) as caught:
        parse(content, ContentType.JSON)
    assert caught.value.members["column"] == column, caught.value.detail


async def test_a_history_with_skipped_versions_is_read_whole(config: Config, store: Store) -> None:
    thing = config.space(NS)
    for number in range(12):
        await put(config, "a", str(number))
        await store.write(thing, "HSET", thing.key("meta"), "replid", f"{number:040d}", "was", "")
    versions = [each.version for each in await config.history(NS, "a")]
    assert versions == [1 + 101 * number for number in reversed(range(12))]
    assert [each.version for each in await config.history(NS, "a", most=3, before=versions[2])] == versions[3:6]


async def test_the_history_of_changes_is_bounded_by_its_weight(store: Store) -> None:
    config = Config(store, ConfigSettings(history_bytes=65_536))
    thing = config.space(NS)
    for number in range(100):
        await put(config, "a", f"{number:05d}" * 2000)
        length = cast("int", await store.read(thing, "XLEN", thing.key("changes")))
        assert length <= 7, "64 kB are six contents of 10 kB"
    async with aclosing(follow(config, NS, 1)) as steps:
        assert isinstance(await anext(steps), Reset)
        present = await anext(steps)
    assert isinstance(present, Snapshot)
    assert present.items[0].version == 100


async def test_a_large_yaml_does_not_hold_up_the_others(config: Config) -> None:
    text = "\n".join(f"key{number}: [1, 2, {{a: b}}]" for number in range(1500))
    whole, ours = time.process_time(), time.thread_time()
    publishing = asyncio.ensure_future(put(config, "a", text, content_type=ContentType.YAML))
    answers = 0
    while not publishing.done():
        await config.read(NS)
        answers += 1
        await asyncio.sleep(0.01)
    whole, ours = time.process_time() - whole, time.thread_time() - ours
    assert await publishing == 1
    assert answers > 1
    assert ours < whole / 2, "another thread reads it; how often we come to our turn meanwhile is the machine's affair"


async def test_own_settings_are_checked_before_they_are_published(store: Store) -> None:
    config = Config(store, definitions={NAMESPACE: DEFINITIONS})
    with pytest.raises(InvalidRequest):
        await config.publish(NAMESPACE, [Draft("nonsense", "1", ContentType.JSON)], author="ann")
    with pytest.raises(ContentInvalid):
        await config.publish(NAMESPACE, [Draft("log/level", '{"level": "loud"}', ContentType.JSON)], author="ann")
    await config.publish(NAMESPACE, [Draft("log/level", '{"level": "debug"}')], author="ann")
    assert (await config.get(NAMESPACE, "log/level")).content_type == ContentType.JSON
    with pytest.raises(ContentInvalid):
        await config.publish(NAMESPACE, [Draft("alerts/target", '{"url": "hook"}', ContentType.JSON)], author="ann")
    for url in ("https://", "https:///path", "ftp://host", "http://host:port", "http://a b"):
        with pytest.raises(ContentInvalid, match="with a host"):
            await config.publish(NAMESPACE, [Draft("alerts/target", f'{{"url": "{url}"}}')], author="ann")
    with pytest.raises(ContentInvalid, match="nope is no class of routes"):
        await config.publish(NAMESPACE, [Draft("edge/limits", '{"perSecond": {"nope": 20}}')], author="ann")
    target = Draft("alerts/target", '{"key": "routing"}', ContentType.JSON, secret=False)
    await config.publish(NAMESPACE, [target], author="ann")
    assert (await config.get(NAMESPACE, "alerts/target")).secret, "whoever knows it may speak in our name"


async def test_own_settings_that_were_lost_stay_in_force_until_they_are_taken_back(store: Store) -> None:
    config = Config(store, definitions={NAMESPACE: DEFINITIONS})
    levels: list[str] = []
    limits: list[dict[str, float]] = []
    apply = {
        "log/level": lambda found: levels.append(found.level),
        "edge/limits": lambda found: limits.append(found.per_second),
    }
    dynamic = LiveSettings(lambda: follow(config, NAMESPACE, None), apply)
    running = asyncio.ensure_future(dynamic.run())

    async def publish(content: str | None) -> None:
        await config.publish(NAMESPACE, [Draft("log/level", content, ContentType.JSON)], author="ann")

    await publish('{"level": "debug"}')
    await eventually(lambda: levels[-1:] == ["debug"])
    thing = config.space(NAMESPACE)
    await store.write(thing, "DEL", *(thing.key(part) for part in ("meta", "values", "versions", "past", "changes")))
    # History begins anew, and does not know of the level.
    other = Draft("edge/limits", '{"perSecond": {"entry": 5}}', ContentType.JSON)
    await config.publish(NAMESPACE, [other], author="ann")
    await eventually(lambda: limits[-1:] == [{"entry": 5}])
    await publish('{"level": "info"}')
    await eventually(lambda: levels[-1:] == ["info"])
    assert levels[levels.index("debug") :] == ["debug", "info"]
    await publish(None)
    await eventually(lambda: levels[-1:] == [""])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def collect(config: Config, seen: list[Step], after: int | None = None) -> None:
    async with aclosing(follow(config, NS, after)) as steps:
        async for step in steps:
            seen.append(step)  # noqa: PERF401  # one by one, as they come


def texts(seen: list[Step]) -> list[tuple[str, str, int]]:
    return [
        (value.kind, value.content, value.version) for step in seen if isinstance(step, Update) for value in step.values
    ]


async def test_late_listeners_get_the_present_then_every_change(config: Config) -> None:
    await put(config, "a", "one")
    seen: list[Step] = []
    watching = asyncio.ensure_future(collect(config, seen))
    await eventually(lambda: len(seen) == 2)
    assert isinstance(seen[0], Snapshot)
    assert [value.content for value in seen[0].items] == ["one"]
    await config.publish(NS, [Draft("a", None, expected=1)], author="ann")
    await put(config, "a", "new")
    await eventually(lambda: len(texts(seen)) == 2)
    assert texts(seen) == [("removed", "", 2), ("put", "new", 3)]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_of_publishes_that_were_missed_each_key_comes_once_in_order(config: Config) -> None:
    revision = (await config.publish(NS, [Draft("z", "start")], author="ann"))["z"].revision
    for texts_ in ({"a": "1", "b": "1"}, {"a": "2", "c": "1"}, {"b": "2"}, {"d": "1"}):
        await config.publish(NS, [Draft(key, text) for key, text in texts_.items()], author="ann")
    await config.publish(NS, [Draft("d", None)], author="ann")
    seen: list[Step] = []
    watching = asyncio.ensure_future(collect(config, seen, revision))
    await eventually(lambda: len(texts(seen)) == 4)
    updates = [[(value.key, value.version) for value in step.values] for step in seen if isinstance(step, Update)]
    assert updates == [[("a", 2), ("c", 1)], [("b", 2)], [("d", 2)]]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_whoever_was_away_sees_only_the_latest_once(config: Config) -> None:
    await put(config, "a", "one")
    revision = (await config.read(NS)).revision
    for text in ("two", "three", "four"):
        await put(config, "a", text)
    await put(config, "b", "other")
    seen: list[Step] = []
    watching = asyncio.ensure_future(collect(config, seen, revision))
    await eventually(lambda: len(texts(seen)) == 2)
    assert texts(seen) == [("put", "four", 4), ("put", "other", 1)]
    assert [each.content for each in await config.history(NS, "a")] == ["four", "three", "two", "one"]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.topology("standalone")
@pytest.mark.parametrize("seed", range(3))
async def test_random_histories_are_linear_and_watchers_end_equal(seed: int) -> None:
    """Publishers race over a connection that loses replies; the history is one line and every watcher ends at its end."""
    chance = random.Random(seed)
    with Standalone() as server:
        async with (
            FaultyProxy(server.node.port) as proxy,
            open_store(StoreSettings(url=proxy.url, prefix="t")) as faulty,
            open_store(StoreSettings(url=server.url, prefix="t")) as truth,
        ):
            racing, beside = Config(faulty), Config(truth)
            known: dict[str, Value] = {}
            won: dict[tuple[str, int], str] = {}

            async def watch() -> None:
                while True:
                    try:
                        async with aclosing(follow(racing, NS, None)) as steps:
                            async for step in steps:
                                if isinstance(step, Snapshot):
                                    known.clear()
                                    known.update({value.key: value for value in step.items})
                                elif isinstance(step, Update):
                                    for value in step.values:
                                        if value.kind == "put":
                                            known[value.key] = value
                                        else:
                                            known.pop(value.key, None)
                    except StoreUnavailable:
                        await asyncio.sleep(0.05)

            watching = asyncio.ensure_future(watch())
            for turn in range(120):
                key = chance.choice("abc")
                expected = chance.choice([None, None, 0, turn // 6])
                fault = chance.random()
                if fault < 0.08:
                    proxy.drop_replies(cut=True)
                    asyncio.get_running_loop().call_later(0.05, proxy.heal)
                elif fault < 0.2:
                    asyncio.get_running_loop().call_later(chance.random() * 0.005, proxy.cut)
                content = None if chance.random() < 0.15 else f"turn {turn}"
                try:
                    made = await racing.publish(NS, [Draft(key, content, expected=expected)], author="x")
                except (VersionConflict, StoreUnavailable):
                    continue
                assert (key, made[key].version) not in won, "no version is given twice"
                won[key, made[key].version] = content or ""
            proxy.heal()
            present = {value.key: value for value in (await beside.read(NS)).values}
            for key in "abc":
                history = await beside.history(NS, key, most=200)
                assert [each.version for each in history] == list(range(len(history), 0, -1)), "one line, no gap"
                for each in history:
                    if (key, each.version) in won:
                        assert won[key, each.version] == each.content
                assert (history[0].kind == "put") == (key in present)
            await eventually(lambda: known == present, 20)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.topology("standalone")
async def test_versions_that_may_have_been_seen_are_not_given_again_after_a_restart(fresh_server: object) -> None:
    server = fresh_server()  # type: ignore[operator]
    assert isinstance(server, Topology)
    async with open_store(StoreSettings(url=server.url, prefix="t")) as store:
        config = Config(store)
        await put(config, "a", "one")
        await server.fail_over()

        async def again() -> bool:
            try:
                return await put(config, "a", "two") > 2
            except StoreUnavailable:
                return False

        await eventually(again, 15)
        assert (await config.history(NS, "a"))[-1].version == 1
