"""`hg.queue` in both modes: one suite."""

from __future__ import annotations

import asyncio
import base64
import secrets
import threading
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from headgate.cli.commands.chat import enter_again
from headgate.kit.problems import Forbidden, InvalidRequest, RateLimited, StoreUnavailable
from headgate.sdk import Headgate, HeadgateSync
from headgate.sdk import queue as sdk_queue
from headgate.store import StoreSettings, open_store
from headgate.waiting_room.model import BEAT_SECONDS, State
from headgate.waiting_room.policy import PolicyChange
from headgate.waiting_room.problems import (
    NotInLine,
    QueueUnknown,
    SessionUnknown,
    TicketExpired,
    TicketInvalid,
    TicketUsed,
)
from headgate.waiting_room.signing import ProofKeys, PublicKeys, SigningKeys, Ticket
from headgate.waiting_room.waiting_room import WaitingRoom
from headgate.waiting_room.wire import Beat, Status
from tests.processes import GatewayProcess
from tests.topology import Topology, eventually

pytestmark = pytest.mark.anyio


@dataclass
class Scene:
    """A client of one mode, and a hand that does what an operator and a worker do."""

    hg: Headgate
    room: WaitingRoom
    namespace: str

    async def create(self, **policy: object) -> None:
        change = msgspec.convert(policy, PolicyChange)
        await self.room.queues.configure(self.room.queues.thing(self.namespace, "main"), change, who="test")

    async def visit(self) -> None:
        await self.room.promotion.visit(self.room.queues.thing(self.namespace, "main"))


@pytest.fixture(params=["store", "http"])
async def scene(
    request: pytest.FixtureRequest, server: Topology, gateway_process: GatewayProcess
) -> AsyncIterator[Scene]:
    namespace = f"n{secrets.token_hex(4)}"
    if request.param == "http":
        made = Headgate(gateway_process.url, token=gateway_process.token, namespace=namespace)
    else:
        made = Headgate(server.url, prefix=gateway_process.prefix, namespace=namespace)
    settings = StoreSettings(url=server.url, prefix=gateway_process.prefix, deadline_ms=10_000)
    async with made as hg, open_store(settings) as store:
        yield Scene(hg, WaitingRoom(store), namespace)


async def promoted(scene: Scene, nickname: str = "Ryan") -> Status:
    entry = await scene.hg.queue.entry(nickname)
    await scene.visit()
    return await scene.hg.queue.status(entry.user_id)


async def test_wait_gives_each_change_until_promoted(scene: Scene) -> None:
    await scene.create(capacity=1)
    queue = scene.hg.queue
    first, second = [await queue.entry(name) for name in ("first", "second")]
    await scene.visit()
    seen: list[Status] = []

    async def follow() -> None:
        nonlocal seen
        async for status in queue.wait(second.user_id):
            seen += [status]

    following = asyncio.ensure_future(follow())
    await eventually(lambda: seen)
    await queue.leave(first.user_id)
    await scene.visit()
    await asyncio.wait_for(following, 10)
    assert [status.status for status in seen] == [State.WAITING, State.PROMOTED]
    assert isinstance(seen[-1].ticket_id, str)


async def test_the_same_exceptions_in_both_modes(scene: Scene) -> None:
    queue = scene.hg.queue
    with pytest.raises(QueueUnknown):
        await queue.entry("Ryan")
    await scene.create(capacity=1)
    with pytest.raises(NotInLine):
        await queue.status("nobody")
    with pytest.raises(NotInLine):
        async for _ in queue.wait("nobody"):
            pass
    with pytest.raises(TicketInvalid):
        await queue.redeem("no-such-ticket", session_id="s1")
    status = await promoted(scene)
    assert isinstance(status.ticket_id, str)
    await queue.redeem(status.ticket_id, session_id="s1")
    with pytest.raises(TicketUsed):
        await queue.redeem(status.ticket_id, session_id="s2")
    await queue.end("s1")
    await queue.end("s1")
    assert (await queue.status(status.user_id)).status is State.FINISHED


