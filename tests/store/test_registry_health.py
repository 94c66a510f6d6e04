"""Health checks by workers against real servers of each kind, and alerts to a real webhook."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import grpc
import msgspec
import pytest
from websockets.asyncio.server import serve as serve_websocket

from headgate.registry.alerts import Alerts, AlertTarget
from headgate.registry.health_checks import HealthChecker
from headgate.registry.model import Check, CheckKind, Instance, Record
from headgate.registry.probes import Prober, prober_for
from headgate.registry.registry import Registry
from headgate.registry.settings import RegistrySettings
from headgate.registry.sweep import Sweeper
from headgate.store import Store
from tests.topology import Authority, eventually, free_port

pytestmark = pytest.mark.anyio
NS = "default"
LOCAL = RegistrySettings().probe_networks


class Site:
    """A small HTTP server whose answer a test may change."""

    def __init__(self) -> None:
        self.status = 200
        self.port = 0
        self.bodies: list[bytes] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # a probe that only connects
            writer.close()
            return
        length = next(
            (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0
        )
        self.bodies.append(await reader.readexactly(length))
        more = b"Location: http://127.0.0.1:1/\r\n" if self.status == 302 else b""
        writer.write(b"HTTP/1.1 %d X\r\n%bContent-Length: 0\r\nConnection: close\r\n\r\n" % (self.status, more))
        await writer.drain()
        writer.close()


@asynccontextmanager
async def site(trust: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    made = Site()
    server = await asyncio.start_server(made.answer, "127.0.0.1", 0, ssl=trust)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


def instance(port: int, protocol: str = "", host: str = "127.0.0.1") -> Instance:
    return Instance("a", "game", "g", private_ip=host, port=port, protocol=protocol)


@asynccontextmanager
async def grpc_health(status: int) -> AsyncIterator[int]:
    async def check(request: bytes, context: Any) -> bytes:
        return b"\x08" + bytes([status])

    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler(
        "grpc.health.v1.Health", {"Check": grpc.unary_unary_rpc_method_handler(check)}
    )
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whoever is asked without a check of its own take longer than a machine stands still."""
    monkeypatch.setattr("headgate.registry.probes.DISCOVERY_TIMEOUT", 10.0)


@pytest.mark.usefixtures("patient")
async def test_http_is_healthy_by_2xx_and_follows_no_redirect() -> None:
    prober = Prober(LOCAL)
    async with site() as web:
        for status, healthy in ((200, True), (204, True), (302, False), (404, False), (500, False)):
            web.status = status
            assert await prober.healthy(instance(web.port, "http")) is healthy, status
    assert not await prober.healthy(instance(free_port(), "http"))


@pytest.mark.usefixtures("patient")
async def test_https_certificates_are_verified(tmp_path: Any) -> None:
    authority = Authority(tmp_path)
    chain = authority.issue("127.0.0.1", tmp_path)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(chain.chain, chain.key)
    async with site(server_side) as web:
        assert not await Prober(LOCAL).healthy(instance(web.port, "https"))
        trust = ssl.create_default_context(cafile=str(authority.certificate))
        assert await Prober(LOCAL, trust=trust).healthy(instance(web.port, "https"))


