"""Upstreams and lists of their jobs, as operators read and write them."""

from __future__ import annotations

from secrets import token_hex
from typing import Any

import httpx2
import pytest

from tests.processes import Gateway

BODY = {"baseUrl": "http://127.0.0.1:1", "limits": [{"count": 1, "seconds": 3600}]}


@pytest.fixture
def name() -> str:
    return f"up-{token_hex(4)}"


@pytest.fixture
def client(gateway: Gateway) -> httpx2.AsyncClient:
    return gateway.client


async def parameters(client: httpx2.AsyncClient, path: str, method: str) -> dict[str, str]:
    """Read what the API's document says of an operation's parameters."""
    document = (await client.get("/openapi.json")).json()
    return {each["name"]: each["description"] for each in document["paths"][path][method]["parameters"]}


async def test_if_match_star_changes_only_an_upstream_that_is_there(client: httpx2.AsyncClient, name: str) -> None:
    path, star = f"/api/admin/upstreams/{name}", {"If-Match": "*"}

    async def refused() -> tuple[int, str]:
        answer = await client.put(path, json=BODY, headers=star)
        return answer.status_code, answer.json().get("code")

    assert await refused() == (412, "version_conflict")
    assert (await client.get(path)).status_code == 404
    assert (await client.put(path, json=BODY)).json()["version"] == 1
    changed = await client.put(path, json=BODY, headers=star)
    assert (changed.status_code, changed.json().get("version")) == (200, 2), changed.text
    assert (await client.delete(path)).status_code == 204
    assert await refused() == (412, "version_conflict")


async def test_the_other_conditions_of_an_upstream_are_kept(client: httpx2.AsyncClient, name: str) -> None:
    path = f"/api/admin/upstreams/{name}"
    for number, (header, value, status) in enumerate(
        [
            ("If-Match", '"1"', 412),
            ("If-None-Match", "*", 200),
            ("If-None-Match", "*", 412),
            ("If-None-Match", '"1"', 422),
            ("If-Match", '"7"', 412),
            ("If-Match", '"1"', 200),
            ("If-Match", "**", 422),
        ]
    ):
        answer = await client.put(path, json=BODY, headers={header: value})
        assert answer.status_code == status, (number, answer.text)


async def test_the_document_names_the_conditions_of_an_upstream(client: httpx2.AsyncClient) -> None:
    told = await parameters(client, "/api/admin/upstreams/{upstream}", "put")
    assert "`*`" in told["If-Match"]
    assert "`*`" in told["If-None-Match"]


async def submit(client: httpx2.AsyncClient, name: str, count: int) -> list[str]:
    """Leave jobs that no permit is left for; give their ids."""
    await client.put(f"/api/admin/upstreams/{name}", json=BODY)
    asked = {"upstream": name, "user": "u1"}
    assert (await client.post("/relay/permits", json=asked)).status_code == 200
    headers = {"X-User-Id": "u1", "Prefer": "respond-async"}
    return [(await client.post(f"/relay/{name}/x", headers=headers)).json()["id"] for _ in range(count)]


async def pages(client: httpx2.AsyncClient, name: str, **query: Any) -> list[list[str]]:
    """Read a list of jobs page by page; give the ids on each."""
    found: list[list[str]] = []
    page: dict[str, str] = {}
    while True:
        answer = await client.get(f"/api/admin/upstreams/{name}/jobs", params=query | page)
        assert answer.status_code == 200, answer.text
        found.append([job["id"] for job in answer.json()["jobs"]])
        if answer.json()["nextPage"] is None:
            return found
        page = {"page": answer.json()["nextPage"]}


async def test_jobs_are_listed_in_pages(client: httpx2.AsyncClient, name: str) -> None:
    ids = await submit(client, name, 11)
    for id in ids[2:7]:
        assert (await client.delete(f"/relay/jobs/{id}")).status_code == 204
    waiting, ended = ids[:2] + ids[7:], ids[6:1:-1]
    every = waiting + ended
    assert await pages(client, name) == [every]
    for limit in (1, 3, 4, 6, 10, 11, 12, 1000):
        assert await pages(client, name, limit=limit) == [every[at : at + limit] for at in range(0, 11, limit)]
    assert await pages(client, name, limit=3, state="waiting") == [waiting[:3], waiting[3:]]
    assert await pages(client, name, limit=3, state="cancelled") == [ended[:3], ended[3:]]
    assert await pages(client, name, limit=3, state="sending") == [[]]
    assert await pages(client, name, limit=3, state="done") == [[]]


async def test_a_job_that_ends_between_two_pages_is_not_missed(client: httpx2.AsyncClient, name: str) -> None:
    ids = await submit(client, name, 4)
    path = f"/api/admin/upstreams/{name}/jobs"
    first = (await client.get(path, params={"limit": 2})).json()
    for id in (ids[3], ids[0]):
        await client.delete(f"/relay/jobs/{id}")
    second = (await client.get(path, params={"limit": 2, "page": first["nextPage"]})).json()
    third = (await client.get(path, params={"limit": 2, "page": second["nextPage"]})).json()
    seen = [job["id"] for page in (first, second, third) for job in page["jobs"]]
    assert (seen, third["nextPage"]) == ([*ids[:3], ids[0], ids[3]], None)


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "0"},
        {"limit": "1001"},
        {"page": "x"},
        {"page": "open:-"},
        {"page": "ended:1:x"},
        {"page": "open:1-1\n"},
    ],
)
async def test_pages_that_are_none_are_refused(client: httpx2.AsyncClient, name: str, query: dict[str, str]) -> None:
    answer = await client.get(f"/api/admin/upstreams/{name}/jobs", params=query)
    assert (answer.status_code, answer.json()["field"]) == (422, *query)


async def test_the_document_tells_how_jobs_are_paged(client: httpx2.AsyncClient) -> None:
    told = await parameters(client, "/api/admin/upstreams/{upstream}/jobs", "get")
    assert "1,000" in told["limit"]
    assert "200" in told["limit"]
    assert "`nextPage`" in told["page"]
    document = (await client.get("/openapi.json")).json()
    assert "null" in document["components"]["schemas"]["JobList"]["properties"]["nextPage"]["description"]
