"""Attacks of a visitor on a gate behind a real proxy: spellings, methods, headers and cookies, byte by byte."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from urllib.parse import parse_qs, quote, unquote_to_bytes, urlsplit

import httpx2
import pytest

from tests.processes import GatewayProcess
from tests.proxy.site import PROXIES, configure, guarded, nginx, passes, site, traefik
from tests.raw import BROWSER, Header, send
from tests.topology import Topology, wait_until

# These resolve `..` and `//` themselves, before anybody is asked.
CLEANING = frozenset({"envoy", "traefik"})


@pytest.fixture(scope="module")
def shut(guard: GatewayProcess, proxy: str) -> Iterator[str]:
    """A queue that lets nobody in, and bypasses that a visitor would like to have."""
    name = f"q{secrets.token_hex(4)}"
    bypass = {"paths": ["/open/**"], "addresses": ["10.0.0.0/8"], "header": "X-Robot"}
    with httpx2.Client(base_url=guard.url, headers={"X-API-Token": guard.token}) as admin:
        policy = {"paths": [f"/{name}/**"], "capacity": 0, "bypass": bypass}
        assert admin.put(f"/api/admin/queues/{name}", json=policy).status_code == 201
        wait_until(lambda: send(proxy, f"/{name}/x").status == 302, 10, "the queue is in force")
        yield name
        admin.delete(f"/api/admin/queues/{name}")


@pytest.mark.parametrize(
    "spelling",
    [
        "/{q}/x", "/{q}", "/{q}/", "/{Q}/x", "/{e}/x", "//{q}//x", "/./{q}/x", "/%2e/{q}/x", "/a/../{q}/x",
        "/a%2f..%2f{q}/x", "/{q}%2fx", "/{q};v=1/x", "/{q}/x;v=1", "/{q}/../open/x", "/{q}/..%2fopen/x", "/{q}/..;/open/x",
        "/{q}/%252e%252e/open/x", "/open/../{q}/x", "/open/%2e%2e/{q}/x", "/open/..;/../{q}/x", "/{q}/x?/../../open/x",
        "/{q}/x%0d%0aX-Original-URI:%20/open/x", "/{q}/x%23/../../open", "/{q}/\xff\xfe", "/{q}/%c0%ae%c0%ae/open",
    ],
)  # fmt: skip
def test_no_spelling_of_a_guarded_path_gets_past(proxy: str, proxy_name: str, shut: str, spelling: str) -> None:
    target = spelling.format(q=shut, Q=shut.upper(), e=f"%{ord(shut[0]):x}{shut[1:]}")
    reply = send(proxy, target)
    if proxy_name in CLEANING and reply.status == 200:
        # Gate and site were asked for the same cleaned path, which leads elsewhere.
        assert reply.body.startswith(b"page /open")
        return
    if proxy_name == "envoy" and not target.isascii():
        assert reply.status == 400  # it takes no such path from anybody
        return
    assert reply.status == 302, reply.body[:200]
    assert urlsplit(reply.all("location")[0]).path == f"/wait/{shut}"
    assert b"page" not in reply.body


def test_a_path_made_long_to_hide_its_end_is_read_to_its_end(proxy: str, shut: str) -> None:
    for padding in ("./" * 3000, "a/../" * 1200, "/" * 6000):
        assert send(proxy, f"/{padding}{shut}/x").status == 302


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"])
def test_every_method_must_wait_and_every_method_passes_elsewhere(proxy: str, shut: str, method: str) -> None:
    body = b"x=1" if method in {"POST", "PUT", "PATCH"} else b""
    headers = [BROWSER, *([("Content-Length", "3")] if body else [])]
    assert send(proxy, f"/{shut}/x", headers, method=method, body=body).status == 302
    assert send(proxy, "/about", headers, method=method, body=body).status == 200


def test_a_body_in_chunks_and_a_handshake_must_wait(proxy: str, shut: str) -> None:
    chunks = [BROWSER, ("Transfer-Encoding", "chunked")]
    assert send(proxy, f"/{shut}/x", chunks, method="POST", body=b"3\r\nabc\r\n0\r\n\r\n").status == 302
    handshake = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ]
    assert send(proxy, f"/{shut}/x", handshake).status in (302, 429)


@pytest.mark.parametrize(
    "header",
    [
        ("X-Original-URI", "/open/x"), ("X-Original-URL", "/open/x"), ("X-Rewrite-URL", "/open/x"), ("X-Robot", "yes"),
        ("X-Forwarded-Uri", "/open/x"), ("X-Forwarded-For", "10.1.2.3"), ("X-Real-IP", "10.1.2.3"), ("Range", "bytes=0-1"),
        ("Forwarded", "for=10.1.2.3"), ("X-Forwarded-Proto", "https"), ("X-Forwarded-Method", "OPTIONS"),
        ("X-API-Token", "hg_guess"), ("Authorization", "Bearer of-the-site"), ("Authorization", "Basic b2Y6c2l0ZQ=="),
        ("Origin", "https://evil.example"), ("If-None-Match", "*"), ("traceparent", "00-zz"), ("X-Request-Id", "<>\""),
        ("X-Headgate-Set-Cookie", "headgate=evil"), ("X-Headgate-Location", "//evil.example"), ("X-Headgate-Cache", "public"),
        ("Content-Type", "application/json"), ("X-HTTP-Method-Override", "OPTIONS"), ("TE", "trailers"),
        ("Cookie", "headgate="), ("Cookie", "headgate=W10.W10.W10"), ("Cookie", "headgate=\xff\xfe.\xff.\xff"),
        ("Cookie", "headgate=a; headgate=b"), ("Cookie", "headgate=" + "a" * 7000), ("Cookie", "=;;=headgate=;"),
    ],
    ids=lambda header: f"{header[0]}: {header[1][:24]!a}",
)  # fmt: skip
def test_no_header_gets_past_and_none_locks_out(proxy: str, shut: str, header: Header) -> None:
    waits = send(proxy, f"/{shut}/x", [BROWSER, header])
    assert waits.status == 302
    location = urlsplit(waits.all("location")[0])
    assert (location.path, parse_qs(location.query)["return"]) == (f"/wait/{shut}", [f"/{shut}/x"])
    assert "evil" not in str(waits.headers)
    passes = send(proxy, "/about", [BROWSER, header])
    assert (passes.status, passes.body) == (200, b"page /about")
    assert "evil" not in str(passes.headers)


async def test_passes_that_are_not_ones_own_are_refused(proxy: str, admin: httpx2.AsyncClient, queue: str) -> None:
    other = f"{queue}-other"
    await configure(admin, queue, capacity=1)
    await configure(admin, other, capacity=1)
    async with httpx2.AsyncClient(base_url=proxy, headers={"Accept": "text/html"}) as visitor:
        await passes(visitor, f"/{other}/x")
        elsewhere = visitor.cookies["headgate"]
    async with httpx2.AsyncClient(base_url=proxy, headers={"Accept": "text/html"}) as visitor:
        await passes(visitor, f"/{queue}/x")
        good = visitor.cookies["headgate"]
    key, payload, mac = good.split(".")
    refused = (
        elsewhere,
        ".".join((key, elsewhere.split(".")[1], mac)),
        ".".join((key, payload, elsewhere.split(".")[2])),
        f"{key}.{payload}.",
        good[:-1] + ("A" if good[-1] != "A" else "B"),
        f"{good}.{mac}",
        f'"{good}"',
    )
    for cookie in refused:
        assert send(proxy, f"/{queue}/x", [BROWSER, ("Cookie", f"headgate={cookie}")]).status == 302, cookie
    # One of the same name that somebody put in front does not take the good one away.
    for cookies in (f"headgate={good}", f"headgate=evil; headgate={good}", f"a=b; headgate={good}; headgate=evil"):
        assert send(proxy, f"/{queue}/x", [BROWSER, ("Cookie", cookies)]).status == 200
    await admin.post(f"/api/admin/queues/{queue}/reset")
    await configure(admin, queue, capacity=0)
    assert send(proxy, f"/{queue}/x", [BROWSER, ("Cookie", f"headgate={good}")]).status == 302
    await admin.delete(f"/api/admin/queues/{other}")


async def test_a_page_that_brings_a_pass_is_kept_by_no_cache(proxy: str, admin: httpx2.AsyncClient, queue: str) -> None:
    await configure(admin, queue, capacity=1)
    first = send(proxy, f"/{queue}/x")
    assert first.status == 200
    assert len(first.all("set-cookie")) == 1
    assert "no-store" in first.all("cache-control")[-1]
    cookie = first.all("set-cookie")[0].split(";")[0]
    again = send(proxy, f"/{queue}/x", [BROWSER, ("Cookie", cookie)])
    assert (again.all("set-cookie"), again.all("cache-control")) == ([], ["public, max-age=60"])


def test_a_long_address_waits_like_any_other(proxy: str, shut: str) -> None:
    short = f"/{shut}/x?q=" + "%E2%82%AC" * 200
    location = urlsplit(send(proxy, short).all("location")[0])
    assert parse_qs(location.query)["return"] == [short]
    reply = send(proxy, f"/{shut}/x?q=" + "%E2%82%AC" * 700)
    assert reply.status == 302
    assert parse_qs(urlsplit(reply.all("location")[0]).query)["return"] == [f"/{shut}/x"]


def test_a_shared_link_to_the_page_brings_what_it_likes(proxy: str, shut: str) -> None:
    page = send(proxy, f"/wait/{shut}?return=/{shut}/x&fbclid=abc&utm_source=mail&lang=" + "x" * 100)
    assert page.status == 200
    assert page.all("content-type") == ["text/html; charset=utf-8"]


def test_the_page_s_address_is_a_path_and_leads_to_no_other_port(proxy: str, shut: str) -> None:
    assert send(proxy, f"/{shut}/x").all("location")[0].startswith(f"/wait/{shut}?")


async def test_a_client_that_names_no_host_is_served(
    guard: GatewayProcess, admin: httpx2.AsyncClient, queue: str
) -> None:
    await configure(admin, queue, capacity=0)
    with site() as site_port, nginx(guard.port, site_port) as url:
        assert send(url, "/about", version="1.0").status == 200
        assert send(url, f"/{queue}/x", version="1.0").status == 302


# Traefik waits 30 s for a gate that hangs, which cannot be set, and has no page of its own to show.
@pytest.mark.parametrize("name", [name for name in PROXIES if name != "traefik"])
def test_a_gateway_that_hangs_or_is_gone_keeps_nobody_waiting_for_long(server: Topology, name: str) -> None:
    with site() as site_port, guarded(server.url) as process, PROXIES[name](process.port, site_port) as url:
        assert send(url, "/about").status == 200
        workers = [process.pid, *children(process.pid)]
        try:
            for pid in workers:
                os.kill(pid, signal.SIGSTOP)
            hanging = send(url, "/about")
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGCONT)
        process.stop()
        gone = [send(url, "/about"), send(url, "/wait/any")]
    for reply in (hanging, *gone):
        assert reply.status == 503
        assert reply.all("retry-after") == reply.all("refresh") == ["5"]
        assert reply.all("cache-control") == ["no-store"]
        assert b"One moment" in reply.body


def test_a_gateway_that_is_gone_lets_nobody_in_behind_traefik(server: Topology) -> None:
    with site() as site_port, guarded(server.url) as process, traefik(process.port, site_port) as url:
        assert send(url, "/about").status == 200
        process.stop()
        for target in ("/about", "/wait/any"):
            reply = send(url, target)
            assert reply.status >= 500
            assert b"page /about" not in reply.body


def children(pid: int) -> list[int]:
    """Give the processes that a gateway has started."""
    with open(f"/proc/{pid}/task/{pid}/children") as listed:
        return [int(child) for child in listed.read().split()]


@pytest.mark.parametrize("name", PROXIES)
def test_an_error_of_the_site_stays_the_site_s(guard: GatewayProcess, name: str) -> None:
    with site() as site_port:
        pass
    with PROXIES[name](guard.port, site_port) as url:
        reply = send(url, "/about")
    assert reply.status in (502, 503)
    assert b"One moment" not in reply.body


@pytest.mark.parametrize("encoding", ["utf-8", "euc-kr"])
async def test_a_path_in_raw_bytes_is_guarded_and_returned_to(
    proxy: str, proxy_name: str, admin: httpx2.AsyncClient, queue: str, encoding: str
) -> None:
    path = f"/{queue}-상품/7".encode(encoding)
    made = await admin.put(f"/api/admin/queues/{queue}", json={"paths": [f"/{queue}-상품/**"], "capacity": 0})
    assert made.status_code == 201
    wait_until(lambda: send(proxy, quote(path)).status == 302, 10, "the queue is in force")
    for spelling in (path, quote(path).encode(), quote(path).lower().encode(), b"//" + path[1:]):
        reply = send(proxy, spelling)
        if proxy_name == "envoy" and not spelling.isascii():
            assert reply.status == 400  # it takes no such path from anybody
            continue
        assert reply.status == 302, spelling
        page = urlsplit(reply.all("location")[0])
        # What is not UTF-8 is guarded by any queue that is on.
        assert (page.path.startswith("/wait/"), page.netloc) == (True, "")
        assert page.path == f"/wait/{queue}" or encoding != "utf-8"
        (back,) = parse_qs(page.query)["return"]
        assert unquote_to_bytes(back).lstrip(b"/") == path.lstrip(b"/")
        shown = send(proxy, reply.all("location")[0])
        assert (shown.status, shown.all("content-type")) == (200, ["text/html; charset=utf-8"])
    # Other paths in the same script pass, and the site gets them whole.
    if encoding == "utf-8":
        assert unquote_to_bytes(send(proxy, quote("/다른/7")).body) == "page /다른/7".encode()
