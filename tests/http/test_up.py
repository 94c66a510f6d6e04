"""`headgate up`, as somebody uses it for the first time."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import msgspec
import psutil
import pytest

from tests.topology import Stopwatch, free_port, wait_until

pytestmark = pytest.mark.topology("standalone")

READY_SECONDS = 60


class Up:
    """A running `headgate up`, in a directory of its own."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.port = free_port()
        self.errors = directory / "stderr"
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headgate", "up", "--port", str(self.port), *arguments],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=clean_environment(),
                process_group=0,
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return (self.directory / ".headgate" / "token").read_text().strip()

    def ready(self) -> str:
        """Wait for the line of JSON on stdout and give it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors.read_text()
        return line

    def status(self, token: str | None = None) -> int:
        """Ask the gateway something, and give the status of its answer; 0 if it does not listen."""
        try:
            asked = httpx2.get(f"{self.url}/api/system", headers={"X-API-Token": token or self.token})
        except httpx2.TransportError:
            return 0
        return asked.status_code

    def said(self) -> str:
        return self.errors.read_text()

    def child(self, *words: str) -> psutil.Process:
        """Find the direct child whose command line contains these words."""
        (found,) = (
            child
            for child in psutil.Process(self.process.pid).children()
            if all(word in " ".join(child.cmdline()) for word in words)
        )
        return found

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, number: signal.Signals = signal.SIGINT) -> float:
        """Ask it to stop, and give the seconds that took."""
        watch = Stopwatch()
        self.process.send_signal(number)
        self.process.wait(20)
        return watch.seconds


EXAMPLE = Path(__file__).parents[2] / "examples" / "fenced_sqlite.py"


def clean_environment(**more: str) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("HEADGATE_")} | more


def end(up: Up) -> None:
    """Leave nothing behind, whatever the test did to it."""
    family = up.family() if up.process.poll() is None else []
    up.process.kill()
    up.process.communicate()
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*arguments: str) -> Up:
        started.append(Up(tmp_path, *arguments))
        return started[-1]

    yield start
    for up in started:
        end(up)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """An `up` for tests that leave it running."""
    up = Up(tmp_path_factory.mktemp("up"), "--json")
    try:
        up.ready()
        yield up
    finally:
        end(up)


def command(directory: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headgate", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=clean_environment(**environment),
    )


def test_the_first_start_is_complete_and_ctrl_c_ends_all_of_it(start: Callable[..., Up], tmp_path: Path) -> None:
    up = start("--json")
    told = msgspec.json.decode(up.ready(), type=dict[str, str | None])
    assert set(told) == {"gateway", "arena", "relay", "console", "token", "store"}
    assert told["gateway"] == up.url
    assert told["relay"] == f"http://127.0.0.1:{up.port + 2}"
    assert told["token"] == up.token
    for name in ("token", "signing-keys.json", "up.json"):
        assert stat.S_IMODE((tmp_path / ".headgate" / name).stat().st_mode) == 0o600

    assert httpx2.get(f"{up.url}/api/system").status_code == 401
    assert up.status() == 200

    made = command(tmp_path, "token", "create", "shop", "--role", "read")
    assert made.returncode == 0, made.stderr
    listed = command(tmp_path, "token", "list", "--json")
    assert [token["name"] for token in msgspec.json.decode(listed.stdout)] == ["shop"]
    secret = made.stdout.strip()
    wait_until(lambda: up.status(secret) == 200, 5, "the new token is known")
    direct = command(tmp_path, "token", "list", "--json", "--url", str(told["store"]))
    assert direct.stdout == listed.stdout

    found = command(tmp_path, "doctor", "--json")
    assert found.returncode == 0, found.stdout
    assert {finding["level"] for finding in msgspec.json.decode(found.stdout)} == {"ok"}

    assert up.token not in up.said()
    family = up.family()
    assert up.stop() < 5
    assert up.process.returncode == 0
    wait_until(lambda: not any(process.is_running() for process in family), 2, "everything has stopped")
    assert not (tmp_path / ".headgate" / "up.json").exists()
    assert "the data is kept" in up.said()


def test_the_password_of_the_store_is_not_printed(start: Callable[..., Up], tmp_path: Path) -> None:
    """It is in the line that --json prints for programs, and in a file that only its owner can read."""
    up = start("--no-demo")
    assert up.process.stdout is not None
    wait_until(lambda: "everything is ready" in up.said(), READY_SECONDS)
    kept = (tmp_path / ".headgate" / "up.json").read_text()
    password = kept.partition("@")[0].rpartition(":")[2]
    assert len(password) > 16
    up.stop()
    said = up.process.stdout.read() + up.said()
    assert "store\tvalkey://127.0.0.1:" in said
    assert password not in said


def test_the_demo_upstream_of_a_new_store_does_not_begin_on_hold(start: Callable[..., Up]) -> None:
    """`up` has just made its data directory, so nothing can have been sent and lost."""
    up = start("--json")
    up.ready()
    headers = {"X-API-Token": up.token}
    found = httpx2.get(f"{up.url}/api/admin/upstreams/a-server/status", headers=headers).json()
    assert found["heldMs"] == 0
    address = f"http://127.0.0.1:{up.port + 2}/relay/a-server/x"
    answer = httpx2.get(address, headers=headers | {"X-User-Id": "u1", "X-Deadline-Ms": "1000"}, timeout=30)
    assert answer.status_code == 200, answer.text


def test_data_and_token_are_there_again_after_a_restart(start: Callable[..., Up], tmp_path: Path) -> None:
    first = start("--json")
    first.ready()
    token = first.token
    assert command(tmp_path, "token", "create", "kept", "--role", "read").returncode == 0
    first.stop(signal.SIGTERM)
    second = start("--json")
    second.ready()
    assert second.token == token
    assert "kept" in command(tmp_path, "token", "list").stdout


def test_data_elsewhere_is_said_with_the_way_to_find_it(start: Callable[..., Up], tmp_path: Path) -> None:
    up = start("--json", "--no-demo", "--data", "elsewhere")
    up.ready()
    said = f"HEADGATE_DATA_DIRECTORY={tmp_path / 'elsewhere'}"
    assert said in up.said()
    assert command(tmp_path, "queue", "list").returncode == 1
    name, _, value = said.partition("=")
    assert command(tmp_path, "queue", "list", **{name: value}).returncode == 0


def test_a_child_that_dies_is_named_with_its_cause_and_started_again(shared: Up) -> None:
    up = shared
    up.child("serve", "gateway").kill()
    wait_until(lambda: "the gateway was killed by SIGKILL" in up.said(), 10, "its death is told")
    told = next(line for line in up.said().splitlines() if "was killed by SIGKILL" in line)
    line = msgspec.json.decode(told, type=dict[str, str])
    assert line["event"] == "the gateway was killed by SIGKILL; starting it again"
    assert (line["level"], line["process"], line["time"][-1]) == ("warning", "up", "Z")
    wait_until(lambda: up.status() == 200, READY_SECONDS, "the gateway answers again")
    assert up.process.poll() is None


def test_the_stores_url_is_printed_for_programs(shared: Up, tmp_path: Path) -> None:
    told = command(shared.directory, "store", "url")
    assert (told.returncode, told.stderr, told.stdout.count("\n")) == (0, "", 1)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), told.stdout.strip()], capture_output=True, text=True, timeout=60, check=False
    )
    assert "balance: 70" in done.stdout, done.stderr
    named = command(tmp_path, "store", "url", HEADGATE_STORE="valkey://:secret@127.0.0.1:1/0")
    assert named.stdout == "valkey://:secret@127.0.0.1:1/0\n"
    nothing = command(tmp_path, "store", "url")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert "run `headgate up`" in nothing.stderr


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_token_is_found_under_every_name_of_this_machine(shared: Up, host: str) -> None:
    url = f"http://{host}:{shared.port}"
    found = command(shared.directory, "doctor", "--url", url, "--json")
    assert found.returncode == 0, found.stdout
    listed = command(shared.directory, "queue", "list", "--url", url)
    assert listed.returncode == 0, listed.stderr
    other = command(shared.directory, "queue", "list", "--url", f"http://{host}:{shared.port + 2}")
    assert other.returncode == 1, "the token goes to no other port"


def test_a_process_of_up_says_who_named_its_store(shared: Up) -> None:
    said = [line for line in shared.said().splitlines() if "using the store" in line]
    assert said
    assert {msgspec.json.decode(line)["origin"] for line in said} == {"headgate up"}


def test_a_store_that_dies_comes_back_with_its_data(shared: Up) -> None:
    up, directory = shared, shared.directory
    assert command(directory, "token", "create", "kept", "--role", "read").returncode == 0
    (store,) = (child for child in psutil.Process(up.process.pid).children() if child.name() == "valkey-server")
    store.kill()
    wait_until(lambda: "the embedded store died" in up.said(), 10, "its death is told")
    wait_until(lambda: "kept" in command(directory, "token", "list").stdout, READY_SECONDS, "the data is there again")


def test_when_it_is_killed_nothing_stays_behind(start: Callable[..., Up]) -> None:
    up = start("--json")
    up.ready()
    family = up.family()
    assert len(family) >= 3
    up.process.kill()
    up.process.wait()
    wait_until(lambda: not any(process.is_running() for process in family), 10, "all children have ended")


def test_a_second_up_on_the_same_data_is_told_who_has_it(shared: Up) -> None:
    up = shared
    second = command(up.directory, "up", "--port", str(free_port()))
    assert second.returncode == 1
    assert f"in use by process {up.process.pid}" in second.stderr
    assert second.stderr.count("\n") == 1
    assert up.status() == 200


def test_a_taken_port_is_one_sentence_with_the_next_step(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        refused = command(tmp_path, "up", "--port", str(other.getsockname()[1]))
    assert refused.returncode == 1
    assert "choose another with --port" in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_directory_that_cannot_be_written_is_one_sentence_with_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = command(tmp_path, "up", "--port", str(free_port()), "--data", "file/data")
    assert refused.returncode == 1
    assert "choose another directory with --data" in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_child_that_cannot_start_ends_everything_with_its_reason(tmp_path: Path) -> None:
    refused = command(tmp_path, "up", "--port", str(free_port()), HEADGATE_STORE="valkey://127.0.0.1:1")
    assert refused.returncode == 1
    last = refused.stderr.splitlines()[-1]
    assert last.startswith("headgate: The ")
    assert "while starting" in last
    lines = [msgspec.json.decode(line) for line in refused.stderr.splitlines() if line.startswith("{")]
    assert {line["level"] for line in lines if line["event"].startswith("headgate: ")} == {"error"}
