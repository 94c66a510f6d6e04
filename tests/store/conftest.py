"""Locks as the tests of this folder use them: ours, and those of another process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headgate.locks import Locks
from headgate.store import Store
from tests.store.lock_world import another
from tests.topology import Topology


@pytest.fixture
async def locks(store: Store) -> AsyncIterator[Locks]:
    async with Locks(store) as made:
        yield made


@pytest.fixture
async def other(server: Topology, prefix: str) -> AsyncIterator[Locks]:
    async with another(server, prefix) as made:
        yield made
