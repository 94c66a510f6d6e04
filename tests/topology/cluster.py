"""A Cluster of three primaries with a replica each."""

from __future__ import annotations

import anyio.to_thread
from valkey.crc import key_slot

from tests.topology.kind import Topology, synced
from tests.topology.node import HOST, Node, login
from tests.topology.ports import free_port
from tests.topology.waiting import wait_until

SLOTS = 16384


class Cluster(Topology):
    """Six servers that share the slots and fail over by themselves."""

    kind = "cluster"

    def __init__(self, *, password: str = "", options: dict[str, str | int] | None = None) -> None:
        common: dict[str, str | int] = {
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": 2000,
            "cluster-allow-replica-migration": "no",
        }
        nodes = []
        for n in range(6):
            role = "primary" if n < 3 else "replica"
            node = Node(f"{role}-{n % 3}", common | (options or {}), password=password)
            node.options["cluster-port"] = free_port()
            nodes.append(node)
        self._login = login(password)
        self._ids: dict[str, Node] = {}
        super().__init__(nodes)

    @property
    def url(self) -> str:
        return f"valkey+cluster://{self._login}{','.join(node.address for node in self.nodes[:3])}"

    def start(self) -> None:
        for node in self.nodes:
            node.spawn()
        for node in self.nodes:
            node.wait_ready()
        primaries, replicas = self.nodes[:3], self.nodes[3:]
        step = SLOTS // 3
        for n, node in enumerate(primaries):
            last = SLOTS - 1 if n == 2 else (n + 1) * step - 1
            node.command("CLUSTER", "ADDSLOTSRANGE", n * step, last)
        for n, node in enumerate(self.nodes):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
            self._ids[str(node.command("CLUSTER", "MYID"))] = node
        for node in self.nodes[1:]:
            self.nodes[0].command("CLUSTER", "MEET", HOST, node.port, node.options["cluster-port"])
        wait_until(lambda: all(_known(node) == 6 for node in self.nodes), 30, "nodes know each other")
        for replica, primary in zip(replicas, primaries, strict=True):
            replica.command("CLUSTER", "REPLICATE", self.id_of(primary))
        wait_until(self.whole, 30, "the cluster is ok and its replicas are synced")

    def whole(self) -> bool:
        """Say whether all slots are served, every node agrees on who serves them, and all replicas are synced."""
        if not all(_ok(node) for node in self.nodes):
            return False
        views = {str(sorted(_owners(node).items())) for node in self.nodes}
        pairs = [(node, self.primary_of_replica(node)) for node in self.nodes if _role(node) == "slave"]
        return len(views) == 1 and len(pairs) == 3 and all(synced(replica, primary) for replica, primary in pairs)

    def id_of(self, node: Node) -> str:
        return next(identity for identity, known in self._ids.items() if known is node)

    def primaries(self) -> list[Node]:
        return [self._ids[identity] for identity in dict.fromkeys(_owners(self._someone()).values())]

    def primary_of(self, key: str) -> Node:
        return self.owner(key_slot(key.encode()))

    def owner(self, slot: int) -> Node:
        """The server that takes writes for this slot now."""
        return self._ids[
            next(identity for (low, high), identity in _owners(self._someone()).items() if low <= slot <= high)
        ]

    def primary_of_replica(self, replica: Node) -> Node:
        port = int(replica.info("replication")["master_port"])
        return next(node for node in self.nodes if node.port == port)

    def replica_of(self, primary: Node) -> Node:
        """The server that follows this primary."""
        return next(
            node
            for node in self.nodes
            if node.running and _role(node) == "slave" and self.primary_of_replica(node) is primary
        )

    async def fail_over(self, key: str = "") -> None:
        """Crash the primary of a key and wait until its replica serves the slot; the crashed one stays down."""
        slot = key_slot(key.encode())
        old = self.owner(slot)
        old.kill()
        await anyio.to_thread.run_sync(self.wait_for_new_owner, slot, old)

    def wait_for_new_owner(self, slot: int, old: Node) -> None:
        """Block until another server than this one has the slot and the cluster is ok again."""
        wait_until(lambda: (new := self.owner(slot)) is not old and _ok(new), 20, "a replica was promoted")

    async def switch_over(self, key: str) -> None:
        """Hand a key's slot to its replica without a crash and without loss, and wait until the two have changed roles."""
        slot = key_slot(key.encode())
        old = self.owner(slot)
        self.replica_of(old).command("CLUSTER", "FAILOVER")
        await anyio.to_thread.run_sync(self.wait_for_new_owner, slot, old)
        await anyio.to_thread.run_sync(wait_until, self.whole, 30, "the old primary follows the new one")

    def _someone(self) -> Node:
        """A running node that is on the majority's side, as far as it knows."""
        for node in self.nodes:
            if node.running and _ok(node):
                return node
        return next(node for node in self.nodes if node.running)


def _ok(node: Node) -> bool:
    return "cluster_state:ok" in str(node.command("CLUSTER", "INFO"))


def _known(node: Node) -> int:
    """How many nodes this one knows, those not counted with which it is still shaking hands."""
    return sum("handshake" not in line for line in str(node.command("CLUSTER", "NODES")).splitlines())


def _owners(node: Node) -> dict[tuple[int, int], str]:
    """Which node, by id, serves which range of slots, as this node sees it."""
    return {(low, high): primary[2] for low, high, primary, *_ in node.command("CLUSTER", "SLOTS")}


def _role(node: Node) -> str:
    return str(node.info("replication")["role"])
