"""A small site to protect, and the proxies in front of it, each started from the configuration that we ship."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import httpx2
import yaml  # type: ignore[import-untyped]

from tests.processes import PATIENT, GatewayProcess
from tests.programs import need
from tests.topology import HOST, eventually, free_port, reaper, wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"


class Site(BaseHTTPRequestHandler):
    """Says which page was asked for, and repeats the request's headers that a gate must not have let through."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = f"page {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "public, max-age=60")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


for _method in ("HEAD", "OPTIONS", "DELETE"):
    setattr(Site, f"do_{_method}", Site.do_GET)
for _method in ("PUT", "PATCH"):
    setattr(Site, f"do_{_method}", Site.do_POST)


@contextmanager
def site() -> Iterator[int]:
    """Serve the site on a free port."""
    with ThreadingHTTPServer((HOST, 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@contextmanager
def nginx(gateway_port: int, site_port: int, *, board_cache: bool = False, fail_open: bool = False) -> Iterator[str]:
    """Run nginx with our configuration and the five lines that it asks for, with the board's cache or the other choice if wanted."""
    program, directory, port = need("nginx"), reaper().directory("nginx"), free_port()
    cache = f"proxy_cache_path {directory}/cache keys_zone=headgate:1m max_size=16m inactive=1m;" if board_cache else ""
    board = f"include {DEPLOY}/nginx/headgate-board.conf;" if board_cache else ""
    shipped = (DEPLOY / "nginx" / "headgate.conf").read_text()
    if fail_open:
        shipped, changed = re.subn(r"return 503 .*;", f"proxy_pass http://{HOST}:{site_port};", shipped)
        assert changed == 1
    (directory / "headgate.conf").write_text(shipped)
    # The cache's directory must belong to the workers, and whoever runs tests as root has a directory that is root's.
    user = "user root;" if os.geteuid() == 0 else ""
    (directory / "nginx.conf").write_text(f"""
{user}
daemon off;
pid {directory}/pid;
error_log {directory}/error.log;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy; fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi; {cache}
    upstream headgate {{ server {HOST}:{gateway_port}; keepalive 64; }}
    server {{
        listen {HOST}:{port};
        include {directory}/headgate.conf; {board}
        location / {{
            auth_request /_headgate;
            add_header   Set-Cookie $headgate_cookie always;
            add_header   Cache-Control $headgate_cache always;
            error_page 401 = @headgate_wait;
            error_page 500 = @headgate_busy;
            proxy_pass http://{HOST}:{site_port};
        }}
    }}
}}
""")
    command = [program, "-p", str(directory), "-c", str(directory / "nginx.conf")]
    with running(command, directory, port, {}):
        yield f"http://{HOST}:{port}"


@contextmanager
def caddy(gateway_port: int, site_port: int) -> Iterator[str]:
    """Run Caddy with our configuration."""
    program, directory, port = need("caddy"), reaper().directory("caddy"), free_port()
    environment = {
        "LISTEN": f"http://{HOST}:{port}",
        "GATEWAY": f"{HOST}:{gateway_port}",
        "SITE": f"{HOST}:{site_port}",
        "HOME": str(directory),
    }
    command = [program, "run", "--config", str(DEPLOY / "caddy" / "Caddyfile"), "--adapter", "caddyfile"]
    with running(command, directory, port, environment):
        yield f"http://{HOST}:{port}"


@contextmanager
def envoy(gateway_port: int, site_port: int, *, fail_open: bool = False) -> Iterator[str]:
    """Run Envoy with our configuration, or the other choice if wanted; a configuration that it warns of is an error."""
    program, directory, port = need("envoy"), reaper().directory("envoy"), free_port()
    shipped = yaml.safe_load((DEPLOY / "envoy" / "envoy.yaml").read_text())
    resources = shipped["static_resources"]
    if fail_open:
        (gate,) = [each for each in _nested(resources) if "failure_mode_allow" in each]
        gate["failure_mode_allow"] = True
    resources["listeners"][0]["address"]["socket_address"] |= {"address": HOST, "port_value": port}
    ports = {"headgate": gateway_port, "shop": site_port}
    for cluster in resources["clusters"]:
        (endpoints,) = cluster["load_assignment"]["endpoints"]
        address = endpoints["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
        address |= {"address": HOST, "port_value": ports.pop(cluster["name"])}
    assert not ports
    (directory / "envoy.yaml").write_text(yaml.safe_dump(shipped))
    command = [
        program,
        "-c",
        str(directory / "envoy.yaml"),
        "--disable-hot-restart",
        "--concurrency",
        "1",
        "-l",
        "warn",
    ]
    with running(command, directory, port, {}):
        assert "eprecated" not in (directory / "log").read_text()
        yield f"http://{HOST}:{port}"


@contextmanager
def traefik(gateway_port: int, site_port: int) -> Iterator[str]:
    """Run Traefik with our configuration, for the host that tests name."""
    program, directory, port = need("traefik"), reaper().directory("traefik"), free_port()
    shipped = (DEPLOY / "traefik" / "dynamic.yml").read_text()
    for written, here in {
        "shop.example": HOST,
        "http://shop:9000": f"http://{HOST}:{site_port}",
        "http://headgate:8080": f"http://{HOST}:{gateway_port}",
    }.items():
        assert written in shipped
        shipped = shipped.replace(written, here)
    (directory / "dynamic.yml").write_text(shipped)
    command = [
        program,
        f"--entryPoints.web.address={HOST}:{port}",
        f"--providers.file.filename={directory}/dynamic.yml",
        "--providers.file.watch=false",
        "--global.checkNewVersion=false",
        "--global.sendAnonymousUsage=false",
    ]
    with running(command, directory, port, {}):
        yield f"http://{HOST}:{port}"


def _nested(value: Any) -> Iterator[dict[str, Any]]:
    """Give all objects of a configuration."""
    if isinstance(value, dict):
        yield value
    for below in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _nested(below)


Start = Callable[[int, int], AbstractContextManager[str]]
PROXIES: dict[str, Start] = {"nginx": nginx, "caddy": caddy, "envoy": envoy, "traefik": traefik}


@contextmanager
def running(command: list[str], directory: Path, port: int, environment: dict[str, str]) -> Iterator[None]:
    with (directory / "log").open("ab") as output:
        process = reaper().spawn(command, output, environment)

    def listens() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"{command[0]} ended:\n{(directory / 'log').read_text()[-2000:]}")
        try:
            urlopen(f"http://{HOST}:{port}/wait/none?return=/", timeout=2).close()
        except HTTPError as error:
            return error.code != 404  # Traefik listens before it has read its configuration
        except OSError as error:
            return "refused" not in str(error)
        return True

    try:
        wait_until(listens, 20, f"{command[0]} listens")
        yield
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def guarded(store_url: str) -> Iterator[GatewayProcess]:
    """Run a gateway that trusts the proxies of this machine, and lets one address try as much as a test does."""
    limits = json.dumps({"entry": {"per_second": 1000, "burst": 100_000}})
    environment = {"HEADGATE_GATEWAY_TRUSTED_PROXIES": "127.0.0.0/8", "HEADGATE_GATEWAY_LIMITS": limits, **PATIENT}
    with GatewayProcess(store_url, environment=environment) as process:
        yield process


async def configure(admin: httpx2.AsyncClient, queue: str, **policy: object) -> None:
    """Write a queue's policy and wait until it is in force."""
    answer = await admin.put(f"/api/admin/queues/{queue}", json={"paths": [f"/{queue}/**"], **policy})
    assert answer.status_code in (200, 201), answer.text

    async def in_force() -> bool:
        check = await admin.get("/api/gate/check", params={"path": f"/{queue}/x", "userId": "probe"})
        return bool(check.json().get("queue") == queue)

    # In force on every gateway within a second; the gate says so itself.
    await eventually(in_force, 5, "the policy is in force", every=0.05)
    await admin.delete("/api/queue/entry", params={"userId": "probe", "queue": queue})


async def passes(visitor: httpx2.AsyncClient, asked: str) -> str:
    """Ask until the site answers, as the page does when it is somebody's turn."""
    answers: list[httpx2.Response] = []

    async def passed() -> bool:
        answers.append(await visitor.get(asked))
        return answers[-1].status_code == 200

    await eventually(passed, 10, "the site answers", every=0.2)
    return answers[-1].text
