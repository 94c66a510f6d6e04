"""Streams and waits: they begin at once, end when the client leaves, and tell problems in their own words."""

from __future__ import annotations

import time

import httpx2
import pytest

from tests.http.sample_process import SampleProcess
from tests.topology import wait_until


@pytest.fixture
def name() -> str:
    return f"stream-{time.monotonic_ns()}"


def test_events_arrive_as_they_are_sent(anyone: httpx2.Client, name: str) -> None:
    with anyone.stream("GET", f"/sample/count?name={name}&count=9") as response:
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["x-accel-buffering"] == "no"
        lines = response.iter_lines()
        first = [next(lines) for _ in range(8)]
        assert first == [
            "event: count",
            "id: 1",
            'data: {"number":1}',
            "",
            "event: count",
            "id: 2",
            'data: {"number":2}',
            "",
        ]


def test_stream_that_ends_by_itself_ends_the_answer(anyone: httpx2.Client, name: str) -> None:
    response = anyone.get(f"/sample/count?name={name}&count=2")
    assert response.text.count("event: count") == 2


def test_problem_in_a_stream_is_an_event(anyone: httpx2.Client, name: str) -> None:
    response = anyone.get(f"/sample/count?name={name}&count=0")
    assert response.status_code == 200
    last = response.text.strip().split("\n\n")[-1]
    assert last.startswith("event: problem\ndata: ")
    assert '"code":"cupboard_bare"' in last
    assert f'"requestId":"{response.headers["x-request-id"]}"' in last


def test_client_that_leaves_ends_its_stream(anyone: httpx2.Client, name: str) -> None:
    with anyone.stream("GET", f"/sample/count?name={name}&count=9") as response:
        lines = response.iter_lines()
        assert next(lines) == "event: count"
        assert name not in anyone.get("/sample/ended").json()
    wait_until(lambda: name in anyone.get("/sample/ended").json(), 3, "the stream was closed")


def test_wait_ends_when_its_client_leaves(sample: SampleProcess) -> None:
    waiting = 'headgate_http_requests_in_flight{operation="wait"}'
    with sample.connect() as connection:
        connection.sendall(b"GET /sample/wait HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: sample.figures().get(waiting) == 1, 3, "the wait is counted")
    wait_until(lambda: sample.figures().get(waiting) == 0, 3, "the wait has ended")
    assert sample.figures()['headgate_http_requests_total{operation="wait",status="499"}'] >= 1


def test_open_streams_are_counted(sample: SampleProcess, anyone: httpx2.Client, name: str) -> None:
    streams = 'headgate_http_streams{operation="count"}'
    with anyone.stream("GET", f"/sample/count?name={name}&count=9") as response:
        lines = response.iter_lines()
        assert next(lines) == "event: count"
        wait_until(lambda: sample.figures().get(streams) == 1, 3)
    wait_until(lambda: sample.figures().get(streams) == 0, 3)


def test_client_that_does_not_read_costs_little_memory(sample: SampleProcess) -> None:
    (worker,) = sample.workers()
    before = worker.memory_info().rss
    with sample.connect() as connection:
        connection.sendall(b"GET /sample/flood HTTP/1.1\r\nHost: x\r\n\r\n")
        connection.recv(1000)
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            assert worker.memory_info().rss - before < 50_000_000
            time.sleep(0.1)
    flooding = 'headgate_http_streams{operation="flood"}'
    wait_until(lambda: sample.figures()[flooding] == 0, 5, "the stream has ended")
    assert sample.workers() == [worker]
