"""Probes check whether an instance responds, over HTTP, TCP, gRPC or WebSocket.

A probe connects only to networks that the settings allow, and to the very address that was checked, so that a changed
DNS answer cannot redirect it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from typing import Final
from urllib.parse import urlsplit

import httpx2
import msgspec
from websockets.asyncio.client import connect

from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError
from headgate.kit.tasks import Tasks
from headgate.registry import metrics
from headgate.registry.model import Check, CheckKind, Instance
from headgate.registry.problems import ProbeForbidden
from headgate.registry.settings import RegistrySettings
from headgate.store import Store

SERVING: Final = 1
DISCOVERY_TIMEOUT: Final = 2.0
_KINDS: Final = {
    "http": CheckKind.HTTP, "https": CheckKind.HTTP, "grpc": CheckKind.GRPC, "ws": CheckKind.WEBSOCKET,
    "wss": CheckKind.WEBSOCKET, "websocket": CheckKind.WEBSOCKET,
}  # fmt: skip
_PORTS: Final = {"http": 80, "ws": 80, "https": 443, "wss": 443}

log = get_logger()


class ProbeTarget(msgspec.Struct, frozen=True):
    """The address and protocol of a probe."""

    kind: CheckKind
    scheme: str
    host: str
    port: int
    path: str = "/"


class Prober:
    """Makes probes, with a limit on how many run at once; one per process."""

    def __init__(
        self,
        networks: Iterable[str],
        *,
        forbidden: Callable[[], Iterable[tuple[str, int]]] = tuple,
        at_once: int = 64,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self.at_once = at_once
        self._networks = [ipaddress.ip_network(network) for network in networks]
        self._forbidden = forbidden
        self._slots = asyncio.Semaphore(at_once)
        self._ssl_context_given = trust

    @cached_property
    def _ssl_context(self) -> ssl.SSLContext:
        """Load the trusted certificates on first use, because loading takes long."""
        return self._ssl_context_given or ssl.create_default_context()

    async def healthy(self, instance: Instance, check: Check | None = None) -> bool:
        """Probe an instance by its check, or by its protocol and port; False on any failure."""
        timeout = check.timeout_seconds if check else DISCOVERY_TIMEOUT
        kind = check.kind if check else _KINDS.get(instance.protocol.lower(), CheckKind.TCP)
        outcome = False
        async with self._slots:
            try:
                target = target_of(instance, check)
                async with asyncio.timeout(timeout):
                    outcome = target is not None and await self._probe(target)
            except Exception as error:  # noqa: BLE001  # input from outside: any failure means unhealthy
                log.debug("probe failed", instance=instance.instance_id, error=str(error) or type(error).__name__)
        metrics.PROBES.labels(kind, "healthy" if outcome else "unhealthy").inc()
        return outcome

    async def answering(self, instances: list[Instance], seconds: float = DISCOVERY_TIMEOUT) -> list[Instance]:
        """Keep the instances that answer a probe now; all are probed concurrently within one time limit."""
        async with Tasks() as tasks:
            probes = [tasks.start(self.healthy(instance, instance.check)) for instance in instances]
            if probes:
                await asyncio.wait(probes, timeout=seconds)
            return [instance for instance, task in zip(instances, probes, strict=True) if task.done() and task.result()]

    async def _probe(self, target: ProbeTarget) -> bool:
        """Try each address of the host until one can be reached."""
        addresses = await _addresses(target.host, target.port)
        for address in addresses:
            await self._refuse(target, address)
        for address in addresses[:-1]:
            with suppress(OSError, httpx2.ConnectError):
                return await self._probe_at(target, address)
        return await self._probe_at(target, addresses[-1])

    async def _probe_at(self, target: ProbeTarget, address: str) -> bool:
        match target.kind:
            case CheckKind.HTTP:
                return await self._probe_http(target, address)
            case CheckKind.TCP:
                _, writer = await asyncio.open_connection(address, target.port)
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()
                return True
            case CheckKind.GRPC:
                return await _probe_grpc(address, target.port)
            case CheckKind.WEBSOCKET:
                return await self._probe_websocket(target, address)

    async def _refuse(self, target: ProbeTarget, address: str) -> None:
        """Refuse addresses outside the allowed networks, and those of the store."""
        ip = _ip(address)
        if not any(ip in network for network in self._networks if network.version == ip.version):
            raise ProbeForbidden(f"Health checks may not reach {address}; see registry.probe_networks.")
        for host, port in self._forbidden():
            if port != target.port:
                continue
            theirs = [_ip(each) for each in await _addresses(host, port)]
            if ip in theirs or (ip.is_loopback and any(each.is_loopback for each in theirs)):
                raise ProbeForbidden("Health checks may not reach the store.")

    async def _probe_http(self, target: ProbeTarget, address: str) -> bool:
        host = f"[{address}]" if ":" in address else address
        trust = self._ssl_context if target.scheme == "https" else False
        # No timeouts here and below: the check has one.
        async with httpx2.AsyncClient(verify=trust, timeout=None, follow_redirects=False, trust_env=False) as client:
            request = client.build_request(
                "GET",
                f"{target.scheme}://{host}:{target.port}{target.path}",
                headers={"Host": f"{target.host}:{target.port}", "User-Agent": "headgate-health"},
                extensions={"sni_hostname": target.host},
            )
            response = await client.send(request, stream=True)
            try:
                return 200 <= response.status_code < 300
            finally:
                await response.aclose()

    async def _probe_websocket(self, target: ProbeTarget, address: str) -> bool:
        uri = f"{target.scheme}://{target.host}:{target.port}{target.path}"
        trust = self._ssl_context if target.scheme == "wss" else None
        connection = await connect(
            uri, host=address, port=target.port, proxy=None, ssl=trust, open_timeout=None, close_timeout=1
        )
        await connection.close()
        return True


async def _addresses(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    ip = ipaddress.ip_address(address.partition("%")[0])
    return getattr(ip, "ipv4_mapped", None) or ip


async def _probe_grpc(address: str, port: int) -> bool:
    """Call the gRPC health protocol for the whole server; NOT_SERVING is unhealthy."""
    try:
        import grpc
    except ImportError as error:
        raise HeadgateError("gRPC checks need headgate[grpc].") from error
    host = f"[{address}]" if ":" in address else address
    async with grpc.aio.insecure_channel(f"{host}:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            answer: bytes = await check(b"")
        except grpc.RpcError as error:
            raise OSError(f"gRPC health: {error.code().name}") from error
    # HealthCheckResponse has one field: 1, the status.
    return answer[:1] == b"\x08" and len(answer) > 1 and answer[1] == SERVING


def prober_for(store: Store, settings: RegistrySettings) -> Prober:
    """Make the prober of a process: it may reach the networks of the settings, but not the store."""
    return Prober(settings.probe_networks, forbidden=store.route.nodes, at_once=settings.probe_at_once)


def target_of(instance: Instance, check: Check | None) -> ProbeTarget | None:
    """Give the address to probe: the check's own, or the instance's; None if it has none."""
    protocol = instance.protocol.lower()
    kind = check.kind if check else _KINDS.get(protocol, CheckKind.TCP)
    if check and check.url and not check.url.startswith("/"):
        parts = urlsplit(check.url)
        if parts.scheme not in _PORTS or not parts.hostname:
            return None
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return ProbeTarget(kind, parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme], path)
    port = (check.port if check else None) or instance.port
    if not instance.address or not port:
        return None
    secure = protocol in ("https", "wss")
    scheme = {CheckKind.HTTP: ("http", "https"), CheckKind.WEBSOCKET: ("ws", "wss")}.get(kind, ("", ""))[secure]
    return ProbeTarget(kind, scheme, instance.address, port, check.url if check and check.url else "/")
