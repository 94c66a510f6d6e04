"""The tools that break things are themselves tested: a fault that does nothing makes every fault test pass."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from valkey.asyncio import Valkey
from valkey.exceptions import ConnectionError as Lost
from valkey.exceptions import TimeoutError as TimedOut

from tests.topology import (
    HOST,
    Authority,
    Cluster,
    FaultyProxy,
    Node,
    Redis,
    Sentinel,
    Standalone,
    Stopwatch,
    TlsNode,
    Topology,
    eventually,
    wait_until,
)

standalone_only = pytest.mark.topology("standalone")


def client_of(proxy: FaultyProxy) -> Valkey:
    return Valkey(host=HOST, port=proxy.port, socket_timeout=3, socket_connect_timeout=5)


@standalone_only
async def test_a_killed_server_comes_back_with_its_data(fresh_server: Callable[..., Standalone]) -> None:
    node = fresh_server().node
    node.command("SET", "k", "v")
    first = node.pid
    node.kill()
    with pytest.raises(Lost):
        node.command("PING")
    await node.restart()
    assert node.command("GET", "k") == "v"
    assert node.pid != first


@standalone_only
async def test_a_paused_server_answers_only_after_resume(fresh_server: Callable[..., Standalone]) -> None:
    node = fresh_server().node
    async with Valkey(host=HOST, port=node.port, socket_timeout=3) as client:
        assert await client.ping()
        node.pause()
        with pytest.raises(TimedOut):
            await client.ping()
        node.resume()
        assert await client.ping()


@pytest.mark.topology("sentinel")
async def test_sentinels_promote_a_replica_that_has_the_data(fresh_server: Callable[..., Sentinel]) -> None:
    topology = fresh_server(Sentinel(password="secret", sentinel_password="other"))
    old = topology.primary()
    old.command("SET", "k", "v")
    assert old.command("WAIT", 2, 4000) == 2
    await topology.fail_over()
    assert topology.primary() is not old
    assert topology.primary().command("GET", "k") == "v"
    await topology.mend()
    assert old.info("replication")["role"] == "slave"


@pytest.mark.topology("cluster")
async def test_a_cluster_fails_over_switches_over_and_mends(fresh_server: Callable[..., Cluster]) -> None:
    topology = fresh_server(Cluster(password="secret"))
    assert len(topology.primaries()) == 3
    old = topology.primary_of("k")
    old.command("SET", "k", "v")
    await topology.switch_over("k")
    new = topology.primary_of("k")
    assert new is not old
    assert new.command("GET", "k") == "v"
    await topology.fail_over("k")
    assert topology.primary_of("k") is old
    await topology.mend()
    assert topology.replica_of(old) is new


@pytest.mark.topology("redis")
def test_redis_speaks_tls_to_those_who_trust_its_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    node = TlsNode(authority, password="secret", client_certificates=True)
    try:
        node.start()
        assert node.command("PING")
        (tmp_path / "other").mkdir()
        stranger = node.admin_options() | {"ssl_ca_certs": str(Authority(tmp_path / "other").certificate)}
        with pytest.raises(Lost, match="certificate verify failed"):
            type(node.admin)(**stranger).ping()
    finally:
        node.stop()


@pytest.mark.topology("redis")
def test_redis_is_debians_seven(server: Redis) -> None:
    assert str(server.node.info("server")["redis_version"]).startswith("7.")


@standalone_only
async def test_a_dropped_reply_is_lost_but_its_request_ran(server: Standalone, prefix: str) -> None:
    async with FaultyProxy(server.node.port) as proxy, client_of(proxy) as client:
        for cut, error in ((False, TimedOut), (True, Lost)):
            await client.ping()  # the fault is for the request, not for the greeting of a new connection
            proxy.drop_replies(cut=cut)
            with pytest.raises(error):
                await client.incr(prefix)
            proxy.heal()
        assert await client.incr(prefix) == 3


@standalone_only
async def test_held_bytes_arrive_late_and_blackholed_ones_never(server: Standalone, prefix: str) -> None:
    async with FaultyProxy(server.node.port) as proxy, client_of(proxy) as client:
        await client.ping()
        proxy.hold()
        with pytest.raises(TimedOut):
            await client.incr(prefix)
        assert server.node.command("GET", prefix) is None
        proxy.blackhole()
        with pytest.raises(TimedOut):  # a new connection: it opens, and nothing answers
            await client.incr(prefix)
        proxy.heal()
        await eventually(lambda: not proxy.links)
        assert await client.incr(prefix) == 1


@standalone_only
async def test_held_replies_are_of_requests_that_ran(server: Standalone, prefix: str) -> None:
    async with FaultyProxy(server.node.port) as proxy, client_of(proxy) as client:
        await client.ping()
        proxy.hold(replies_only=True)
        counting = asyncio.ensure_future(client.incr(prefix))
        await eventually(lambda: server.node.command("GET", prefix) == "1")
        assert not counting.done()
        proxy.heal()
        assert await counting == 1
        proxy.hold(replies_only=True)
        counting = asyncio.ensure_future(client.incr(prefix))
        await eventually(lambda: server.node.command("GET", prefix) == "2")
        proxy.lose_held()
        with pytest.raises(Lost):
            await counting


@standalone_only
async def test_cut_refuse_delay_and_slices(server: Standalone) -> None:
    async with FaultyProxy(server.node.port) as proxy, client_of(proxy) as client:
        await client.ping()
        assert proxy.cut() == 1
        with pytest.raises(Lost):
            await client.ping()
        await proxy.refuse()
        with pytest.raises(Lost):
            await client.ping()
        await proxy.accept()
        proxy.slice(1)
        assert await client.echo("x" * 500) == b"x" * 500
        proxy.heal()
        proxy.delay(0.1)
        began = time.monotonic()
        await client.ping()
        assert time.monotonic() - began >= 0.2


@standalone_only
async def test_a_blackholed_replication_link_leaves_clients_alone(fresh_server: Callable[..., Standalone]) -> None:
    primary = fresh_server().node
    async with FaultyProxy(primary.port) as proxy, client_of(proxy) as client:
        replica = Node("replica", {"replicaof": f"{HOST} {proxy.port}"})
        try:
            await anyio.to_thread.run_sync(replica.start)
            await client.set("before", 1)
            await eventually(lambda: replica.command("GET", "before") == "1")
            proxy.blackhole(replication_only=True)
            for n in range(50):
                await client.set("after", n)
            assert await client.wait(1, 100) == 0
            assert replica.command("GET", "after") is None
        finally:
            replica.stop()


@standalone_only
def test_nothing_outlives_a_killed_test_process(tmp_path: Path) -> None:
    facts = tmp_path / "facts"
    program = (
        "import sys, time; from tests.topology import Standalone, reaper; s = Standalone(); s.start(); s.node.pause(); "
        "open(sys.argv[1], 'w').write(f'{s.node.pid} {reaper().root}\\n'); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(facts)], cwd=Path(__file__).parents[2])
    wait_until(lambda: facts.exists() and facts.read_text().endswith("\n"), 60)
    pid, root = facts.read_text().split()
    assert Path(root).is_dir()
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not Path(root).exists() and not _alive(int(pid)), 30)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_every_topology_says_who_takes_writes(server: Topology, prefix: str) -> None:
    node = server.primary_of(prefix)
    assert node in server.primaries()
    assert node.command("SET", prefix, 1)
    node.command("DEL", prefix)


def test_a_stopwatch_does_not_count_what_the_machine_stood_still() -> None:
    """Stopped here: the processes that watch the cores, as a host would stop them and us."""
    program = """
import psutil, sys, time
from tests.topology import Stopwatch, watched_machine

with watched_machine():
    watchers = psutil.Process().children()
    time.sleep(0.5)
    running = Stopwatch()
    while running.seconds < 1:
        time.sleep(0.01)
    print(running.wall >= 1)
    stopped = Stopwatch()
    for watcher in watchers:
        watcher.suspend()
    time.sleep(1)
    print(0.5 < stopped.stood_still)
    for watcher in watchers:
        watcher.resume()
    time.sleep(0.2)
    print(0.5 < stopped.stood_still)
    print(0 < stopped.seconds)
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.split() == ["True"] * 4


def test_a_stopwatch_of_a_calm_machine_is_a_clock() -> None:
    watch = Stopwatch()
    time.sleep(0.3)
    assert watch.wall >= 0.3
    assert watch.seconds <= watch.wall
