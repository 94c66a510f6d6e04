"""Gateways and relays that are restarted one after the other under keep-alive load: nobody's request is lost."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx2
import psutil
import pytest

from tests.http.echo import Echo
from tests.http.relays import RelayProcess, client_of, put
from tests.http.wires import read_answer
from tests.processes import PATIENT, GatewayProcess
from tests.programs import need
from tests.proxy.site import running
from tests.topology import HOST, Topology, free_port, reaper, wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.alone, pytest.mark.release]

CLIENTS = 12
QUIET = {**PATIENT, "HEADGATE_GATEWAY_QUIET_SECONDS": "1.5"}
HEAD = "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n"


class Load:
    """Clients that keep their connections, go elsewhere where nobody listens any more, and never send anything twice."""

    def __init__(self, ports: list[int], request: Callable[[int], bytes]) -> None:
        self._ports = ports
        self._request = request
        self._over = False
        self.answered = 0
        self.told_to_close = 0
        self.lost: list[str] = []

    async def run(self, during: Callable[[], None]) -> None:
        """Ask again and again while something is done in a thread."""
        clients = [asyncio.ensure_future(self._client(number)) for number in range(CLIENTS)]
        try:
            await asyncio.to_thread(during)
        finally:
            self._over = True
            await asyncio.gather(*clients)

    async def _client(self, number: int) -> None:
        turn = number
        while not self._over:
            turn += 1
            try:
                reader, writer = await asyncio.open_connection(HOST, self._ports[turn % len(self._ports)])
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)
                continue
            await self._ask(reader, writer)
            writer.close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not self._over:
            try:
                writer.write(self._request(self.answered))
                status, headers, body = await read_answer(reader)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                self.lost.append(repr(error))
                return
            self.answered += 1
            if status >= 400:
                self.lost.append(f"{status} {body[:200]!r}")
            if headers.get("connection") == "close":
                self.told_to_close += 1
                return


def message(method: str, path: str, body: object = None, headers: str = "") -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    return (HEAD.format(method=method, path=path, size=len(content)) + headers + "\r\n").encode() + content


def restart(processes: list[GatewayProcess]) -> Callable[[], None]:
    """Stop and start each process in turn, as a rolling update does."""

    def roll() -> None:
        for process in processes:
            assert process.stop(30) == 0
            process.start()

    return roll


@pytest.fixture(scope="module")
def gateways(server: Topology) -> Iterator[list[GatewayProcess]]:
    with ExitStack() as stack:
        first = GatewayProcess(server.url, environment=QUIET)
        shared = {**QUIET, "HEADGATE_STORE_PREFIX": first.prefix, "HEADGATE_ADMIN_TOKEN": first.token}
        second = GatewayProcess(server.url, "--workers", "2", environment=shared)
        yield [stack.enter_context(each) for each in (first, second)]


def read(number: int) -> bytes:
    return message("GET", "/api/queue/board?queue=main")


def entry(number: int) -> bytes:
    return message("POST", "/api/queue/entry", {"queue": "main", "nickname": f"n{number}"})


def make_queue(gateway: GatewayProcess) -> None:
    limits = {"X-API-Token": gateway.token}
    made = httpx2.put(f"{gateway.url}/api/admin/queues/main", json={"seats": "fixed", "capacity": 1}, headers=limits)
    assert made.status_code in (200, 201), made.text


@pytest.mark.parametrize("request_of", [read, entry])
async def test_a_rolling_restart_of_gateways_loses_no_request(
    gateways: list[GatewayProcess], request_of: Callable[[int], bytes]
) -> None:
    make_queue(gateways[0])
    token = f"X-API-Token: {gateways[0].token}\r\n\r\n".encode()
    load = Load(
        [each.port for each in gateways], lambda number: request_of(number).replace(b"\r\n\r\n", b"\r\n" + token, 1)
    )
    await load.run(restart(gateways))
    assert not load.lost, f"{len(load.lost)} of {load.answered}: {load.lost[:5]}"
    assert load.told_to_close >= CLIENTS


@contextmanager
def balancing(gateways: list[GatewayProcess]) -> Iterator[int]:
    """Run nginx in front of all gateways, with connections that it keeps."""
    program, directory, port = need("nginx"), reaper().directory("nginx"), free_port()
    servers = " ".join(f"server {HOST}:{each.port} max_fails=0;" for each in gateways)
    (directory / "nginx.conf").write_text(f"""
daemon off;
pid {directory}/pid;
error_log {directory}/error.log;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy; fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;
    upstream headgate {{ {servers} keepalive 64; }}
    server {{
        listen {HOST}:{port};
        keepalive_requests 1000000;
        location / {{ proxy_pass http://headgate; proxy_http_version 1.1; proxy_set_header Connection ""; }}
    }}
}}
""")
    with running([program, "-p", str(directory), "-c", str(directory / "nginx.conf")], directory, port, {}):
        yield port


@pytest.mark.parametrize("request_of", [read, entry])
async def test_a_rolling_restart_behind_nginx_loses_no_request(
    gateways: list[GatewayProcess], request_of: Callable[[int], bytes]
) -> None:
    make_queue(gateways[0])
    token = f"X-API-Token: {gateways[0].token}\r\n\r\n".encode()
    with balancing(gateways) as port:
        load = Load([port], lambda number: request_of(number).replace(b"\r\n\r\n", b"\r\n" + token, 1))
        await load.run(restart(gateways))
    assert not load.lost, f"{len(load.lost)} of {load.answered}: {load.lost[:5]}"


async def test_a_rolling_restart_of_relays_loses_no_request(server: Topology) -> None:
    with ExitStack() as stack:
        first = RelayProcess(server.url, environment=QUIET)
        shared = {**QUIET, "HEADGATE_ADMIN_TOKEN": first.token}
        relays = [
            stack.enter_context(each)
            for each in (first, RelayProcess(server.url, prefix=first.prefix, environment=shared))
        ]
        async with Echo().open() as echo, client_of(first) as client:
            await put(client, "echo", echo.url, {"count": 10_000, "seconds": 1})
            headers = f"X-API-Token: {first.token}\r\nX-User-Id: u1\r\n"
            load = Load([each.port for each in relays], lambda number: message("GET", "/relay/echo/x", headers=headers))
            await load.run(restart(list(relays)))
    assert not load.lost, f"{len(load.lost)} of {load.answered}: {load.lost[:5]}"
    assert load.told_to_close >= CLIENTS


def test_a_worker_that_gets_the_signal_too_goes_quiet_with_its_parent(server: Topology) -> None:
    """systemd sends SIGTERM to every process of a service, workers included."""
    with GatewayProcess(server.url, environment={**QUIET, "HEADGATE_GATEWAY_QUIET_SECONDS": "3"}) as gateway:
        worker = psutil.Process(gateway.pid).children()[0]
        for pid in (worker.pid, gateway.pid):
            psutil.Process(pid).send_signal(signal.SIGTERM)
        wait_until(lambda: httpx2.get(f"{gateway.ops_url}/readyz").status_code == 503, 2, "it says that it is stopping")
        answer = httpx2.get(f"{gateway.url}/openapi.json")
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert gateway.stopped(20) == 0
