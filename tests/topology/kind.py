"""The interface of every topology, so that one test runs on all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import anyio.to_thread

from tests.topology.node import Node, login
from tests.topology.waiting import wait_until


class Topology(ABC):
    """A running store made of one or more servers."""

    kind: str

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL that the product is given."""

    @abstractmethod
    def primaries(self) -> list[Node]:
        """The servers that take writes now."""

    @abstractmethod
    def primary_of(self, key: str) -> Node:
        """The server that takes writes for this key now."""

    @abstractmethod
    async def fail_over(self, key: str = "") -> None:
        """Crash the primary of a key and wait until another server, or the same one restarted, serves it."""

    def whole(self) -> bool:
        """Say whether every server does its part again."""
        return all(node.running for node in self.nodes)

    async def mend(self) -> None:
        """Bring every server back and wait until the store is whole."""
        await anyio.to_thread.run_sync(self._mend)

    def _mend(self) -> None:
        for node in self.nodes:
            if not node.running:
                node.start()
            node.resume()
        wait_until(self.whole, 90, "the store is whole again")

    def add_user(self, name: str, rules: str) -> str:
        """Make an ACL user on every server; give the URL by which that user comes."""
        for node in self.nodes:
            if not node.sentinel:
                node.command("ACL", "SETUSER", name, "reset", "on", ">password", *rules.split())
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{login('password', name)}{rest.rpartition('@')[2]}"

    def start(self) -> None:
        """Start everything and block until it is whole: all answer, replicas are synced, sentinels agree."""
        for node in self.nodes:
            node.start()

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def synced(replica: Node, primary: Node) -> bool:
    """Say whether a replica has everything that the primary has written."""
    theirs = replica.info("replication")
    ours = primary.info("replication")
    return (
        theirs.get("master_link_status") == "up"
        and theirs.get("master_sync_in_progress") == 0
        and int(theirs["slave_repl_offset"]) >= int(ours["master_repl_offset"]) - 64
    )
