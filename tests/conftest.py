"""Fixtures for every test: a real store of the chosen kind, a connected client, a running gateway."""

from __future__ import annotations

import logging
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import httpx2
import pytest
from hypothesis import HealthCheck, settings

from headgate.kit import logs
from headgate.store import Store, StoreSettings, acl, open_store
from tests.announcement import Announcement
from tests.kinds import (
    EVERY,
    LEAST_RIGHTS,
    chosen_kind,
    leave_out_long_tests,
    leave_out_other_kinds,
    new_store,
    thorough_run,
)
from tests.kinds import pytest_generate_tests as pytest_generate_tests
from tests.processes import PATIENT, Gateway, GatewayProcess
from tests.side_by_side import arrange, workers
from tests.side_by_side import pytest_runtest_protocol as pytest_runtest_protocol
from tests.side_by_side import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler
from tests.topology import KINDS, Topology, watched_machine

# How long an example takes says more about the machine than about us.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# What tests send themselves to look behind the door; the product must not need it.
OWN_COMMANDS = acl.called((Path(__file__).parent / "store" / "lua").glob("*.lua")) | {
    "exists",
    "hkeys",
    "keys",
    "hgetall",
    "lrange",
    "pttl",
    "scan",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--least-rights", action="store_true", help="connect as a user who has only the rights that doctor --acl prints"
    )
    parser.addoption(
        "--topology",
        choices=[*KINDS, EVERY],
        default="standalone",
        help="the store that tests run on; every: each kind that matters to a test, and least rights",
    )

    parser.addoption("--minutes", type=float, default=0.5, help="how long each run of the robustness suite lasts")
    parser.addoption("--seed", type=int, default=1, help="draw the faults of the robustness suite from this number")


def pytest_configure(config: pytest.Config) -> None:
    # Where tests are started in the background, SIGINT is ignored, and whatever they start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # What a user has set for their own Headgate or their own way out is not for the tests.
    for name in [name for name in os.environ if name.startswith("HEADGATE_") or name.lower().endswith("_proxy")]:
        del os.environ[name]
    # No peer of ours has a public certificate, and reading the system's takes longer than most requests: here are none.
    os.environ.pop("SSL_CERT_FILE", None)
    os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)
    if not hasattr(config, "workerinput"):
        for_the_run = ExitStack()
        for_the_run.enter_context(watched_machine())
        config.add_cleanup(for_the_run.close)
        config.pluginmanager.register(Announcement(config), "announcement")
    config.addinivalue_line("markers", "topology(kind, ..., least_rights=True): runs on these kinds of store only")
    config.addinivalue_line("markers", "alone: measures how fast or how many; nothing else runs meanwhile")
    config.addinivalue_line("markers", "release: takes long; runs with --topology every, by -m release, or by its name")
    config.addinivalue_line("markers", "quiet: measures, but mostly waits; only others of its kind run meanwhile")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return workers(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_out_other_kinds(config, items)
    leave_out_long_tests(config, items)
    if hasattr(config, "workerinput"):
        arrange(items)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def logging_restored() -> Iterator[None]:
    """Logging is set up once per process; a command that a test runs here must not set it up for the tests after it."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logs.set_level(logs.Level.INFO)
    logs.as_library()
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], Topology]]:
    """Give the running store of a kind, started when it is first asked for."""
    with ExitStack() as started:
        yield cache(lambda kind: started.enter_context(new_store(kind)))


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[Topology]:
    """A running store of the chosen kind, shared by all tests: leave it as whole as you found it.

    The shared gateway is at work in it at all times, so the tests that count what a store is asked have others.
    """
    with new_store(chosen_kind(request.config)) as started:
        yield started


@pytest.fixture
def kind_of_store(request: pytest.FixtureRequest) -> str:
    """The kind of store that this test runs on."""
    return str(getattr(request, "param", chosen_kind(request.config)))


@pytest.fixture
def fresh_server(kind_of_store: str) -> Iterator[Callable[..., Topology]]:
    """Start a store of one's own, to break: `fresh_server()` or `fresh_server(Sentinel(password=…))`."""
    with ExitStack() as started:

        def start(topology: Topology | None = None) -> Topology:
            return started.enter_context(topology or new_store(kind_of_store))

        yield start


@pytest.fixture(scope="session")
def examples(request: pytest.FixtureRequest) -> Callable[[int], int]:
    """Give the number of random examples to try, from that of a release: a quick run tries a quarter of them."""
    share = 1 if thorough_run(request.config) else 4
    return lambda release: max(1, release // share)


@pytest.fixture
def prefix() -> str:
    """A prefix of keys that nobody else has."""
    return f"t{secrets.token_hex(4)}"


@pytest.fixture
def store_url(request: pytest.FixtureRequest, server: Topology, kind_of_store: str, prefix: str) -> str:
    """Where the shared store is, for whoever the tests are run as."""
    if kind_of_store != LEAST_RIGHTS and not request.config.getoption("--least-rights"):
        return server.url
    return server.add_user(prefix, f"{_rights().format(prefix)} {' '.join(f'+{name}' for name in OWN_COMMANDS)}")


@cache
def _rights() -> str:
    """Give the rules with a gap for the prefix; reading them out of all our files takes most of a second."""
    return acl.rules("worker", "{0}")


@pytest.fixture
async def store(anyio_backend: str, store_url: str, prefix: str) -> AsyncIterator[Store]:
    """A connected store with a fresh prefix, patient with a machine that is busy with other tests."""
    async with open_store(StoreSettings(url=store_url, prefix=prefix, deadline_ms=10_000)) as connected:
        yield connected


@pytest.fixture(scope="session")
def gateway_process(server: Topology) -> Iterator[GatewayProcess]:
    """A gateway process that all tests share."""
    with GatewayProcess(server.url, environment=PATIENT) as process:
        yield process


@pytest.fixture
async def gateway(anyio_backend: str, gateway_process: GatewayProcess) -> AsyncIterator[Gateway]:
    """The shared gateway, with a client that sends the admin token."""
    async with httpx2.AsyncClient(
        base_url=gateway_process.url, headers={"X-API-Token": gateway_process.token}, timeout=20
    ) as client:
        yield Gateway(gateway_process, client)


@pytest.fixture
def fresh_gateway() -> Iterator[Callable[..., GatewayProcess]]:
    """Start a gateway of one's own: `fresh_gateway(url, "--workers", "2")`."""
    with ExitStack() as started:

        def start(store_url: str, *arguments: str, environment: dict[str, str] | None = None) -> GatewayProcess:
            return started.enter_context(GatewayProcess(store_url, *arguments, environment=environment))

        yield start
