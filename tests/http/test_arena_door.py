"""The arena's door: which handshakes complete, which are refused, and what a refusal costs."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx2
import msgspec
import pytest
from joserfc import jws
from joserfc.jwk import OKPKey
from prometheus_client import REGISTRY
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from headgate.arena import rate_limits
from headgate.arena.client import enter
from headgate.arena.protocol import PlayerCount
from headgate.store import Store
from headgate.waiting_room.model import State
from headgate.waiting_room.problems import TicketUsed
from tests.http.arena_world import open_world, visiting


async def refusal(url: str, **options: Any) -> tuple[int, str]:
    """Try to enter, and give the status and the problem's code."""
    with pytest.raises(InvalidStatus) as refused:
        async with connect(url, **options):
            pass
    response = refused.value.response
    assert response.headers["Content-Type"] == "application/problem+json"
    problem = json.loads(response.body or b"")
    assert problem["status"] == response.status_code
    return response.status_code, problem["code"]


async def test_a_missing_ticket_is_401_and_a_bad_one_403(store: Store) -> None:
    async with open_world(store) as world, world.arena() as arena:
        assert await refusal(arena.url) == (401, "ticket_missing")
        assert await refusal(f"{arena.url}?ticketId=") == (401, "ticket_missing")
        for bad in ("5f0c1a3e-0000-4000-8000-000000000000", "tickets", "..%2F..", "a" * 300, "{x}"):
            assert await refusal(f"{arena.url}?ticketId={bad}") == (403, "ticket_invalid"), bad


async def test_a_used_ticket_is_403(store: Store) -> None:
    async with open_world(store) as world, world.arena() as arena:
        ryan = await world.promoted("Ryan")
        async with visiting(arena.url, str(ryan.ticket_id)):
            assert await refusal(f"{arena.url}?ticketId={ryan.ticket_id}") == (403, "ticket_used")


async def test_an_expired_ticket_is_403(store: Store) -> None:
    async with open_world(store, ticket_ttl_seconds=1) as world, world.arena() as arena:
        ryan = await world.promoted("Ryan")
        await world.status_until(ryan.user_id, State.EXPIRED)
        assert await refusal(f"{arena.url}?ticketId={ryan.ticket_id}") == (403, "ticket_expired")
        assert await refusal(f"{arena.url}?ticketId={ryan.ticket}") == (403, "ticket_expired")


@pytest.mark.parametrize("form", ["bare", "signed"])
@pytest.mark.parametrize("way", ["query", "authorization", "subprotocol", "subprotocol beside ours"])
async def test_a_ticket_is_taken_in_any_form_and_any_place(store: Store, form: str, way: str) -> None:
    async with open_world(store) as world, world.arena() as arena:
        ryan = await world.promoted("Ryan")
        ticket = str(ryan.ticket_id if form == "bare" else ryan.ticket)
        ways: dict[str, dict[str, Any]] = {
            "query": {},
            "authorization": {"additional_headers": {"Authorization": f"Bearer {ticket}"}},
            "subprotocol": {"subprotocols": [ticket]},
            "subprotocol beside ours": {"subprotocols": ["headgate", ticket]},
        }
        url = f"{arena.url}?ticketId={ticket}" if way == "query" else arena.url
        async with connect(url, **ways[way]) as connection:
            if way == "subprotocol beside ours":
                assert connection.subprotocol == "headgate"
            assert len(arena.arena.room) == 1


def _part(content: object) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(content)).rstrip(b"=").decode()


def _signed(header: dict[str, Any], content: object, key: OKPKey) -> str:
    return jws.serialize_compact(header, msgspec.json.encode(content), key, algorithms=["Ed25519"])


async def test_a_signed_ticket_that_was_altered_is_refused(store: Store) -> None:
    async with open_world(store) as world, world.arena() as arena:
        ryan = await world.promoted("Ryan")
        head, body, signature = str(ryan.ticket).split(".")
        said = msgspec.json.decode(base64.urlsafe_b64decode(body + "=="))
        stranger = OKPKey.generate_key("Ed25519")
        stranger.ensure_kid()
        for bad in (
            _signed({"alg": "Ed25519", "kid": stranger.kid}, said, stranger),
            _signed(
                {"alg": "Ed25519", "kid": msgspec.json.decode(base64.urlsafe_b64decode(head + "=="))["kid"]},
                said,
                stranger,
            ),
            f"{_part({'alg': 'none'})}.{body}.",
            f"{head}.{_part(said | {'exp': 4_000_000_000})}.{signature}",
            f"{head}.{body}.{'A' * len(signature)}",
        ):
            assert await refusal(f"{arena.url}?ticketId={bad}") == (403, "ticket_invalid")
        async with visiting(arena.url, str(ryan.ticket)):
            assert len(arena.arena.room) == 1