async def test_a_session_without_a_server_lasts_as_long_as_it_is_renewed(scene: Scene) -> None:
    queue = scene.hg.queue
    await scene.create(capacity=1, sessionTtlSeconds=3)
    status = await promoted(scene)
    assert isinstance(status.ticket_id, str)
    await queue.redeem(status.ticket_id, session_id="s1")
    began = time.monotonic()
    while time.monotonic() - began < 4:
        renewed = await queue.renew("s1")
        assert (renewed.session_id, renewed.queue, renewed.user_id) == ("s1", "main", status.user_id)
        assert renewed.expires_in_ms == 3000
        await scene.visit()
        await asyncio.sleep(0.2)
    assert (await queue.status(status.user_id)).status is State.ACTIVE

    async def over() -> bool:
        await scene.visit()
        return (await scene.room.status(scene.namespace, "main", status.user_id, trusted=True)).status is State.FINISHED

    await eventually(over, 10, "the session ends once nobody renews it")
    for gone in ("s1", "never-was"):
        with pytest.raises(SessionUnknown):
            await queue.renew(gone)
    for odd in ("..", "a/b", ""):
        with pytest.raises(InvalidRequest):
            await queue.renew(odd)


async def test_a_server_offers_seats_redeems_and_leaves(scene: Scene) -> None:
    await scene.create()
    queue = scene.hg.queue
    async with queue.offer_seats(capacity=1, max_capacity=2, address="ws://here") as offer:
        status = await promoted(scene)
        assert status.server is not None
        assert (status.server.instance_id, status.server.address) == (offer.instance_id, "ws://here")
        assert isinstance(status.ticket_id, str)
        redeemed = await offer.redeem(status.ticket_id, "s1")
        assert (redeemed.user.nickname, redeemed.instance_id) == ("Ryan", offer.instance_id)
        [view] = (await queue.servers()).servers
        assert (view.sessions, view.capacity, view.max_capacity) == (1, 1, 2)
        await offer.beat()
        offer.capacity = 2
        offer.beat_soon()
        await eventually(lambda: _capacity_is(scene, 2))
        await offer.end("s1", "dropped")
        again = await queue.entry("Ryan", user_id=status.user_id)
        assert again.status is State.PROMOTED
        await offer.drain()
        await offer.beat()
        assert offer.draining.is_set()
    assert (await queue.servers()).servers == []


async def _capacity_is(scene: Scene, wanted: int) -> bool:
    return [view.capacity for view in (await scene.hg.queue.servers()).servers] == [wanted]


async def test_a_script_without_an_event_loop_stands_in_line_and_offers_seats(
    scene: Scene, gateway_process: GatewayProcess
) -> None:
    await scene.create()
    options = {"token": scene.hg.token, "prefix": gateway_process.prefix, "namespace": scene.namespace}
    loop = asyncio.get_running_loop()

    def visit() -> None:
        asyncio.run_coroutine_threadsafe(scene.visit(), loop).result(10)

    def script() -> None:
        with HeadgateSync(scene.hg.url, **options) as hg:
            with hg.queue.offer_seats(capacity=0, address="ws://here") as offer:
                entry = hg.queue.entry("Ryan")
                visit()
                assert hg.queue.status(entry.user_id).status is State.WAITING
                offer.capacity = 1
                offer.beat()
                visit()
                [*_, called] = hg.queue.wait(entry.user_id)
                assert offer.redeem(called.ticket_id, "s1").user.nickname == "Ryan"
                assert offer.sessions == {"s1"}
                offer.end("s1")
                offer.drain()
                assert offer.draining.is_set()
            assert hg.queue.servers().servers == []

    await asyncio.to_thread(script)


async def test_a_report_never_ends_a_session_whose_answer_is_on_its_way(scene: Scene) -> None:
    await scene.create()
    async with scene.hg.queue.offer_seats(capacity=5, address="ws://here") as offer:
        first, second = await promoted(scene), await promoted(scene, "Apeach")
        # As if the answer to the second redeem overtook that to the first.
        call = object()
        offer._redeeming[call] = offer._latest
        assert isinstance(first.ticket_id, str)
        assert isinstance(second.ticket_id, str)
        await scene.hg.queue.redeem(first.ticket_id, session_id="late", instance_id=offer.instance_id)
        await offer.redeem(second.ticket_id, "early")
        offer._report_in = 0
        await offer.beat()
        [view] = (await scene.hg.queue.servers()).servers
        assert view.sessions == 2
        del offer._redeeming[call]
        offer._report_in = 0
        await offer.beat()
        [view] = (await scene.hg.queue.servers()).servers
        assert view.sessions == 1, "what a whole report lacks has ended"


