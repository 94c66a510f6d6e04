"""Fixtures for every test: a real store of the chosen kind, a connected client, a running gateway."""

from __future__ import annotations

import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from headgate.store import Store, StoreSettings, acl, open_store
from tests.processes import Gateway, GatewayProcess
from tests.side_by_side import arrange, workers
from tests.side_by_side import pytest_runtest_protocol as pytest_runtest_protocol
from tests.side_by_side import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler
from tests.topology import KINDS, Topology

# What tests send themselves to look behind the door; the product must not need it.
OWN_COMMANDS = acl.called((Path(__file__).parent / "store" / "lua").glob("*.lua")) | {
    "exists",
    "hkeys",
    "hgetall",
    "lrange",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--least-rights", action="store_true", help="connect as a user who has only the rights that doctor --acl prints"
    )
    parser.addoption("--topology", choices=list(KINDS), default="standalone", help="the store that tests run on")


def pytest_configure(config: pytest.Config) -> None:
    # Where tests are started in the background, SIGINT is ignored, and whatever they start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "topology(kind, ...): makes sense on these kinds of store only")
    config.addinivalue_line("markers", "alone: measures how fast or how many; nothing else runs meanwhile")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return workers(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of another topology: they are not skipped, they do not belong to this run."""
    chosen = config.getoption("--topology")
    others = [item for item in items if (mark := item.get_closest_marker("topology")) and chosen not in mark.args]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]
    if hasattr(config, "workerinput"):
        arrange(items)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[Topology]:
    """A running store of the chosen kind, shared by all tests: leave it as whole as you found it."""
    with KINDS[request.config.getoption("--topology")]() as topology:
        yield topology


@pytest.fixture
def fresh_server(request: pytest.FixtureRequest) -> Iterator[Callable[..., Topology]]:
    """Start a store of one's own, to break: `fresh_server()` or `fresh_server(Sentinel(password=…))`."""
    chosen = KINDS[request.config.getoption("--topology")]
    with ExitStack() as started:

        def start(topology: Topology | None = None) -> Topology:
            return started.enter_context(topology or chosen())

        yield start


@pytest.fixture
def prefix() -> str:
    """A prefix of keys that nobody else has."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture
def store_url(request: pytest.FixtureRequest, server: Topology, prefix: str) -> str:
    """Where the shared store is, for whoever the tests are run as."""
    if not request.config.getoption("--least-rights"):
        return server.url
    return server.add_user(prefix, f"{acl.rules('worker', prefix)} {' '.join(f'+{name}' for name in OWN_COMMANDS)}")


@pytest.fixture
async def store(anyio_backend: str, store_url: str, prefix: str) -> AsyncIterator[Store]:
    """A connected store with a fresh prefix."""
    async with open_store(StoreSettings(url=store_url, prefix=prefix)) as connected:
        yield connected


@pytest.fixture(scope="session")
def gateway_process(server: Topology) -> Iterator[GatewayProcess]:
    """A gateway process that all tests share."""
    with GatewayProcess(server.url) as process:
        yield process


@pytest.fixture
async def gateway(anyio_backend: str, gateway_process: GatewayProcess) -> AsyncIterator[Gateway]:
    """The shared gateway, with a client that sends the admin token."""
    async with httpx2.AsyncClient(
        base_url=gateway_process.url, headers={"X-API-Token": gateway_process.token}
    ) as client:
        yield Gateway(gateway_process, client)


@pytest.fixture
def fresh_gateway() -> Iterator[Callable[..., GatewayProcess]]:
    """Start a gateway of one's own: `fresh_gateway(url, "--workers", "2")`."""
    with ExitStack() as started:

        def start(store_url: str, *arguments: str, environment: dict[str, str] | None = None) -> GatewayProcess:
            return started.enter_context(GatewayProcess(store_url, *arguments, environment=environment))

        yield start