async def test_a_ticket_for_another_server_is_refused_and_not_spent(store: Store) -> None:
    async with open_world(store) as world, world.arena(capacity=1) as one, world.arena(capacity=1) as other:
        ryan = await world.promoted("Ryan")
        assert ryan.server
        right, wrong = (one, other) if ryan.server.address == one.url else (other, one)
        for ticket in (ryan.ticket_id, ryan.ticket):
            assert await refusal(f"{wrong.url}?ticketId={ticket}") == (403, "ticket_invalid")
        async with visiting(right.url, str(ryan.ticket_id)):
            assert len(right.arena.room) == 1


async def test_pages_of_other_sites_stay_out_and_the_ticket_stays_good(store: Store) -> None:
    async with open_world(store) as world, world.arena(origins=["https://game.example"]) as arena:
        ryan = await world.promoted("Ryan")
        url = f"{arena.url}?ticketId={ryan.ticket_id}"
        strangers = ["https://evil.example", "null", "https://game.example.evil.example", "http://game.example"]
        strangers += ["https://game.example:8443", "ftp://game.example", "//game.example", "https://game.example/page"]
        for origin in strangers:
            assert await refusal(url, origin=origin) == (403, "origin_refused")
        assert await refusal(url, additional_headers=[("Origin", "https://game.example")] * 2) == (
            403,
            "origin_refused",
        )
        async with visiting(arena.url, str(ryan.ticket_id), origin="https://game.example"):
            assert len(arena.arena.room) == 1


async def test_a_page_of_the_arenas_own_origin_may_enter_and_no_other_of_its_host(store: Store) -> None:
    async with open_world(store) as world, world.arena() as arena:
        ryan = await world.promoted("Ryan")
        own = arena.url.replace("ws://", "http://").removesuffix("/gameserver")
        url = f"{arena.url}?ticketId={ryan.ticket_id}"
        for origin in (
            f"{own}.evil.example",
            own.replace("http:", "ftp:"),
            own.replace("http:", ""),
            "http://127.0.0.1:1",
        ):
            assert await refusal(url, origin=origin) == (403, "origin_refused")
        assert await refusal(url, origin=own.replace("http:", "https:")) == (403, "origin_refused")
        async with visiting(arena.url, str(ryan.ticket_id), origin=own):
            assert len(arena.arena.room) == 1


async def test_the_arenas_public_address_is_an_origin_of_its_own(store: Store) -> None:
    address = "wss://game.example/gameserver"
    async with open_world(store) as world, world.arena(address=address) as arena:
        ryan = await world.promoted("Ryan")
        url = f"{arena.url}?ticketId={ryan.ticket_id}"
        for origin in ("http://game.example", "https://game.example:8443"):
            assert await refusal(url, origin=origin) == (403, "origin_refused")
        async with visiting(arena.url, str(ryan.ticket_id), origin="https://game.example"):
            assert len(arena.arena.room) == 1


async def test_a_handshake_that_cannot_complete_does_not_spend_the_ticket(store: Store) -> None:
    async with open_world(store) as world, world.arena() as arena:
        ryan = await world.promoted("Ryan")
        with pytest.raises(InvalidStatus) as refused:
            async with connect(
                f"{arena.url}?ticketId={ryan.ticket_id}", additional_headers={"Sec-WebSocket-Key": "short"}
            ):
                pass
        assert refused.value.response.status_code == 400
        async with visiting(arena.url, str(ryan.ticket_id)):
            assert len(arena.arena.room) == 1


async def test_other_paths_are_404(store: Store) -> None:
    async with open_world(store) as world, world.arena() as arena:
        assert await refusal(arena.url.replace("/gameserver", "/")) == (404, "not_found")


@pytest.mark.parametrize(
    ("address", "headers", "answer"),
    [
        ("?" + "&".join(f"utm{number}=1" for number in range(50)), {}, (401, "ticket_missing")),
        ("?ticketId=guess", {"Origin": "http://[", "Host": "127.0.0.1"}, (403, "origin_refused")),
        ("?ticketId=guess", {"Origin": "http://game.example", "Host": "["}, (403, "origin_refused")),
        (f"?ticketId={_part({'alg': 'Ed25519', 'crit': 1})}.e30.AAAA", {}, (403, "ticket_invalid")),
    ],
)
async def test_a_handshake_of_any_shape_is_answered_with_a_problem(
    store: Store, address: str, headers: dict[str, str], answer: tuple[int, str]
) -> None:
    async with open_world(store) as world, world.arena() as arena:
        assert await refusal(arena.url + address, additional_headers=headers) == answer


