"""The gateway's processes: figures that add up, workers that come back, a stop that is certain, and many connections."""

from __future__ import annotations

import asyncio
import pickle
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import httpx2
import psutil
import pytest

from headgate.gateway.settings import GatewaySettings
from headgate.http import worker_processes as fleet
from headgate.http.server import listening
from headgate.http.worker import WorkerOrders
from headgate.kit import logs
from tests.http.sample import open_sample
from tests.http.sample_process import TIGHT, SampleProcess, SampleStarter
from tests.topology import HOST, Stopwatch, eventually, free_port, wait_until

SEARCH = 'headgate_http_requests_total{operation="search",status="200"}'
MANY = 5000
STREAMS = 200


@pytest.fixture
def pair(fresh_sample: SampleStarter) -> SampleProcess:
    """A gateway with two worker processes, both ready."""
    sample = fresh_sample(workers=2)
    wait_until(lambda: both(sample), 20, "both workers answer")
    return sample


def both(sample: SampleProcess) -> bool:
    """Ask over new connections until both workers have answered."""
    found: set[int] = set()
    for _ in range(100):
        found |= pids(sample, 1)
        if len(found) == 2:
            return True
    return False


def pids(sample: SampleProcess, connections: int) -> set[int]:
    """Ask over so many connections which processes answer."""
    found = set()
    for _ in range(connections):
        with sample.client() as client:
            found.add(int(client.get("/sample/search?name=a").json()["pid"]))
    return found


def test_figures_of_all_processes_add_up(pair: SampleProcess) -> None:
    asked = 'headgate_http_requests_total{operation="thing",status="200"}'
    answered: list[int] = []
    while len(set(answered)) < 2 and len(answered) < 500:  # a connection stays with the process that took it
        with pair.client() as client:
            answered += [client.get("/sample/things/a").json()["pid"] for _ in range(5)]
    assert len(set(answered)) == 2
    number = len(answered)
    wait_until(lambda: pair.figures().get(asked) == number, 3, "every request is counted once")
    figures = pair.figures()
    assert figures['headgate_http_request_seconds_bucket{le="+Inf",operation="thing"}'] == number
    assert figures['headgate_http_request_seconds_count{operation="thing"}'] == number
    assert figures["headgate_gateway_workers"] == 2
    with pair.admin() as admin:
        assert f"{asked} {number:.1f}" in admin.get("/metrics").text


def test_worker_that_crashes_is_replaced_and_its_counts_stay(pair: SampleProcess) -> None:
    before = {worker.pid for worker in pair.workers()}
    pids(pair, 12)
    wait_until(lambda: pair.figures().get(SEARCH, 0) >= 12, 3)
    counted = pair.figures()[SEARCH]
    for pid in before:
        psutil.Process(pid).kill()

    def replaced() -> bool:
        now = {worker.pid for worker in pair.workers()}
        return len(now) == 2 and not now & before and pair.ready()

    wait_until(replaced, 20, "both are back")
    assert pair.figures()[SEARCH] >= counted
    assert pair.figures()["headgate_gateway_restarts_total"] == 2
    assert pids(pair, 2)
    assert "worker ended, starting it again" in pair.log


def test_while_one_worker_is_down_the_other_answers(pair: SampleProcess) -> None:
    first, second = pair.workers()
    first.suspend()
    first.kill()
    with pair.client() as client:
        assert client.get("/sample/search?name=a").json()["pid"] == second.pid
    assert pair.ready()


def test_stop_ends_streams_and_waits_first(fresh_sample: SampleStarter) -> None:
    sample = fresh_sample()
    with sample.client() as one, sample.client() as two, sample.connect() as waiting:
        with one.stream("GET", "/sample/count?name=a&count=9") as response:
            lines = response.iter_lines()
            assert next(lines) == "event: count"
            assert two.get("/sample/search?name=a").status_code == 200  # and its connection stays open, idle
            waiting.sendall(b"GET /sample/wait HTTP/1.1\r\nHost: x\r\n\r\n")
            wait_until(lambda: sample.figures().get('headgate_http_requests_in_flight{operation="wait"}') == 1)
            watch = Stopwatch()
            assert sample.stop() == 0
            assert watch.seconds < 3
            assert [line for line in lines if line.startswith("event")] == ["event: count"]
        assert b'"code":"stopping"' in waiting.recv(65_536)
    assert "did not finish in time" not in sample.log
    assert "Exception ignored" not in sample.log


def test_request_under_way_is_finished(fresh_sample: SampleStarter) -> None:
    sample = fresh_sample()
    body = b'{"title": "a"}'
    with sample.connect() as connection:
        head = f"POST /sample/notes HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body[:5])
        wait_until(lambda: sample.figures().get('headgate_http_requests_in_flight{operation="keepNote"}') == 1)
        sample.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not sample.ready(), 3, "it says that it is stopping")
        connection.sendall(body[5:])
        watch = Stopwatch()
        assert connection.recv(65_536).startswith(b"HTTP/1.1 201 ")
    assert sample.process.wait(15) == 0
    assert watch.seconds < 5


