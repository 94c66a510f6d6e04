"""Traces of real processes, as a receiver of OTLP over HTTP gets them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from time import time_ns
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.http.relays import RelayProcess, client_of
from tests.http.test_up import Up, start
from tests.processes import GatewayProcess
from tests.topology import HOST, Topology, eventually
from tests.unit.test_traces import CALLER, Collector, collector

__all__ = ["collector", "start"]

TRACE, CALLING_SPAN = CALLER.split("-")[1:3]
STATE = "vendor=opaque,other=1"
SERVER, CLIENT, CONSUMER = 2, 3, 5
UNSET, ERROR = 0, 2
IDLE_SECONDS = 10
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "100"}


class Received(NamedTuple):
    """One span that arrived."""

    service: str
    name: str
    kind: int
    status: int
    trace: str
    id: str
    parent: str
    state: str
    started: int
    attributes: dict[str, object]


def received(collector: Collector) -> list[Received]:
    """Give all spans that arrived, in the order that they did."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    found = []
    for _, body in list(collector.received):
        for each in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = {a.key: a.value.string_value for a in each.resource.attributes}
            for span in (span for scope in each.scope_spans for span in scope.spans):
                attributes: dict[str, object] = {
                    a.key: a.value.string_value or a.value.int_value for a in span.attributes
                }
                found.append(
                    Received(
                        resource["service.name"], span.name, span.kind, span.status.code, span.trace_id.hex(),
                        span.span_id.hex(), span.parent_span_id.hex(), span.trace_state, span.start_time_unix_nano,
                        attributes,
                    )
                )  # fmt: skip
    return found


async def arrived(collector: Collector, name: str, number: int = 1) -> list[Received]:
    """Wait for so many spans of this name."""

    def here() -> list[Received]:
        return [span for span in received(collector) if span.name == name]

    await eventually(lambda: len(here()) >= number, 15, f"{name} arrives, beside {received(collector)}")
    return here()


@asynccontextmanager
async def upstream(*statuses: int) -> Any:
    """Serve these statuses one after the other, the last again and again; gives the address and what was received."""
    heads: list[dict[str, str]] = []
    left = list(statuses)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()[1:]
        heads.append({name.lower(): value for name, _, value in (line.partition(": ") for line in lines)})
        status = left.pop(0) if len(left) > 1 else left[0]
        writer.write(b"HTTP/1.1 %d X\r\nRetry-After: 1\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok" % status)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0) as server:
        yield f"http://{HOST}:{server.sockets[0].getsockname()[1]}", heads


async def test_a_request_continues_the_callers_trace_and_the_store_is_called_within_it(
    server: Topology, fresh_gateway: Callable[..., GatewayProcess], collector: Collector
) -> None:
    environment = SOON | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    process = fresh_gateway(server.url, environment=environment)
    headers = {"X-API-Token": process.token, "traceparent": CALLER, "tracestate": STATE}
    async with httpx2.AsyncClient(base_url=process.url, headers=headers) as client:
        assert (await client.put("/api/admin/queues/main", json={"capacity": 0})).status_code == 201
        assert (await client.get("/api/admin/queues/absent")).status_code == 404
        assert (await client.delete("/api/admin/queues/main")).status_code == 204
    (put,) = await arrived(collector, "PUT /api/admin/queues/{queue}")
    assert (put.service, put.kind, put.status) == ("headgate-gateway", SERVER, UNSET)
    assert (put.trace, put.parent, put.state) == (TRACE, CALLING_SPAN, STATE)
    assert put.attributes == {
        "http.request.method": "PUT",
        "http.route": "/api/admin/queues/{queue}",
        "url.path": "/api/admin/queues/{queue}",
        "url.scheme": "http",
        "http.response.status_code": 201,
    }
    (missing,) = await arrived(collector, "GET /api/admin/queues/{queue}")
    assert (missing.attributes["http.response.status_code"], missing.status) == (404, UNSET), "the caller's mistake"
    (removed,) = await arrived(collector, "DELETE /api/admin/queues/{queue}")
    assert removed.attributes["http.response.status_code"] == 204
    (configured,) = await arrived(collector, "EVALSHA configure")
    assert (configured.kind, configured.trace, configured.parent) == (CLIENT, TRACE, put.id)
    wanted = {"db.system.name": "redis", "db.operation.name": "EVALSHA", "db.stored_procedure.name": "configure"}
    assert wanted.items() <= configured.attributes.items()
    refused = [span for span in await arrived(collector, "EVALSHA figures") if span.parent == missing.id]
    assert {(span.status, span.attributes["error.type"]) for span in refused} == {(ERROR, "queue_lost")}