@pytest.mark.usefixtures("patient")
async def test_tcp_and_websocket() -> None:
    prober = Prober(LOCAL)
    async with site() as web:
        assert await prober.healthy(instance(web.port))
        assert not await prober.healthy(instance(web.port, "ws")), "an open port is no WebSocket"

    async def idle(connection: Any) -> None:
        await connection.wait_closed()

    async with serve_websocket(idle, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        assert await prober.healthy(instance(port, "websocket"))
    assert not await prober.healthy(instance(port))


@pytest.mark.usefixtures("patient")
async def test_grpc_is_healthy_only_when_serving() -> None:
    prober = Prober(LOCAL)
    async with grpc_health(1) as port:
        assert await prober.healthy(instance(port, "grpc"))
    async with grpc_health(2) as port:
        assert await prober.healthy(instance(port)), "the port is open"
        assert not await prober.healthy(instance(port, "grpc")), "but it says NOT_SERVING"
    async with site() as web:
        assert not await prober.healthy(instance(web.port, "grpc")), "an HTTP server is no gRPC server"


@pytest.mark.usefixtures("patient")
async def test_probes_stay_in_the_allowed_networks_and_off_the_store() -> None:
    async with site() as web:
        assert not await Prober(["10.0.0.0/8"]).healthy(instance(web.port, "http"))
        assert not await Prober(LOCAL, forbidden=lambda: [("127.0.0.1", web.port)]).healthy(instance(web.port, "http"))
        assert web.bodies == [], "nobody was called"
        check = Check(kind=CheckKind.HTTP, url=f"http://localhost:{web.port}/health", timeout_seconds=10)
        assert not await Prober(["10.0.0.0/8"]).healthy(instance(1), check)
        assert await Prober(LOCAL).healthy(instance(1), check)


@pytest.mark.usefixtures("patient")
async def test_the_store_is_out_of_reach_by_every_name(store: Store) -> None:
    for node in store.route.nodes():
        prober = prober_for(store, RegistrySettings())
        assert await Prober(LOCAL).healthy(instance(node.port)), "it is there"
        for host in ("127.0.0.1", "localhost", "::ffff:127.0.0.1", "127.0.0.5"):
            assert not await prober.healthy(instance(node.port, host=host)), host
    assert not await Prober(LOCAL, forbidden=lambda: [("localhost", node.port)]).healthy(instance(node.port))


@pytest.mark.usefixtures("patient")
async def test_a_name_is_asked_at_each_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = socket.getaddrinfo

    def both(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        """As a machine answers that has both families; ours may have one only."""
        if host != "both.test":
            return found(host, port, *args, **options)
        return [*found("127.0.0.9", port, *args, **options), *found("127.0.0.1", port, *args, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    async with site() as web:
        assert await Prober(LOCAL).healthy(instance(web.port, "http", "both.test"))
        assert not await Prober(["127.0.0.1/32"]).healthy(instance(web.port, "http", "both.test")), "one is forbidden"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://a:99999/"), ("127.0.0.1", "http://[::1"), ("127.0.0.1", "/a b\x00"),
        ("127.0.0.1", "/\r\nX: y"), ("ä b", "/"), ("[::1]", "/"), ("a/b#", None), ("x" * 250, None), ("\x7f", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["http", "ws", "grpc", "tcp"])
async def test_an_address_that_makes_no_sense_is_a_failed_probe(host: str, url: str | None, kind: str) -> None:
    check = Check(kind=CheckKind.HTTP, url=url) if url else None
    assert not await Prober(LOCAL).healthy(instance(80, kind, host), check)


@asynccontextmanager
async def hanging() -> AsyncIterator[int]:
    """A server that takes connections and never answers."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.usefixtures("patient")
async def test_a_hanging_server_costs_only_its_own_time() -> None:
    async with site() as web, hanging() as port:
        chosen = await Prober(LOCAL).answering([instance(port, "http"), instance(web.port, "http")], 3)
        assert [each.port for each in chosen] == [web.port]


async def test_an_answer_is_waited_for_as_long_as_its_check_says() -> None:
    """The clients of HTTP and WebSocket have limits of their own, five and ten seconds, unless they are told otherwise."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(5.5)
        writer.write(b"HTTP/1.1 200 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async def consider(connection: Any, request: Any) -> None:
        await asyncio.sleep(10.5)

    async def idle(connection: Any) -> None:
        await connection.wait_closed()

    server = await asyncio.start_server(slow, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        serve_websocket(idle, "127.0.0.1", 0, process_request=consider, open_timeout=None) as sockets,
    ):
        there = next(iter(sockets.sockets)).getsockname()[1]
        patient = [
            (port, Check(kind=CheckKind.HTTP, timeout_seconds=30)),
            (there, Check(kind=CheckKind.WEBSOCKET, timeout_seconds=30)),
        ]
        prober = Prober(LOCAL)
        assert all(await asyncio.gather(*(prober.healthy(instance(each), check) for each, check in patient)))


async def steps(checker: HealthChecker, until: Callable[[], Awaitable[bool]]) -> None:
    async def step() -> bool:
        await checker.step()
        return await until()

    await eventually(step, 15, every=0.1)


def check_of(port: int, **fields: Any) -> Check:
    fields = {"timeout_seconds": 10, "interval_seconds": 0.5, "rise": 2, "fall": 2} | fields
    return Check(kind=CheckKind.HTTP, url=f"http://127.0.0.1:{port}/", **fields)


async def healthy(registry: Registry) -> list[str]:
    listing = await registry.discover(NS, "game", "g", healthy=True)
    return [each.instance_id for each in listing.instances]


async def test_enough_failures_turn_it_unhealthy_and_enough_successes_back(store: Store) -> None:
    registry = Registry(store)
    checker = HealthChecker(registry, Prober(LOCAL), Alerts())
    async with site() as web:
        await registry.register(NS, Record(type="game", group="g", instance_id="a", check=check_of(web.port)))
        web.status = 500

        async def sick() -> bool:
            return await healthy(registry) == []

        async def well() -> bool:
            return await healthy(registry) == ["a"]

        await steps(checker, sick)
        assert len(web.bodies) >= 2, "one failure is not enough"
        web.status = 200
        await steps(checker, well)
    thing = registry.service(NS, "game", "g")
    kinds = [change.kind for change in (await registry.feed.read(thing, 0)).changes]
    assert kinds == ["put", "put", "put"]


async def test_workers_divide_the_checks_and_take_over(store: Store) -> None:
    registry = Registry(store)
    checkers = [HealthChecker(Registry(store), Prober(LOCAL), Alerts()) for _ in range(3)]
    async with site() as web:
        for number in range(10):
            record = Record(type="game", group="g", instance_id=f"i{number}", check=check_of(web.port))
            await registry.register(NS, record)
        begun = monotonic()

        async def enough() -> bool:
            await asyncio.gather(*(checker.step() for checker in checkers))
            return monotonic() - begun > 3 and len(web.bodies) >= 20

        await eventually(enough, 30, every=0.1)
        # 10 instances, twice a second, in 3 s: 60, less the staggered start; doubled work would be 180.
        assert len(web.bodies) <= 25 * (monotonic() - begun)


async def test_a_check_that_hangs_holds_up_no_other_and_is_made_once(store: Store) -> None:
    registry = Registry(store)
    calls = 0

    class Counted(Prober):
        async def healthy(self, instance: Instance, check: Check | None = None) -> bool:
            nonlocal calls
            calls += instance.instance_id == "stuck"
            return await super().healthy(instance, check)

    checkers = [HealthChecker(Registry(store), Counted(LOCAL), Alerts()) for _ in range(2)]
    async with site() as web, hanging() as port:
        await registry.register(
            NS, Record(type="game", group="g", instance_id="stuck", check=check_of(port, timeout_seconds=60))
        )
        for group in ("g", "h"):
            record = Record(type="game", group=group, instance_id=f"ok-{group}", check=check_of(web.port))
            await registry.register(NS, record)

        async def step() -> bool:
            for checker in checkers:
                await checker.step()
            return len(web.bodies) >= 16

        await eventually(step, 15, every=0.05)
    assert calls == 1, "five seconds of two workers, and nobody asks again while the first still waits"


async def test_the_checks_of_a_worker_that_died_are_taken_over(store: Store) -> None:
    class Dying(Prober):
        async def healthy(self, instance: Instance, check: Check | None = None) -> bool:
            await asyncio.Event().wait()  # and nothing more is heard of it
            return False

    registry = Registry(store)
    dead, heir = (HealthChecker(Registry(store), kind(LOCAL), Alerts()) for kind in (Dying, Prober))
    async with site() as web:
        check = check_of(web.port, timeout_seconds=1)
        await registry.register(NS, Record(type="game", group="g", instance_id="a", check=check))

        async def taken() -> bool:
            await dead.step()
            return dead._in_flight == 1

        await eventually(taken)
        loop = asyncio.get_running_loop()
        begun = loop.time()

        async def inherited() -> bool:
            await heir.step()
            return bool(web.bodies)

        await eventually(inherited, 15, every=0.05)
        assert loop.time() - begun > 1, "not while the first may still answer"


async def test_checks_are_made_in_time_after_the_clock_was_put_back(store: Store) -> None:
    """Somebody who lives without heartbeats is checked, and nothing else is written."""
    registry = Registry(store)
    async with site() as web:
        checker = HealthChecker(registry, Prober(LOCAL), Alerts())
        check = check_of(web.port)
        await registry.register(NS, Record(type="game", group="g", instance_id="a", check=check, ephemeral=False))

        async def checked(times: int) -> bool:
            await checker.step()
            return len(web.bodies) >= times

        await eventually(lambda: checked(1))
        store.step_clock(-3_600_000)
        await eventually(lambda: checked(4), 20, every=0.05)


async def test_a_record_that_changes_does_not_put_off_its_check(store: Store) -> None:
    registry = Registry(store)
    thing = registry.service(NS, "game", "g")

    async def due() -> object:
        return await store.read(thing, "ZSCORE", thing.key("due"), "a")

    check = check_of(1, remove_after_seconds=5)
    await registry.register(NS, Record(type="game", group="g", instance_id="a", check=check))
    before = await due()
    for number in range(20):
        await registry.renew(NS, Record(type="game", group="g", instance_id="a", check=check, metadata={"n": number}))
    assert await due() == before


async def test_whoever_stays_unhealthy_is_removed_if_asked(store: Store) -> None:
    registry = Registry(store)
    checker = HealthChecker(registry, Prober(LOCAL), Alerts())
    check = check_of(free_port(), remove_after_seconds=1)
    await registry.register(NS, Record(type="game", group="g", instance_id="a", check=check))

    async def gone() -> bool:
        return not (await registry.discover(NS, "game", "g")).instances

    await steps(checker, gone)
    thing = registry.service(NS, "game", "g")
    assert b'"reason":"unhealthy"' in (await registry.feed.read(thing, 0)).changes[-1].value


@pytest.mark.parametrize("format_", ["generic", "slack", "pagerduty"])
async def test_a_death_reaches_the_webhook_even_if_it_refuses_at_first(store: Store, format_: str) -> None:
    async with site() as hook:
        hook.status = 503
        alerts = Alerts(AlertTarget(f"http://127.0.0.1:{hook.port}/", format_, "routing"))
        sending = asyncio.ensure_future(alerts.run())
        registry = Registry(store)
        await registry.register(NS, Record(type="game", group="g", instance_id="a", ttl_seconds=1))
        store.advance_clock(1500)
        await Sweeper(registry, alerts).sweep(registry.service(NS, "game", "g"))
        await eventually(lambda: len(hook.bodies) >= 1)
        hook.status = 200
        await eventually(lambda: len(hook.bodies) >= 2)
        body = msgspec.json.decode(hook.bodies[1])
        match format_:
            case "slack":
                assert "stopped beating" in body["text"]
            case "pagerduty":
                assert (body["routing_key"], body["event_action"]) == ("routing", "trigger")
                assert "stopped beating" in body["payload"]["summary"]
            case _:
                assert (body["kind"], body["service"], body["resolved"]) == ("death", "game/g", False)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