def test_request_that_never_ends_is_ended(fresh_sample: SampleStarter) -> None:
    sample = fresh_sample(stop_seconds=1.0, body_seconds=60)
    with sample.connect() as connection:
        connection.sendall(b"POST /sample/notes HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        wait_until(lambda: sample.figures().get('headgate_http_requests_in_flight{operation="keepNote"}') == 1)
        watch = Stopwatch()
        assert sample.stop() == 0
        assert watch.wall > 0.9
        assert watch.seconds < 3
    assert "did not finish in time" in sample.log


def test_while_quiet_it_still_serves_but_says_that_it_is_not_ready(fresh_sample: SampleStarter) -> None:
    sample = fresh_sample(quiet_seconds=5.0)
    watch = Stopwatch()
    sample.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not sample.ready(), 2)
    assert httpx2.get(f"{sample.ops_url}/readyz").text == "stopping\n"
    with sample.client() as client:
        answer = client.get("/sample/search?name=a")
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
    assert sample.process.wait(20) == 0
    assert watch.seconds < 5 + 4


def test_workers_do_not_outlive_their_parent(pair: SampleProcess) -> None:
    workers = pair.workers()
    pair.process.kill()
    wait_until(lambda: not any(worker.is_running() for worker in workers), 6, "the workers have ended")


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server((HOST, free_port())) as other:
        yield other.getsockname()[1]


def test_port_in_use_is_one_sentence(sample: SampleProcess, taken: int) -> None:
    for port in (taken, sample.port):
        other = SampleProcess("valkey://127.0.0.1:1/0", port=port)
        other.spawn()
        assert other.process.wait(20) == 1
        assert other.log == f"Port {port} on {HOST} is in use; stop the other process or choose another with --port.\n"


def test_worker_that_cannot_start_says_why(sample: SampleProcess) -> None:
    other = SampleProcess("valkey://127.0.0.1:1/0", workers=2)
    other.spawn()
    assert other.process.wait(30) == 1
    assert "Traceback" not in other.log
    assert other.log.splitlines()[-1].startswith("The store ")
    missing = SampleProcess(sample.store_settings().url, admin_token="")
    missing.spawn()
    assert missing.process.wait(30) == 1
    assert missing.log.splitlines()[-1].startswith("There is no admin token; set HEADGATE_ADMIN_TOKEN")


def test_debug_is_switched_in_every_process(fresh_sample: SampleStarter) -> None:
    sample = fresh_sample(workers=2, level="info")
    wait_until(lambda: both(sample), 20, "both workers answer")

    def logged() -> int:
        """Ask sixteen times, and count how many of them are in the log."""
        before = sample.log.count('"event":"request"')
        pids(sample, 16)
        return sample.log.count('"event":"request"') - before

    assert logged() == 0
    sample.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: logged() == 16, 5, "both workers log their requests")
    sample.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: logged() == 0, 5, "neither does any more")


async def test_worker_that_hangs_is_replaced(sample: SampleProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "HUNG_SECONDS", 3.0)
    settings = GatewaySettings(admin_token=sample.token, limits={"tight": TIGHT})
    factory = partial(open_sample, sample.store_settings(), settings, logs.Level.INFO)
    orders = pickle.dumps((sys.path, pickle.dumps(WorkerOrders(factory, 100, 100, (), 0))))
    quiet = asyncio.Event()
    with listening(HOST, 0) as listener:
        hangs = fleet.WorkerPool(1, orders, listener, quiet)
        running = asyncio.ensure_future(hangs.run(quiet_seconds=0, stop_seconds=5))

        async def ready() -> bool:
            return await hangs.ready() is None

        await eventually(ready, 20)
        (worker,) = (each for each in psutil.Process().children() if "headgate.http.worker" in each.cmdline())
        worker.suspend()
        await eventually(lambda: not worker.is_running(), 10, "the hung worker is gone")
        await eventually(ready, 20, "another one took its place")
        quiet.set()
        await asyncio.wait_for(running, 10)


@pytest.mark.alone
def test_many_idle_connections_and_streams_leave_room_for_requests(fresh_sample: SampleStarter) -> None:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sample = fresh_sample()
    idle: list[socket.socket] = []
    streams: list[socket.socket] = []
    try:
        for _ in range(MANY):
            idle.append(sample.connect())  # noqa: PERF401  # what was opened is closed whatever happens
        for number in range(STREAMS):
            stream = sample.connect()
            stream.sendall(f"GET /sample/count?name=s{number}&count=9 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            streams.append(stream)
        for stream in streams:
            received = b""
            while b"event: count" not in received:
                received += stream.recv(4096)
        with sample.client() as client:
            watch = Stopwatch()
            for _ in range(50):
                assert client.get("/sample/search?name=a").status_code == 200
            assert watch.seconds < 5
        watch = Stopwatch()
        try:
            assert sample.stop(15) == 0
        except subprocess.TimeoutExpired:
            pytest.fail("SIGTERM did not end it in time")
        assert watch.seconds < 5
        assert "did not finish in time" not in sample.log
    finally:
        for connection in (*idle, *streams):
            connection.close()
