"""Fixtures of the HTTP tests: the sample gateway, and clients of either mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest

from tests.http.sample_process import SampleProcess, SampleStarter
from tests.http.two_modes import hg as hg
from tests.http.two_modes import make as make
from tests.http.two_modes import namespace as namespace
from tests.topology import Topology


@pytest.fixture(scope="session")
def sample(server: Topology) -> Iterator[SampleProcess]:
    """A sample gateway that tests share: leave it as you found it."""
    with SampleProcess(server.url, origins=["https://shop.example"]) as process:
        yield process


@pytest.fixture
def fresh_sample(server: Topology) -> Iterator[SampleStarter]:
    """Start a sample gateway of one's own: `fresh_sample(workers=2)`."""
    with ExitStack() as started:

        def start(store_url: str = "", **settings: Any) -> SampleProcess:
            return started.enter_context(SampleProcess(store_url or server.url, **settings))

        yield start


@pytest.fixture
def anyone(sample: SampleProcess) -> Iterator[httpx2.Client]:
    """A client without a token."""
    with sample.client() as client:
        yield client


@pytest.fixture
def admin(sample: SampleProcess) -> Iterator[httpx2.Client]:
    """A client with the admin token."""
    with sample.admin() as client:
        yield client
