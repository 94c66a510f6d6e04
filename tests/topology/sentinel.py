"""One primary, two replicas and three sentinels that fail over by themselves."""

from __future__ import annotations

import anyio.to_thread

from tests.topology.kind import Topology, synced
from tests.topology.node import HOST, Node, login
from tests.topology.waiting import wait_until

NAME = "main"


class Sentinel(Topology):
    """Servers that are watched by sentinels."""

    kind = "sentinel"

    def __init__(
        self, *, password: str = "", sentinel_password: str = "", options: dict[str, str | int] | None = None
    ) -> None:
        self.servers = [Node(f"server-{n}", options, password=password) for n in range(3)]
        first = self.servers[0]
        for replica in self.servers[1:]:
            replica.options |= {"replicaof": f"{HOST} {first.port}"}
        watch = [
            f"sentinel monitor {NAME} {HOST} {first.port} 2",
            f"sentinel down-after-milliseconds {NAME} 1000",
            f"sentinel failover-timeout {NAME} 3000",
            f"sentinel parallel-syncs {NAME} 2",
        ]
        if password:
            watch.append(f"sentinel auth-pass {NAME} {password}")
        if sentinel_password:
            watch.append(f"sentinel sentinel-pass {sentinel_password}")
        self.sentinels = [
            Node(f"sentinel-{n}", password=sentinel_password, sentinel=True, config=watch) for n in range(3)
        ]
        self._login = login(password)
        self._options = f"?sentinel_password={sentinel_password}" if sentinel_password else ""
        super().__init__([*self.servers, *self.sentinels])

    @property
    def url(self) -> str:
        sentinels = ",".join(node.address for node in self.sentinels)
        return f"valkey+sentinel://{self._login}{sentinels}/{NAME}{self._options}"

    def start(self) -> None:
        for node in self.servers:
            node.start()
        primary = self.servers[0]
        wait_until(lambda: all(synced(replica, primary) for replica in self.servers[1:]), 30, "replicas are synced")
        for node in self.sentinels:
            node.spawn()
        for node in self.sentinels:
            node.wait_ready()
        wait_until(lambda: all(self._agrees(node) for node in self.sentinels), 30, "sentinels know each other")

    def primary(self) -> Node:
        """The server that the sentinels name now."""
        sentinel = next(node for node in self.sentinels if node.running)
        _, port = sentinel.command("SENTINEL", "get-master-addr-by-name", NAME)
        return next(node for node in self.servers if node.port == int(port))

    def primaries(self) -> list[Node]:
        return [self.primary()]

    def primary_of(self, key: str) -> Node:
        return self.primary()

    async def fail_over(self, key: str = "") -> None:
        """Crash the primary and wait until the sentinels have made another; the crashed one stays down."""
        old = self.primary()
        old.kill()
        await anyio.to_thread.run_sync(self.wait_for_new_primary, old)

    def wait_for_new_primary(self, old: Node) -> None:
        """Block until the sentinels name another server than this one and it takes writes."""
        # A sentinel that was held up for two seconds trusts nothing it sees for the next thirty (its TILT mode).
        wait_until(
            lambda: (new := self.primary()) is not old and new.info("replication")["role"] == "master",
            60,
            "a replica was promoted",
        )

    def whole(self) -> bool:
        """Say whether all servers follow one primary."""
        return all(synced(node, self.primary()) for node in self.servers if node is not self.primary())

    def _agrees(self, node: Node) -> bool:
        reply = node.command("SENTINEL", "MASTER", NAME)
        state = dict(zip(reply[::2], reply[1::2], strict=True))
        return int(state["num-other-sentinels"]) == 2 and int(state["num-slaves"]) == 2 and state["flags"] == "master"
