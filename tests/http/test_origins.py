"""CORS: pages of configured origins may call public routes, and nobody else's may."""

from __future__ import annotations

import httpx2
import pytest

from tests.http.sample_process import SampleStarter

SHOP = "https://shop.example"
STRANGERS = [
    "https://shop.example.evil.tld",
    "http://shop.example",
    "https://shop.example:444",
    "null",
    "https://SHOP.example",
]
SEARCH = "/sample/search?name=a"


def preflight(client: httpx2.Client, path: str, origin: str, method: str = "GET") -> httpx2.Response:
    return client.options(path, headers={"Origin": origin, "Access-Control-Request-Method": method})


def test_preflight_of_a_configured_origin_is_answered(anyone: httpx2.Client) -> None:
    response = preflight(anyone, "/sample/notes", SHOP, "POST")
    assert response.status_code == 204
    assert response.headers["access-control-allow-origin"] == SHOP
    assert response.headers["access-control-allow-methods"] == "POST"
    assert "content-type" in response.headers["access-control-allow-headers"]
    assert response.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in response.headers


@pytest.mark.parametrize("origin", STRANGERS)
def test_strangers_get_no_permission(anyone: httpx2.Client, origin: str) -> None:
    assert "access-control-allow-origin" not in preflight(anyone, "/sample/search", origin).headers
    answer = anyone.get(SEARCH, headers={"Origin": origin})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["vary"] == "Origin"


def test_answers_and_problems_can_be_read_by_the_page(anyone: httpx2.Client) -> None:
    for path in (SEARCH, "/sample/search?nope=1", "/sample/bare", "/sample/broken", "/sample/count?name=a&count=2"):
        headers = anyone.get(path, headers={"Origin": SHOP}).headers
        assert headers["access-control-allow-origin"] == SHOP
        assert "retry-after" in headers["access-control-expose-headers"]


@pytest.mark.parametrize("path", ["/sample/read/a", "/api/system", "/api/admin/tokens"])
def test_routes_that_need_a_token_are_not_for_other_sites(admin: httpx2.Client, path: str) -> None:
    assert "access-control-allow-origin" not in preflight(admin, path, SHOP).headers
    answer = admin.get(path, headers={"Origin": SHOP})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


def test_without_configured_origins_nothing_is_said(fresh_sample: SampleStarter) -> None:
    with fresh_sample().client() as client:
        assert "access-control-allow-origin" not in preflight(client, "/sample/search", SHOP).headers
        assert "access-control-allow-origin" not in client.get(SEARCH, headers={"Origin": SHOP}).headers


def test_star_is_every_origin(fresh_sample: SampleStarter) -> None:
    with fresh_sample(origins=["*"]).client() as client:
        assert preflight(client, "/sample/search", SHOP).headers["access-control-allow-origin"] == SHOP
        assert client.get(SEARCH, headers={"Origin": "null"}).headers["access-control-allow-origin"] == "null"
