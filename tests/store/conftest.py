"""The store that a test of this folder runs on, of its own kind; a gate; locks, ours and those of another process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from headgate.gate.gate import Gate
from headgate.locks import Locks
from headgate.store import Store
from headgate.waiting_room.waiting_room import WaitingRoom
from tests.store.lock_world import another
from tests.topology import Topology


@pytest.fixture
def server(servers: Callable[[str], Topology], kind_of_store: str) -> Topology:
    """A running store of this test's kind, shared by all tests: leave it as whole as you found it."""
    return servers(kind_of_store)


@pytest.fixture
async def locks(store: Store) -> AsyncIterator[Locks]:
    async with Locks(store) as made:
        yield made


@pytest.fixture
async def other(server: Topology, prefix: str) -> AsyncIterator[Locks]:
    async with another(server, prefix) as made:
        yield made


@pytest.fixture
async def gate(store: Store) -> AsyncIterator[Gate]:
    room = WaitingRoom(store)
    made = Gate(store, room)
    yield made
    made.rules.close()
    room.queues.close()
