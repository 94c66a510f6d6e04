"""`headgate top`: one look as data, and a live view in a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

import httpx2
import msgspec
import pytest

from tests.processes import GatewayProcess
from tests.topology import Topology, wait_until

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "headgate", "top", *arguments]


def environment(process: GatewayProcess, url: str | None = None) -> dict[str, str]:
    ours = {"HEADGATE_URL": url or process.url, "HEADGATE_TOKEN": process.token, "TERM": "xterm-256color"}
    # How wide it is, a terminal knows by itself.
    others = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return {**others, **ours, "HEADGATE_STORE_PREFIX": process.prefix}


@pytest.fixture
def namespace(gateway_process: GatewayProcess) -> str:
    """A namespace with a queue of one in line, a registered server that is draining, and a held lock."""
    name = f"n{token_hex(4)}"
    headers = {"X-API-Token": gateway_process.token}
    with httpx2.Client(base_url=gateway_process.url, headers=headers, params={"namespace": name}) as client:
        assert client.put("/api/admin/queues/main", json={"capacity": 7}).is_success
        assert client.post("/api/queue/entry", json={"queue": "main", "nickname": "Ada"}).is_success
        record = {"type": "game", "group": "eu", "instanceId": "a", "hostname": "h", "ttlSeconds": 600}
        assert client.post("/sd/v1/instances", json=record).is_success
        place = {"type": "game", "group": "eu"}
        assert client.patch("/sd/v1/instances/a", json={"drain": True}, params=place).is_success
        assert client.post("/lock/v1/nightly/acquire", json={"ttlSeconds": 600, "label": "me"}).is_success
    return name


@pytest.mark.parametrize("way", ["gateway", "store"])
def test_one_look_tells_everything(gateway_process: GatewayProcess, server: Topology, namespace: str, way: str) -> None:
    url = gateway_process.url if way == "gateway" else server.url
    looked = subprocess.run(
        command("--json", "--namespace", namespace),
        env=environment(gateway_process, url),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert looked.returncode == 0, looked.stderr
    told = msgspec.json.decode(looked.stdout)
    assert told["troubles"] == {}
    assert told["store"]["healthy"] is True
    (queue,) = told["queues"]
    assert (queue["name"], queue["waiting"], queue["capacity"], queue["state"]) == ("main", 1, 7, "open")
    (service,) = told["services"]
    assert (service["name"], service["available"], service["draining"]) == ("game/eu", 0, 1)
    (lock,) = told["locks"]
    assert (lock["name"], lock["label"], lock["held"]) == ("nightly", "me", True)


def test_off_a_terminal_it_is_one_line_for_each_thing(gateway_process: GatewayProcess, namespace: str) -> None:
    looked = subprocess.run(
        command("--namespace", namespace), env=environment(gateway_process), capture_output=True, text=True, timeout=60
    )
    kinds = [line.split("\t")[0] for line in looked.stdout.splitlines()]
    assert kinds[:3] == ["store", "queue", "service"]
    assert "lock" in kinds


def test_a_wrong_token_is_one_sentence_and_exit_code_1(gateway_process: GatewayProcess) -> None:
    refused = subprocess.run(
        command("--once"),
        env=environment(gateway_process) | {"HEADGATE_TOKEN": "wrong"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refused.returncode == 1
    assert refused.stderr.startswith("headgate: ")
    assert refused.stderr.count("\n") == 1


class Terminal:
    """A terminal in which a command runs."""

    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self.process = process
        self._screen = screen
        self._seen = b""

    def press(self, key: bytes) -> None:
        os.write(self._screen, key)

    def shows(self, *words: str) -> bool:
        """Tell whether all these words were drawn since the last key."""
        text = self.text()
        return all(word in text for word in words)

    def text(self) -> str:
        """Give what was drawn since the last key."""
        self._seen += _read(self._screen)
        return _ESCAPES.sub("", self._seen.decode(errors="replace"))

    def wait(self) -> int:
        def ended() -> bool:
            _read(self._screen)  # what is drawn at the end must go somewhere, or it waits for ever
            return self.process.poll() is not None

        wait_until(ended, 20, "it ends")
        return self.process.wait()

    def canonical(self) -> bool:
        """Tell whether the terminal reads whole lines, as a shell left it."""
        return bool(termios.tcgetattr(self._screen)[3] & termios.ICANON)


@contextmanager
def terminal(arguments: list[str], settings: dict[str, str], rows: int = 30, columns: int = 80) -> Iterator[Terminal]:
    screen, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    os.set_blocking(screen, False)
    process = subprocess.Popen(
        arguments, env=settings, stdin=side, stdout=side, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield Terminal(process, screen)
    finally:
        process.kill()
        process.wait()
        os.close(side)
        os.close(screen)


def _read(screen: int) -> bytes:
    read = b""
    try:
        while more := os.read(screen, 65_536):
            read += more
    except BlockingIOError:
        pass
    return read


def test_the_view_is_live_and_q_ends_it(gateway_process: GatewayProcess, namespace: str) -> None:
    arguments = command("--namespace", namespace, "--every", "0.2")
    with terminal(arguments, environment(gateway_process)) as view:
        wait_until(lambda: view.shows("main", "game/eu", "nightly", "q ends"), 30, "everything is shown")
        assert not view.canonical()
        headers = {"X-API-Token": gateway_process.token}
        query = {"namespace": namespace}
        httpx2.put(f"{gateway_process.url}/api/admin/queues/later", json={}, headers=headers, params=query)
        wait_until(lambda: view.shows("later"), 20, "what is new is shown")
        view.press(b"q")
        assert view.wait() == 0
        assert view.canonical()


def test_one_look_in_a_terminal_names_no_key(gateway_process: GatewayProcess, namespace: str) -> None:
    with terminal(command("--namespace", namespace, "--once"), environment(gateway_process)) as view:
        wait_until(lambda: view.shows("main", "nightly"), 30, "everything is shown")
        assert view.process.wait(20) == 0
        assert not view.shows("q ends")


def test_ctrl_c_ends_it_with_130_and_leaves_the_terminal_as_it_was(
    gateway_process: GatewayProcess, namespace: str
) -> None:
    with terminal(command("--namespace", namespace), environment(gateway_process)) as view:
        wait_until(lambda: view.shows("main"), 30, "something is shown")
        view.process.send_signal(signal.SIGINT)
        assert view.wait() == 130
        assert view.canonical()


def test_what_does_not_answer_stays_on_the_screen_as_it_last_was(
    server: Topology, fresh_gateway: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    gateway = fresh_gateway(server.url)
    headers = {"X-API-Token": gateway.token}
    assert httpx2.put(f"{gateway.url}/api/admin/queues/main", json={}, headers=headers).is_success
    with terminal(command("--every", "0.2"), environment(gateway)) as view:
        wait_until(lambda: view.shows("main"), 30, "something is shown")
        gateway.stop()
        wait_until(lambda: view.shows("as it last was"), 30, "the trouble is told")
        view.press(b"q")
        assert view.wait() == 0


def test_a_narrow_terminal_shows_names_and_whole_words(gateway_process: GatewayProcess, namespace: str) -> None:
    settings = environment(gateway_process)
    with terminal(command("--namespace", namespace), settings, columns=40) as view:
        wait_until(lambda: view.shows("main", "game/eu", "nightly", "waiting"), 30, "names are shown")
        assert "capacity" not in view.text()  # what does not fit is left out
    listing = [sys.executable, "-m", "headgate", "queue", "list", "--namespace", namespace]
    with terminal(listing, settings, columns=40) as view:
        wait_until(
            lambda: view.shows("main", "sessions", "kept", "capacity", "a second"), 30, "a row is a block of lines"
        )