@pytest.mark.topology("standalone")
async def test_a_relay_continues_the_callers_trace_up_to_the_upstream(server: Topology, collector: Collector) -> None:
    environment = SOON | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    caller = {"X-User-Id": "u1", "traceparent": CALLER, "tracestate": STATE}
    with RelayProcess(server.url, environment=environment) as relay:
        async with upstream(200, 429, 500) as (url, heads), client_of(relay) as client:
            policy = {"baseUrl": url, "limits": [{"count": 9, "seconds": 1}]}
            assert (await client.put("/api/admin/upstreams/shop", json=policy)).status_code in {200, 201}
            assert (await client.get("/relay/shop/a?token=secret", headers=caller)).status_code == 200
            assert (await client.get("/relay/shop/b", headers=caller)).status_code == 500
            (first, second, third) = await arrived(collector, "GET", 3)
            requests = await arrived(collector, "GET /relay/{path}", 2)
            job = await client.post("/relay/shop/c", headers={**caller, "Prefer": "respond-async"})
            assert job.status_code == 202
            (accepted,) = await arrived(collector, "POST /relay/{path}")
            (sent,) = await arrived(collector, "POST")
    (of_job,) = [span for span in received(collector) if span.name == "relay job"]
    assert {span.service for span in received(collector)} == {"headgate-relay"}
    assert [(span.kind, span.trace, span.parent) for span in requests] == [(SERVER, TRACE, CALLING_SPAN)] * 2
    assert [span.attributes["http.response.status_code"] for span in requests] == [200, 500]
    assert [span.status for span in requests] == [UNSET, ERROR]
    assert [(span.kind, span.trace, span.parent) for span in (first, second, third)] == [
        (CLIENT, TRACE, requests[0].id),
        (CLIENT, TRACE, requests[1].id),
        (CLIENT, TRACE, requests[1].id),
    ]
    assert [span.attributes["http.response.status_code"] for span in (first, second, third)] == [200, 429, 500]
    assert [span.status for span in (first, second, third)] == [UNSET, ERROR, ERROR]
    assert first.attributes["url.full"] == f"{url}/a", "a query may hold a secret"
    assert first.attributes["server.port"] == int(url.rpartition(":")[2])
    # The upstream is told of the very span that called it.
    told = [head["traceparent"] for head in heads]
    assert told == [f"00-{TRACE}-{span.id}-01" for span in (first, second, third, sent)]
    assert {head["tracestate"] for head in heads} == {STATE}
    assert (of_job.kind, of_job.trace, of_job.parent) == (CONSUMER, TRACE, accepted.id)
    assert sent.parent == of_job.id


@pytest.mark.topology("standalone")
async def test_a_relay_without_traces_hands_the_callers_on(server: Topology) -> None:
    with RelayProcess(server.url) as relay:
        async with upstream(200) as (url, heads), client_of(relay) as client:
            await client.put("/api/admin/upstreams/shop", json={"baseUrl": url, "limits": [{"count": 9, "seconds": 1}]})
            headers = {"X-User-Id": "u1", "traceparent": CALLER, "tracestate": STATE}
            assert (await client.get("/relay/shop/a", headers=headers)).status_code == 200
    assert [(head["traceparent"], head["tracestate"]) for head in heads] == [(CALLER, STATE)]


@pytest.mark.topology("standalone")
async def test_the_sdks_variables_say_where_traces_go_who_sends_them_and_which_are_kept(
    server: Topology, fresh_gateway: Callable[..., GatewayProcess], collector: Collector
) -> None:
    environment = SOON | {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/somewhere/else",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        "OTEL_SERVICE_NAME": "our-gate",
        "OTEL_TRACES_SAMPLER": "parentbased_always_off",
    }
    process = fresh_gateway(server.url, environment=environment)
    async with httpx2.AsyncClient(base_url=process.url, headers={"X-API-Token": process.token}) as client:
        for headers in ({}, {"traceparent": CALLER[:-2] + "00"}, {"traceparent": CALLER}):
            assert (await client.get("/api/system", headers=headers)).status_code == 200
    assert process.stop() == 0
    (span,) = [span for span in received(collector) if span.kind == SERVER]
    assert (span.trace, span.service) == (TRACE, "our-gate")
    assert {path for path, _ in collector.received} == {"/somewhere/else"}


@pytest.mark.topology("standalone")
@pytest.mark.quiet
@pytest.mark.release
async def test_an_idle_up_makes_no_spans(
    start: Callable[..., Up], collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (SOON | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}).items():
        monkeypatch.setenv(name, value)
    up = start("--json")
    up.ready()  # it has made its demo queues by requests, which are traced
    began = time_ns()
    await asyncio.sleep(IDLE_SECONDS)
    ended = time_ns()
    async with httpx2.AsyncClient(base_url=up.url, headers={"X-API-Token": up.token}) as client:
        await client.get("/api/admin/queues/main", headers={"traceparent": CALLER})
    await arrived(collector, "GET /api/admin/queues/{queue}")
    up.stop()
    idle = [(span.service, span.name) for span in received(collector) if began < span.started < ended]
    assert idle == [], idle
