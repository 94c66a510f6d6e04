"""A single server, Valkey from the wheel or Debian's Redis, plain or with TLS."""

from __future__ import annotations

from typing import Any

from tests.programs import need
from tests.topology.certificates import Authority
from tests.topology.kind import Topology
from tests.topology.node import HOST, Node, login


class Standalone(Topology):
    """One Valkey."""

    kind = "standalone"

    def __init__(
        self,
        *,
        password: str = "",
        options: dict[str, str | int] | None = None,
        environment: dict[str, str] | None = None,
        program: str | None = None,
    ) -> None:
        self.node = Node(self.kind, options, program=program, password=password, environment=environment)
        super().__init__([self.node])

    @property
    def url(self) -> str:
        return self.node.url

    def primaries(self) -> list[Node]:
        return [self.node]

    def primary_of(self, key: str) -> Node:
        return self.node

    async def fail_over(self, key: str = "") -> None:
        """A single server has nobody to fail over to: it crashes and comes back."""
        await self.node.restart()


class Redis(Standalone):
    """One Redis from Debian."""

    kind = "redis"

    def __init__(self, *, password: str = "", options: dict[str, str | int] | None = None) -> None:
        super().__init__(password=password, options=options, program=need("redis-server"))


class TlsNode(Node):
    """A Redis that speaks TLS only, with a certificate of a test authority."""

    def __init__(self, authority: Authority, *, password: str = "", client_certificates: bool = False) -> None:
        super().__init__("tls", program=need("redis-server"), password=password)
        self.authority = authority
        certificate = authority.issue(HOST, self.directory)
        self.options |= {
            "port": 0,
            "tls-port": self.port,
            "tls-cert-file": str(certificate.chain),
            "tls-key-file": str(certificate.key),
            "tls-ca-cert-file": str(authority.certificate),
            "tls-auth-clients": "yes" if client_certificates else "no",
        }
        self._client = authority.issue("client", self.directory) if client_certificates else None

    @property
    def url(self) -> str:
        return f"valkeys://{login(self.password)}{self.address}/0?ca={self.authority.certificate}"

    def admin_options(self) -> dict[str, Any]:
        options = super().admin_options() | {"ssl": True, "ssl_ca_certs": str(self.authority.certificate)}
        if self._client is not None:
            options |= {"ssl_certfile": str(self._client.chain), "ssl_keyfile": str(self._client.key)}
        return options