async def test_a_session_whose_answer_was_lost_is_ended_by_the_next_reports(scene: Scene) -> None:
    await scene.create()
    async with scene.hg.queue.offer_seats(capacity=5, address="ws://here") as offer:
        status = await promoted(scene)
        assert isinstance(status.ticket_id, str)
        # Not through the offer: as if its answer had never arrived.
        await scene.hg.queue.redeem(status.ticket_id, session_id="lost", instance_id=offer.instance_id)
        await offer.beat()
        await offer.beat()
        [view] = (await scene.hg.queue.servers()).servers
        assert view.sessions == 0


async def test_a_server_with_many_players_is_known_whole_at_once(scene: Scene) -> None:
    """The store takes a long report in parts; the server does not wait for its next heartbeat to send it again."""
    await scene.create()
    inside = [f"x{number}" for number in range(1200)]
    async with scene.hg.queue.offer_seats(capacity=2000, address="ws://here", sessions=inside):
        assert not (await scene.hg.queue.servers()).servers[0].reported

        async def known() -> bool:
            [view] = (await scene.hg.queue.servers()).servers
            return view.reported and view.sessions == len(inside)

        await eventually(known, BEAT_SECONDS - 0.5)


async def test_what_goes_wrong_while_a_report_is_under_way_wants_another(scene: Scene) -> None:
    await scene.create()
    async with scene.hg.queue.offer_seats(capacity=5, address="ws://here") as offer:
        offer._report_in = 0
        beating = asyncio.ensure_future(offer.beat())
        await asyncio.sleep(0)  # its report is on its way
        offer._report_in = 0  # as if a session's end could not be told
        await beating
        assert offer._report_in == 0


