"""Connecting: by every kind of URL, with TLS and passwords, and what people read when it does not work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headgate.kit.problems import Closed, HeadgateError, InvalidRequest, StoreRefused, StoreUnavailable
from headgate.store import Index, Store, StoreSettings, acl, open_store
from headgate.store.client.address import Endpoint, StoreKind, parse_address
from headgate.store.client.link import Link
from headgate.store.client.route import ClusterRoute
from tests.store.scripts import TALLY
from tests.topology import (
    HOST,
    Authority,
    Cluster,
    Redis,
    Sentinel,
    Standalone,
    Stopwatch,
    TlsNode,
    Topology,
    eventually,
    free_port,
)

PASSWORD = "p:a/s@s w%rd"
QUOTED = "p%3Aa%2Fs%40s%20w%25rd"

standalone_only = pytest.mark.topology("standalone")


async def works(url: str, prefix: str, **more: object) -> None:
    """Open, write and read."""
    settings = StoreSettings(url=url, prefix=prefix, deadline_ms=10_000, **more)  # type: ignore[arg-type]
    async with open_store(settings) as store:
        assert await store.run(TALLY, store.thing("t", "default", "x"), "a") == 1
        assert len(await store.facts()) >= 1


async def refusal(url: str, prefix: str, wait_seconds: float = 3) -> HeadgateError:
    """Fail to open, and quickly; give the problem."""
    watch = Stopwatch()
    with pytest.raises(HeadgateError) as caught:
        async with open_store(StoreSettings(url=url, prefix=prefix, deadline_ms=10_000), wait_seconds=wait_seconds):
            pass
    assert watch.seconds < wait_seconds + 1.5
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[TlsNode]:
    node = TlsNode(Authority(tmp_path), password="secret")
    try:
        node.start()
        yield node
    finally:
        node.stop()


@pytest.mark.topology("redis")
async def test_tls_with_an_authority_of_ones_own(tls: TlsNode, prefix: str) -> None:
    await works(tls.url, prefix)
    await works(tls.url.replace("valkeys://", "rediss://"), prefix + "2")


@pytest.mark.topology("redis")
async def test_a_server_that_nobody_vouches_for_is_not_trusted(tls: TlsNode, prefix: str) -> None:
    problem = await refusal(tls.url.partition("?")[0], prefix)
    assert isinstance(problem, StoreUnavailable)
    assert "certificate verify failed" in str(problem)


@pytest.mark.topology("redis")
async def test_plain_text_to_a_tls_port_is_a_clear_error(tls: TlsNode, prefix: str) -> None:
    assert isinstance(await refusal(tls.url.replace("valkeys", "valkey"), prefix), StoreUnavailable)


@pytest.mark.topology("redis")
async def test_a_server_may_ask_for_our_certificate(tmp_path: Path, prefix: str) -> None:
    authority = Authority(tmp_path)
    node = TlsNode(authority, client_certificates=True)
    try:
        node.start()
        ours = authority.issue("headgate", tmp_path)
        await works(f"{node.url}&cert={ours.chain}&key={ours.key}", prefix)
        assert isinstance(await refusal(node.url, prefix), StoreUnavailable)
    finally:
        node.stop()


async def test_a_password_with_every_kind_of_sign(fresh_server: Callable[..., Topology], prefix: str) -> None:
    server = fresh_server()
    login = server.add_user(prefix, "~* &* +@all").replace(f"{prefix}:password@", "")
    for node in server.nodes:
        if not node.sentinel:
            node.command("ACL", "SETUSER", prefix, f">{PASSWORD}")
    await works(login.replace("://", f"://{prefix}:{QUOTED}@"), prefix)


@pytest.mark.topology("sentinel")
async def test_sentinels_and_servers_with_different_passwords(
    fresh_server: Callable[..., Sentinel], prefix: str
) -> None:
    server = fresh_server(Sentinel(password="secret", sentinel_password="other"))
    await works(server.url, prefix)
    problem = await refusal(server.url.replace("/main", "/nobody"), prefix)
    assert "nobody" in str(problem)


@pytest.mark.topology("cluster")
async def test_a_cluster_with_a_password(fresh_server: Callable[..., Cluster], prefix: str) -> None:
    server = fresh_server(Cluster(password="secret"))
    await works(server.url, prefix)
    problem = await refusal(server.url.replace("secret", "wrong"), prefix)
    assert isinstance(problem, StoreRefused)


@pytest.mark.topology("cluster")
async def test_a_cluster_is_found_through_any_of_its_nodes(server: Cluster, prefix: str) -> None:
    """After failovers the nodes of the URL may all be replicas."""
    for n, node in enumerate((server.replica_of(server.primaries()[0]), server.primaries()[1])):
        await works(f"valkey+cluster://{node.address}", f"{prefix}{n}")


@pytest.mark.topology("cluster")
async def test_a_map_that_names_a_replica_as_owner_is_mended(server: Cluster, prefix: str) -> None:
    """A node that was frozen while its replica took over gives an old map once more when it wakes."""
    async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store:
        thing = store.thing("t", "default", "x")
        replica = server.replica_of(server.primary_of(thing.key("meta")))
        assert isinstance(store.route, ClusterRoute)
        for slot in range(len(store.route._owners)):
            store.route._owners[slot] = Endpoint(HOST, replica.port)
        assert await store.run(TALLY, thing, "a") == 1


async def test_the_redis_spelling_is_taken_too(server: Topology, prefix: str) -> None:
    await works(server.url.replace("valkey", "redis", 1), prefix)


@pytest.mark.topology("standalone", "redis")
async def test_a_wrong_or_missing_password_is_a_refusal(
    fresh_server: Callable[..., Topology], server: Standalone, prefix: str
) -> None:
    kind = Redis if server.kind == "redis" else Standalone
    locked = fresh_server(kind(password="secret"))
    await works(locked.url, prefix)
    open_door = server.url.replace("://", "://:guess@")  # a password where none is set
    for url in (locked.url.replace("secret", "guess"), locked.url.replace(":secret@", ""), open_door):
        problem = await refusal(url, prefix)
        assert isinstance(problem, StoreRefused)
        assert "guess" not in str(problem)


async def test_an_unreachable_store_is_named_within_the_time_given(server: Topology, prefix: str) -> None:
    nobody = f"{HOST}:{free_port()}"
    layouts = (f"valkey://{nobody}", f"valkey+sentinel://{nobody}/main", f"valkey+cluster://{nobody}")
    for problem in await asyncio.gather(*(refusal(url, prefix) for url in layouts)):
        assert isinstance(problem, StoreUnavailable)
        assert nobody in str(problem)


@standalone_only
async def test_a_store_that_may_evict_our_keys_is_refused(prefix: str) -> None:
    with Standalone(options={"maxmemory-policy": "allkeys-lru"}) as server:
        problem = await refusal(server.url, prefix)
        assert isinstance(problem, StoreRefused)
        assert "maxmemory-policy noeviction" in str(problem)
    with Standalone(options={"maxmemory-policy": "volatile-lru"}) as server:
        await works(server.url, prefix)


@standalone_only
async def test_a_single_server_that_keeps_nothing_is_refused_unless_asked_for(prefix: str) -> None:
    with Standalone(options={"appendonly": "no"}) as server:
        problem = await refusal(server.url, prefix)
        assert isinstance(problem, StoreRefused)
        assert "appendonly yes" in str(problem)
        await works(server.url, prefix, volatile=True)


async def test_the_printed_rights_are_enough_for_the_store_itself(server: Topology, prefix: str) -> None:
    """Exactly the rules that doctor prints; CONFIG is not among them."""
    url = server.add_user(prefix, acl.rules("worker", prefix))
    words: list[str | None] = []
    async with open_store(StoreSettings(url=url, prefix=prefix, deadline_ms=10_000)) as store:
        index = Index(store, "queue")
        thing = store.thing("queue", "default", "main")
        with store.hints.listen(thing, "events", words.append):
            await index.put(thing, 0)
            assert list(await index.list()) == [thing]
            (claim,) = await index.claim()
            await index.done(claim, 0)
            assert await index.forget(claim)
            facts = await store.facts()
            assert facts[0].min_replicas is None
            await eventually(lambda: words, 5)


async def test_the_printed_rights_end_at_our_prefix(server: Topology, prefix: str) -> None:
    url = server.add_user(prefix, acl.rules("worker", prefix))
    async with open_store(StoreSettings(url=url, prefix=prefix, deadline_ms=10_000)) as store:
        stranger = Store(store.address, StoreSettings(url=url, prefix="other"), store.tasks)
        try:
            with pytest.raises(HeadgateError):
                await Index(stranger, "queue").put(stranger.thing("queue", "default", "main"))
        finally:
            stranger.route.close()


@pytest.mark.parametrize(
    ("url", "kind", "nodes"),
    [
        ("valkey://h", StoreKind.STANDALONE, [("h", 6379)]),
        ("redis://h:1/2", StoreKind.STANDALONE, [("h", 1)]),
        ("valkeys://[::1]:7000", StoreKind.STANDALONE, [("::1", 7000)]),
        ("valkey+sentinel://a,b:1,[::1]/main", StoreKind.SENTINEL, [("a", 26379), ("b", 1), ("::1", 26379)]),
        ("rediss+cluster://a:1,b", StoreKind.CLUSTER, [("a", 1), ("b", 6379)]),
    ],
)
def test_every_spelling_of_a_url(url: str, kind: StoreKind, nodes: list[tuple[str, int]]) -> None:
    address = parse_address(url)
    assert address.kind is kind
    assert list(address.nodes) == [Endpoint(*node) for node in nodes]
    assert (address.tls is not None) == url.startswith(("valkeys", "rediss"))


def test_user_password_and_database_are_read_and_never_shown() -> None:
    address = parse_address("valkey://us%40er:se%2Fcret@h/3")
    assert (address.user, address.password, address.database) == ("us@er", "se/cret", 3)
    assert "cret" not in repr(address)
    assert parse_address("valkey+sentinel://h/main?db=2&sentinel_password=x").sentinel_password == "x"


@pytest.mark.parametrize(
    "url",
    ["", "h:1", "http://h", "valkey+ring://h", "valkey://", "valkey://:secret@h:port", "valkey://:secret@h:99999",
     "valkey://:secret@h/main", "valkey+sentinel://:secret@h", "valkey+cluster://:secret@h?db=1",
     "valkeys://:secret@h?ca=/nowhere/ca.pem"],
)  # fmt: skip
def test_a_url_that_cannot_be_read_is_one_sentence_without_the_password(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_address(url)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_a_closed_store_stays_closed(server: Topology, prefix: str) -> None:
    """Runs on each kind: whoever asks when it closes, or later, is told so, and no connection is opened for it."""
    for beats in range(0, 30, 3):
        asking: list[asyncio.Future[object]] = []
        async with open_store(StoreSettings(url=server.url, prefix=prefix)) as store:
            thing = store.thing("t", "default", "x")
            await store.read(thing, "PING")
            asking += [asyncio.ensure_future(store.read(thing, "PING")) for _ in range(3)]
            for _ in range(beats):
                await asyncio.sleep(0)
        for answer in await asyncio.gather(*asking, return_exceptions=True):
            assert answer == b"PONG" or isinstance(answer, Closed)
        with pytest.raises(Closed):
            await store.read(thing, "PING")
        assert all(link.closed for link in store.route._links.values())
        assert not store.route._opening


async def test_a_store_that_is_left_while_it_is_opened_leaves_no_connection(
    server: Topology, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    links: list[Link] = []
    made = Link.connection_made

    def noted(link: Link, transport: asyncio.BaseTransport) -> None:
        links.append(link)
        made(link, transport)

    monkeypatch.setattr(Link, "connection_made", noted)

    async def work() -> None:
        async with open_store(StoreSettings(url=server.url, prefix=prefix)):
            await asyncio.Event().wait()

    for beats in range(60):
        task = asyncio.ensure_future(work())
        for _ in range(beats):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        await eventually(lambda: all(link.closed for link in links))


@standalone_only
async def test_a_database_that_the_store_does_not_have_is_refused_by_its_number(
    server: Standalone, prefix: str
) -> None:
    problem = await refusal(f"{server.url.rpartition('/')[0]}/99", prefix)
    assert isinstance(problem, StoreRefused)
    assert "no database of the number" in str(problem)