async def test_only_who_comes_in_is_counted_as_entered(store: Store) -> None:
    def entered() -> float:
        return REGISTRY.get_sample_value("headgate_arena_handshakes_total", {"outcome": "entered"}) or 0.0

    async with open_world(store) as world, world.arena() as arena:
        before, page = entered(), arena.url.replace("ws", "http")
        async with httpx2.AsyncClient() as browser:
            assert (await browser.get(f"{page}?ticketId=guess")).status_code == 426
        assert (await refusal(f"{arena.url}?ticketId=guess"))[0] == 403
        assert entered() == before
        ryan = await world.promoted("Ryan")
        async with visiting(arena.url, str(ryan.ticket_id)):
            assert entered() == before + 1


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time in which an address could recover."""
    monkeypatch.setattr(rate_limits, "monotonic", lambda: 1000.0)


@pytest.mark.usefixtures("still")
async def test_an_address_that_guesses_tickets_is_slowed_down(store: Store) -> None:
    async with open_world(store) as world, world.arena(handshake_failures=3) as arena:
        for number in range(3):
            assert (await refusal(f"{arena.url}?ticketId=guess{number}"))[0] == 403
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"{arena.url}?ticketId=guess"):
                pass
        assert refused.value.response.status_code == 429
        assert int(refused.value.response.headers["Retry-After"]) >= 1


@pytest.mark.usefixtures("still")
async def test_who_holds_a_good_signed_ticket_is_not_slowed_down_by_guessers(store: Store) -> None:
    async with open_world(store) as world, world.arena(handshake_failures=1) as arena:
        ryan = await world.promoted("Ryan")
        assert (await refusal(f"{arena.url}?ticketId=guess"))[0] == 403
        assert (await refusal(f"{arena.url}?ticketId={ryan.ticket_id}"))[0] == 429
        async with visiting(arena.url, str(ryan.ticket)):
            assert len(arena.arena.room) == 1


@pytest.mark.usefixtures("still")
async def test_behind_a_trusted_proxy_each_client_is_counted_alone(store: Store) -> None:
    async with open_world(store) as world, world.arena(handshake_failures=1, trusted_proxies=["127.0.0.0/8"]) as arena:
        for number, status in ((1, 403), (1, 429), (2, 403)):
            headers = {"X-Forwarded-For": f"6.6.6.6, 10.0.0.{number}"}
            assert (await refusal(f"{arena.url}?ticketId=guess", additional_headers=headers))[0] == status


async def test_our_own_client_enters_and_raises_refusals_by_name(store: Store) -> None:
    async with open_world(store) as world, world.arena() as arena:
        ryan = await world.promoted("Ryan")
        async with enter(arena.url, str(ryan.ticket)) as visit:
            await visit.ask_count()
            assert await anext(aiter(visit)) == PlayerCount(1)
            with pytest.raises(TicketUsed):
                async with enter(arena.url, str(ryan.ticket_id)):
                    pass


W = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"GET /gameserver?ticketId=x HTTP/1.1\r\nHost: x\r\n\r\n", 426, "upgrade_required"),
        (b"POST /gameserver?ticketId=x HTTP/1.1\r\nHost: x\r\n" + W + b"\r\n", 405, "method_not_allowed"),
        (
            b"GET /gameserver?ticketId=" + b"x" * 9000 + b" HTTP/1.1\r\nHost: x\r\n" + W + b"\r\n",
            414,
            "target_too_long",
        ),
        (b"GET /gameserver HTTP/1.1\r\nX: " + b"x" * 9000 + b"\r\n" + W + b"\r\n", 431, "headers_too_large"),
        (b"GET /gameserver HTTP/1.1\r\n" + b"X: x\r\n" * 300 + W + b"\r\n", 431, "headers_too_large"),
        (b"GET /gameserver?ticketId=x HTTP/1.1\r\nHost: x\r\n" + W.replace(b"13", b"1") + b"\r\n", 400, "malformed"),
    ],
)
async def test_what_the_library_refuses_is_a_problem_too(
    store: Store, request_bytes: bytes, status: int, code: str
) -> None:
    async with open_world(store) as world, world.arena() as arena:
        port = int(arena.url.partition("://")[2].partition("/")[0].rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes)
        async with asyncio.timeout(10):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"application/problem+json" in head
    assert json.loads(body)["code"] == code
    assert (b"Allow: GET" in head) == (status == 405)
