"""nginx for the benches, from the configuration that we ship: before a site, with and without the gate, and as the board's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from bench.cores import CORES, pinned
from bench.harness import ROOT
from tests.topology import HOST, free_port, reaper, wait_until

SHIPPED: Final = ROOT / "deploy" / "nginx"
PAGE: Final = "x" * 1024
GATED: Final = """
    auth_request     /_headgate;
    add_header       Set-Cookie $headgate_cookie always;
    error_page 401 = @headgate_wait;
    error_page 500 = @headgate_busy;
"""


class Nginx(msgspec.Struct, frozen=True):
    """A running nginx and where it listens."""

    pid: int
    plain: str
    gated: str


def program() -> str | None:
    """Find nginx."""
    return shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/sbin")


@contextmanager
def site() -> Iterator[int]:
    """Serve one static page from an nginx of its own, away from the core under test, and give its port."""
    port = free_port()
    with _running(f"server {{ listen {HOST}:{port}; location / {{ return 200 '{PAGE}'; }} }}", port, CORES.load):
        yield port


@contextmanager
def proxy(gateway_port: int, site_port: int) -> Iterator[Nginx]:
    """Put nginx before the site twice, once with the gate and once without, and before the board with its cache."""
    plain, gated = free_port(), free_port()
    servers = f"""
upstream headgate {{ server {HOST}:{gateway_port}; keepalive 64; }}
upstream site {{ server {HOST}:{site_port}; keepalive 64; }}
proxy_cache_path cache keys_zone=headgate:1m max_size=16m inactive=1m;
server {{
    listen {HOST}:{plain};
    location / {{ {_TO_SITE} }}
}}
server {{
    listen {HOST}:{gated};
    include {SHIPPED}/headgate.conf;
    include {SHIPPED}/headgate-board.conf;
    location / {{ {GATED} {_TO_SITE} }}
}}
"""
    with _running(servers, plain, CORES.server) as pid:
        yield Nginx(pid, f"http://{HOST}:{plain}", f"http://{HOST}:{gated}")


_TO_SITE: Final = 'proxy_pass http://site; proxy_http_version 1.1; proxy_set_header Connection "";'


@contextmanager
def _running(servers: str, port: int, cores: set[int]) -> Iterator[int]:
    folder = reaper().directory("nginx")
    paths = "".join(f"{name}_temp_path {name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        f"{'user root; ' if os.geteuid() == 0 else ''}daemon off; pid pid; error_log error.log; worker_processes 1; events {{ worker_connections 4096; }}"
        f"http {{ access_log off; keepalive_requests 1000000; {paths} {servers} }}"
    )
    command = [program() or "nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "error.log"]
    with (folder / "log").open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=pinned(cores)
        )

    def answers() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"nginx ended:\n{(folder / 'log').read_text()[-2000:]}")
        try:
            urllib.request.urlopen(f"http://{HOST}:{port}/", timeout=2).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    try:
        wait_until(answers, 20, "nginx answers")
        yield process.pid
    finally:
        process.terminate()
        process.wait(10)
