"""Which route a path leads to."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.gateway.routing import Router
from headgate.kit.problems import InvalidRequest

ROUTER: Router[str] = Router(
    [
        ("GET", "/queues", "list"),
        ("POST", "/queues", "make"),
        ("GET", "/queues/{queue}", "show"),
        ("GET", "/queues/main", "show main"),
        ("GET", "/queues/{queue}/audit", "audit"),
        ("GET", "/{namespace}/watch", "watch"),
        ("GET", "/config/{namespace}/watch", "watch config"),
        ("GET", "/config/{namespace}/{key:path}", "value"),
    ]
)


def led(path: str) -> tuple[str, dict[str, str]] | None:
    found = ROUTER.find(path.encode())
    return None if found is None else (found[0].routes["GET"], found[1])


@pytest.mark.parametrize(
    ("path", "route", "parameters"),
    [
        ("/queues", "list", {}),
        ("/queues/main", "show main", {}),
        ("/queues/other", "show", {"queue": "other"}),
        ("/queues/main/audit", "audit", {"queue": "main"}),
        ("/queues/watch", "show", {"queue": "watch"}),
        ("/eu/watch", "watch", {"namespace": "eu"}),
        ("/config/eu/watch", "watch config", {"namespace": "eu"}),
        ("/config/eu/a", "value", {"namespace": "eu", "key": "a"}),
        ("/config/eu/a/b//c", "value", {"namespace": "eu", "key": "a/b//c"}),
        ("/config/watch", "watch", {"namespace": "config"}),
    ],
)
def test_the_most_exact_route_is_taken(path: str, route: str, parameters: dict[str, str]) -> None:
    assert led(path) == (route, parameters)


@pytest.mark.parametrize(
    "path",
    ["", "/", "queues", "/queue", "/queues/", "//queues", "/queues//audit", "/%71ueues", "/config/eu/", "/a/b/c"],
)
def test_nothing_else_leads_anywhere(path: str) -> None:
    assert led(path) is None


@given(st.text(min_size=1))
def test_any_text_fits_in_one_parameter(text: str) -> None:
    encoded = quote(text.encode("utf-8", "surrogatepass"), safe="")
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        with pytest.raises(InvalidRequest):
            led(f"/queues/{encoded}/audit")
    else:
        assert led(f"/queues/{encoded}/audit") == ("audit", {"queue": text})


@given(st.binary())
def test_no_path_breaks_it(path: bytes) -> None:
    with suppress(InvalidRequest):
        ROUTER.find(path)


def test_get_answers_head_and_every_method_is_named() -> None:
    found = ROUTER.find(b"/queues")
    assert found is not None
    assert found[0].allow == "GET, HEAD, OPTIONS, POST"


@pytest.mark.parametrize(
    "routes",
    [
        [("GET", "/a", "x"), ("GET", "/a", "y")],
        [("GET", "/a/{b}", "x"), ("POST", "/a/{c}", "y")],
        [("GET", "/a/{b:path}", "x"), ("POST", "/a/{c:path}", "y")],
        [("GET", "/a/{b:path}/c", "x")],
        [("GET", "a", "x")],
    ],
)
def test_routes_that_cannot_be_told_apart_are_a_mistake(routes: list[tuple[str, str, str]]) -> None:
    with pytest.raises(ValueError):
        Router(routes)