async def test_who_left_while_a_report_was_on_its_way_is_gone_with_the_next_beat(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.create()
    async with scene.hg.queue.offer_seats(capacity=5, address="ws://here") as offer:
        status = await promoted(scene)
        assert isinstance(status.ticket_id, str)
        await offer.redeem(status.ticket_id, "s1")
        heartbeat = offer._backend.heartbeat

        async def overtaken(*words: Any, **more: Any) -> Beat:
            await offer.end("s1")
            return await heartbeat(*words, **more)

        monkeypatch.setattr(offer._backend, "heartbeat", overtaken)
        offer._report_in = 0
        await offer.beat()
        monkeypatch.undo()
        await offer.beat()
        [view] = (await scene.hg.queue.servers()).servers
        assert view.sessions == 0


async def test_a_server_that_drains_goes_on_draining_when_the_store_has_lost_it(scene: Scene) -> None:
    await scene.create()
    async with scene.hg.queue.offer_seats(capacity=5, address="ws://here") as offer:
        await offer.drain()
        # As if the store had lost what it knew of this server.
        await scene.room.remove_server(scene.namespace, "main", offer.instance_id)
        assert (await scene.hg.queue.servers()).servers == []
        await offer.beat()
        [view] = (await scene.hg.queue.servers()).servers
        assert view.draining
        assert (await promoted(scene)).status is State.WAITING


async def test_a_wait_that_is_told_to_ask_less_often_goes_on(
    scene: Scene, gateway_process: GatewayProcess, server: Topology
) -> None:
    await scene.create(capacity=1)
    url = scene.hg.url if not scene.hg.direct else server.url
    async with Headgate(url, prefix=gateway_process.prefix, namespace=scene.namespace) as anybody:
        await scene.hg.queue.entry("first")
        second = await scene.hg.queue.entry("second")
        await scene.visit()
        refused = False
        for _ in range(100 if not anybody.direct else 1):
            try:
                async with aclosing(anybody.queue._backend.stream("main", second.user_id, None)) as stream:
                    await anext(stream)
            except RateLimited:
                refused = True
                break
        assert refused is not anybody.direct
        async with asyncio.timeout(20):
            async with aclosing(anybody.queue.wait(second.user_id)) as wait:
                assert (await anext(wait)).status is State.WAITING


async def test_a_wait_tells_also_when_only_the_least_time_changes(scene: Scene) -> None:
    await scene.create(capacity=1, ratePerSecond=10)
    *_, third = [await scene.hg.queue.entry(name) for name in ("first", "second", "third")]
    await scene.visit()
    before = await scene.hg.queue.status(third.user_id)
    assert (before.rank, before.eta) == (2, None)
    async with asyncio.timeout(10), aclosing(scene.hg.queue.wait(third.user_id)) as wait:
        assert (await anext(wait)).least_seconds == before.least_seconds
        await scene.create(ratePerSecond=0.01)
        await scene.visit()
        told = await anext(wait)
        assert (told.rank, told.eta) == (2, None)
        assert told.least_seconds != before.least_seconds


async def test_the_stores_time_is_asked_for_again_and_kept_while_the_gateway_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = SigningKeys.read(SigningKeys.generate())
    ticket = keys.sign_ticket(Ticket(jti="t", sub="u", aud="main", gen=1, exp=1_000_000))
    times = iter(["999990.5", "1000500.0", "nonsense"])

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("X-Store-Time", next(times))
            self.end_headers()
            self.wfile.write(msgspec.json.encode(keys.jwks()))

        def log_message(self, format: str, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        async with Headgate(f"http://127.0.0.1:{site.server_port}") as hg:
            for _ in range(3):
                assert (await hg.queue.check_ticket(ticket)).jti == "t", "by its clock, whatever ours says"
            monkeypatch.setattr(sdk_queue, "_FRESH_SECONDS", 0.0)
            monkeypatch.setattr(sdk_queue, "_REFRESH_SECONDS", 0.0)
            hg.queue._refresh_at = 0.0
            for _ in range(2):
                with pytest.raises(TicketExpired):
                    await hg.queue.check_ticket(ticket)
            assert next(times, None) is None
            site.shutdown()
            site.server_close()
            with pytest.raises(TicketExpired):
                await hg.queue.check_ticket(ticket)


async def test_a_chat_that_comes_back_before_it_was_missed_waits_until_it_is(scene: Scene) -> None:
    await scene.create(capacity=1)
    entry = await scene.hg.queue.entry("Ryan")
    await scene.visit()
    called = await scene.hg.queue.status(entry.user_id)
    assert isinstance(called.ticket_id, str)
    await scene.hg.queue.redeem(called.ticket_id, session_id="s1")
    assert (await scene.hg.queue.entry("Ryan", user_id=entry.user_id)).status is State.ACTIVE
    coming_back = asyncio.ensure_future(enter_again(scene.hg, "Ryan", "main", entry))
    await scene.hg.queue.end("s1", reason="dropped")
    async with asyncio.timeout(15):
        assert (await coming_back).status is State.PROMOTED


async def test_a_signed_ticket_is_checked_offline(scene: Scene) -> None:
    await scene.create(capacity=1)
    status = await promoted(scene)
    assert isinstance(status.ticket, str)
    said = await scene.hg.queue.check_ticket(status.ticket)
    assert (said.jti, said.sub) == (status.ticket_id, status.user_id)
    head, body, signature = status.ticket.split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    for bad in (
        f"{head}.{body}.{'A' * len(signature)}",
        f"{none}.{body}.",
        f"{head}.{body}x.{signature}",
        "not-a-ticket",
    ):
        with pytest.raises(TicketInvalid):
            await scene.hg.queue.check_ticket(bad)
    with pytest.raises(TicketInvalid):
        await scene.hg.queue.check_ticket(status.ticket, queue="another")


def test_a_ticket_for_another_server_or_too_old_is_refused_offline() -> None:
    keys = SigningKeys.read(SigningKeys.generate())
    ticket = Ticket(jti="t", sub="u", aud="main", gen=1, exp=4_000_000_000, srv="s1")
    signed = keys.sign_ticket(ticket)
    assert keys.public().check_ticket(signed, queue="main", instance_id="s1").srv == "s1"
    with pytest.raises(TicketInvalid):
        keys.public().check_ticket(signed, queue="main", instance_id="s2")
    with pytest.raises(TicketExpired):
        keys.public().check_ticket(keys.sign_ticket(msgspec.structs.replace(ticket, exp=1)), queue="main")
    stranger = SigningKeys.read(SigningKeys.generate())
    with pytest.raises(TicketInvalid):
        stranger.public().check_ticket(signed, queue="main")


ODD_HEADS: list[dict[str, object]] = [
    {"crit": 1},
    {"crit": None},
    {"crit": [1]},
    {"crit": ["b64"], "b64": False},
    {"kid": [1]},
    {"kid": {"a": 1}},
    {"alg": ["Ed25519"]},
    {"alg": None},
]


@pytest.mark.parametrize("odd", ODD_HEADS, ids=str)
def test_a_header_of_any_shape_is_refused_and_never_an_error_of_ours(odd: dict[str, object]) -> None:
    keys = SigningKeys.generate()
    published = PublicKeys.read(msgspec.json.encode(SigningKeys.read(keys).jwks()))
    for algorithm in ("Ed25519", "HS256"):
        head = base64.urlsafe_b64encode(msgspec.json.encode({"alg": algorithm, **odd})).rstrip(b"=").decode()
        made_up = f"{head}.e30.AAAA"
        published.knows(made_up)
        with pytest.raises(TicketInvalid):
            published.check_ticket(made_up, queue="main")
        with pytest.raises(Forbidden):
            ProofKeys("a secret of the site" * 2, keys).check(made_up, queue="main", user_id="ryan", now=time.time())


async def test_new_keys_are_fetched_when_a_ticket_names_them_and_made_up_ones_not_each_time() -> None:
    old, new, stranger = (SigningKeys.read(SigningKeys.generate()) for _ in range(3))
    ticket = Ticket(jti="t", sub="u", aud="main", gen=1, exp=4_000_000_000)

    class Site(BaseHTTPRequestHandler):
        asked = 0
        keys = old

        def do_GET(self) -> None:
            Site.asked += 1
            self.send_response(200)
            self.end_headers()
            self.wfile.write(msgspec.json.encode(Site.keys.jwks()))

        def log_message(self, format: str, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        async with Headgate(f"http://127.0.0.1:{site.server_port}") as hg:
            assert (await hg.queue.check_ticket(old.sign_ticket(ticket))).jti == "t"
            Site.keys = new
            assert (await hg.queue.check_ticket(new.sign_ticket(ticket))).jti == "t"
            assert Site.asked == 2
            made_up = [stranger.sign_ticket(msgspec.structs.replace(ticket, jti=f"t{number}")) for number in range(50)]
            checks = (hg.queue.check_ticket(one) for one in made_up)
            assert {type(one) for one in await asyncio.gather(*checks, return_exceptions=True)} == {TicketInvalid}
            assert (await hg.queue.check_ticket(new.sign_ticket(ticket))).jti == "t"
        site.shutdown()
    assert Site.asked <= 4


class Later(BaseHTTPRequestHandler):
    """A gateway of a later version, behind a proxy that is broken now and then."""

    beats = 0
    broken = False

    def do_GET(self) -> None:
        eta = {"seconds": 1.0, "low": 0.5, "high": 2.0, "mood": "good"}
        told = {"queue": "main", "userId": "u1", "place": 7, "pollAfterMs": 500, "weather": {"sun": True}}
        status = {"status": "WAITING", "rank": 2, "eta": eta} | told
        called = {"status": "PROMOTED", "rank": 0, "eta": None, "ticketId": "t1"} | told
        called["server"] = {"instanceId": "s1", "address": "ws://here", "floor": 3}
        if "/stream" in self.path:
            events = b"".join(b"event: status\ndata: %s\n\n" % msgspec.json.encode(one) for one in (status, called))
            self._answer(events, "text/event-stream")
        else:
            self._answer(msgspec.json.encode(status))

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        Later.beats += 1
        beat = {"drain": False, "report": False, "seq": 0, "leaseMs": 10_000, "advice": "smile"}
        self._answer(msgspec.json.encode(beat))

    def do_DELETE(self) -> None:
        self.send_response(204)
        self.end_headers()

    def _answer(self, content: bytes, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        if Later.broken:
            Later.broken = False
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *words: object) -> None:
        pass


async def test_a_later_gateway_is_understood_and_a_broken_answer_stops_no_heartbeat() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Later) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        async with Headgate(f"http://127.0.0.1:{site.server_port}") as hg:
            status = await hg.queue.status("u1")
            assert (status.rank, status.eta and status.eta.high) == (2, 2.0)
            seen = [one async for one in hg.queue.wait("u1")]
            assert [one.status for one in seen] == [State.WAITING, State.PROMOTED]
            assert seen[-1].server is not None
            assert seen[-1].server.address == "ws://here"
            async with hg.queue.offer_seats(capacity=1, address="ws://here") as offer:
                Later.broken, before = True, Later.beats
                with pytest.raises(StoreUnavailable):
                    await offer.beat()
                Later.broken = True
                offer.beat_soon()
                await eventually(lambda: Later.beats >= before + 3)
        site.shutdown()


def test_old_keys_are_believed_while_they_are_listed() -> None:
    old, new = SigningKeys.generate(), SigningKeys.generate()
    ticket = Ticket(jti="t", sub="u", aud="main", gen=1, exp=4_000_000_000)
    signed = SigningKeys.read(old).sign_ticket(ticket)
    listed = msgspec.json.decode(new)["keys"] + msgspec.json.decode(old)["keys"]
    rotated = SigningKeys.read(msgspec.json.encode({"keys": listed}).decode())
    published = PublicKeys.read(msgspec.json.encode(rotated.jwks()))
    assert published.check_ticket(signed, queue="main").jti == "t"
    with pytest.raises(TicketInvalid):
        SigningKeys.read(new).public().check_ticket(signed, queue="main")


@pytest.mark.parametrize(
    "ticket", ["", "a/b", "..", "../sessions/s1/end?x=", "a?b=1", "a#b", "a b", "é", "a\x00b", "\udc80"]
)
async def test_a_ticket_that_is_no_id_is_invalid_and_names_no_other_address(scene: Scene, ticket: str) -> None:
    await scene.create(capacity=1)
    with pytest.raises(TicketInvalid):
        await scene.hg.queue.redeem(ticket, session_id="s1")


async def test_what_cannot_be_an_id_a_name_or_a_key_is_refused_alike(scene: Scene) -> None:
    await scene.create(capacity=1)
    queue = scene.hg.queue
    for odd in ("", "a/b", "..", "é", "x" * 65, "a\udc80"):
        with pytest.raises(InvalidRequest):
            await queue.end(odd)
        with pytest.raises(InvalidRequest):
            await queue.redeem("t1", session_id=odd)
        with pytest.raises(InvalidRequest):
            await queue.status(odd)
    for nickname in ("", "x" * 65, "a\n", "\udc80"):
        with pytest.raises(InvalidRequest):
            await queue.entry(nickname)
    for key in ("", "short", "x" * 257, "ééééééééé", "with a\nnew line"):
        with pytest.raises(InvalidRequest):
            await queue.entry("Ryan", idempotency_key=key)
    for token in ("a.b.c", "é.b.c", "a\r\nb"):
        with pytest.raises(Forbidden):
            await queue.status("u1", place_token=token)


@pytest.mark.parametrize(("capacity", "most"), [(-1, None), (5, -3), (10_001, None), (5, 10_001)])
async def test_seats_that_cannot_be_are_refused_and_spoil_nothing(
    scene: Scene, capacity: int, most: int | None
) -> None:
    await scene.create()
    queue = scene.hg.queue
    with pytest.raises(InvalidRequest):
        async with queue.offer_seats(capacity=capacity, max_capacity=most, address="ws://game/1"):
            pass
    async with queue.offer_seats(capacity=1, address="ws://game/2"):
        assert [server.capacity for server in (await queue.servers()).servers] == [1]
        assert (await promoted(scene)).status is State.PROMOTED


async def test_a_policy_that_cannot_be_is_refused_and_spoils_nothing(scene: Scene) -> None:
    queues = scene.hg.queues
    await queues.configure("other", PolicyChange(capacity=1))
    for change in (PolicyChange(capacity=-5), PolicyChange(capacity=5, tick_ms=0), PolicyChange(capacity="many")):  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            await queues.configure("main", change)
    assert [view.queue for view in await queues.list()] == ["other"]
    for action, count in (("explode", None), ("admit", None), ("admit", 0), ("admit", -4)):
        with pytest.raises(InvalidRequest):
            await queues.operate("other", action, count)
    with pytest.raises(InvalidRequest):
        await queues.history("other", 0)
    with pytest.raises(InvalidRequest):
        await queues.show("a/b")
    assert (await queues.show("other")).version == 1


async def test_a_wait_tells_of_a_pause_and_of_its_end(scene: Scene) -> None:
    await scene.create(capacity=0)
    entry = await scene.hg.queue.entry("ann")
    async with asyncio.timeout(20), aclosing(scene.hg.queue.wait(entry.user_id)) as wait:
        assert (await anext(wait)).paused is False
        for action, paused in (("pause", True), ("resume", False)):
            await scene.hg.queues.operate("main", action)
            assert (await anext(wait)).paused is paused
