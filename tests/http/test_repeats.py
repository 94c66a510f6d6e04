"""Caches of a connection: what is found out once for all its requests that ask for the same: it changes none of the answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.gateway.settings import RateLimit
from tests.http.sample_process import SampleProcess
from tests.topology import Topology

pytestmark = pytest.mark.topology("standalone")  # the store has no part in it

ONE = httpx2.Limits(max_connections=1, max_keepalive_connections=1)
# One each of: a query, a path's parameter, a role that is needed, a handler without a task, a wrong method, nothing at all.
PATHS = (
    "/sample/search?name=a",
    "/sample/search?name=b&namespace=other",
    "/sample/search?name=b&namespace=a%20b",
    "/sample/search",
    "/sample/things/x",
    "/sample/things/y%20z",
    "/sample/things/y?namespace=other",
    "/sample/read/a",
    "/sample/prompt/store",
    "/sample/nothing",
    "/sample/nowhere",
    "/sample/mounted/a",
)
HEADERS: tuple[dict[str, str], ...] = (
    {},
    {},
    {"X-API-Token": "TOKEN"},
    {"Authorization": "Bearer TOKEN"},
    {"X-Forwarded-For": "192.0.2.7"},
    {"Origin": "https://shop.example"},
    {"X-Request-Id": "mine-1"},
    {"Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
)
REQUESTS = st.lists(
    st.tuples(st.sampled_from(("GET", "GET", "DELETE", "OPTIONS")), st.sampled_from(PATHS), st.sampled_from(HEADERS)),
    min_size=2,
    max_size=10,
)


@pytest.fixture(scope="module")
def behind_proxy(server: Topology) -> Iterator[SampleProcess]:
    """A gateway that trusts this machine as a proxy, and lets a page of another site ask."""
    limits = {"tight": RateLimit(per_second=0.001, burst=4)}
    with SampleProcess(
        server.url, trusted_proxies=["127.0.0.1"], origins=["https://shop.example"], limits=limits
    ) as process:
        yield process


def told(response: httpx2.Response) -> tuple[Any, ...]:
    """Give all of an answer but what is new each time."""
    shown = {name: value for name, value in response.headers.items() if name not in ("date", "content-length")}
    if "mine" not in shown["x-request-id"]:
        shown.pop("x-request-id")
    return response.status_code, shown, re.sub(r'"requestId":"[^"]*"|"pid":\d+', "", response.text)


@given(requests=REQUESTS, repeats=st.integers(1, 3))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_what_a_connection_asked_before_changes_nothing(
    behind_proxy: SampleProcess, requests: list[tuple[str, str, dict[str, str]]], repeats: int
) -> None:
    def ask(client: httpx2.Client, method: str, path: str, headers: dict[str, str]) -> tuple[Any, ...]:
        own = {name: value.replace("TOKEN", behind_proxy.token) for name, value in headers.items()}
        return told(client.request(method, path, headers=own))

    with behind_proxy.client(limits=ONE) as kept:
        for request in requests:
            with behind_proxy.client() as fresh:
                alone = ask(fresh, *request)
            for _ in range(repeats):
                assert ask(kept, *request) == alone


def test_each_request_of_a_connection_counts_towards_its_limit(server: Topology) -> None:
    with SampleProcess(server.url, limits={"tight": RateLimit(per_second=0.001, burst=4)}) as process:
        with process.client(limits=ONE) as kept:
            assert [kept.get("/sample/limited").status_code for _ in range(6)] == [204] * 4 + [429] * 2
        with process.client() as other:
            assert other.get("/sample/limited").status_code == 429


def test_our_own_proxy_is_not_limited_but_whom_it_names_is(behind_proxy: SampleProcess) -> None:
    with behind_proxy.client(limits=ONE) as kept:
        named = {"X-Forwarded-For": "192.0.2.99"}
        for _ in range(2):  # in turns: what was found out about one is not what holds for the other
            assert [kept.get("/sample/limited").status_code for _ in range(6)] == [204] * 6
        assert [kept.get("/sample/limited", headers=named).status_code for _ in range(6)] == [204] * 4 + [429] * 2
        assert kept.get("/sample/limited").status_code == 204
