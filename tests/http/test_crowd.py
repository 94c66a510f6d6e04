"""`headgate chat` and `headgate load` against a running `up`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest

from headgate.cli.trial.crowd.record import Promise
from tests.topology import free_port, wait_until

pytestmark = pytest.mark.topology("standalone")


class Trial:
    """An `up` in a directory of its own, and commands given beside it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
        with (directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                self.command("up", "--port", str(free_port()), "--json"),
                cwd=directory,
                env={**self.environment, "HEADGATE_ARENA_CAPACITY": "20"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (directory / "log").read_text()
        self.told = json.loads(line)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "headgate", *words]

    def run(self, *words: str, say: str = "", seconds: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=self.directory,
            env=self.environment,
            input=say,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=20)


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    running = Trial(tmp_path_factory.mktemp("trial"))
    yield running
    running.stop()


def test_two_people_chat(trial: Trial) -> None:
    with subprocess.Popen(
        trial.command("chat", "라이언"),
        cwd=trial.directory,
        env=trial.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as ryan:
        assert ryan.stdout is not None
        assert ryan.stdin is not None
        assert "You are inside." in ryan.stdout.readline()
        other = trial.run("chat", "Muzi", say="/who\n안녕하세요!\n")
        assert other.returncode == 0, other.stderr
        assert "2 are here." in other.stdout
        heard = [ryan.stdout.readline() for _ in range(4)]
        assert "alone" in heard[0]
        assert "Muzi joined." in heard[1]
        assert "Muzi: 안녕하세요!" in heard[2]
        assert "Muzi left." in heard[3]
        ryan.stdin.write("/quit\n")
        ryan.stdin.flush()
        assert ryan.wait(20) == 0


@pytest.mark.parametrize("given", ["file", "nothing", "closed"])
def test_a_chat_takes_its_words_from_wherever_they_come(trial: Trial, given: str) -> None:
    words = trial.directory / "words"
    words.write_text("" if given == "nothing" else "안녕하세요!\nlast words")
    command = subprocess.list2cmdline(trial.command("chat", "Muzi"))
    source = "<&-" if given == "closed" else f"< {words}"
    done = subprocess.run(
        ["sh", "-c", f"exec {command} {source}"],
        cwd=trial.directory,
        env=trial.environment,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert "You are inside." in done.stdout
    assert ("Muzi: last words" in done.stdout) == (given == "file")


def test_whoever_floods_the_arena_is_sent_away_and_told_why(trial: Trial) -> None:
    done = trial.run("chat", "Muzi", say="hello\n" * 400)
    assert done.returncode == 1
    assert done.stderr.endswith("headgate: The arena sent you away: too many messages.\n")


@pytest.mark.parametrize(
    ("arena", "why"),
    [
        ("http://127.0.0.1:1/gameserver", "is not the address of an arena"),
        ("nonsense", "is not the address of an arena"),
        ("ws://127.0.0.1:1/gameserver", "cannot be reached"),
        ("store", "is no arena"),
        ("elsewhere", "There is nothing at this address"),
    ],
)
def test_a_chat_with_what_is_no_arena_says_so(trial: Trial, arena: str, why: str) -> None:
    store = trial.told["store"].rpartition("@")[2].partition("/")[0]
    elsewhere = trial.told["gateway"].replace("http", "ws")
    address = {"store": f"ws://{store}/gameserver", "elsewhere": f"{elsewhere}/gameserver"}.get(arena, arena)
    done = trial.run("chat", "Muzi", "--arena", address)
    assert done.returncode == 1
    assert why in done.stderr
    assert "should not have" not in done.stderr


def test_a_crowd_that_misbehaves_gets_through_with_every_promise_kept(trial: Trial) -> None:
    done = trial.run(
        *("load", "--players", "120", "--over", "3", "--stay", "1", "--seed", "5", "--json", "--report", "crowd.html"),
        *("--refreshing", "20", "--abandoning", "10", "--sharing", "15", "--crashing", "15"),
        seconds=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    assert figures["broken"] == {}
    assert figures["lost"] == 0
    assert figures["entered"] + figures["abandoned"] == 120
    assert figures["came_back"] > 0
    assert all(figures["promises"][promise] for promise in Promise)
    assert "<svg" in (trial.directory / "crowd.html").read_text()


def test_everybody_who_came_has_left_afterwards(trial: Trial) -> None:
    headers = {"X-API-Token": trial.told["token"]}

    def empty() -> bool:
        answer = httpx2.get(f"{trial.told['gateway']}/api/queue/servers", headers=headers)
        return all(server["sessions"] == 0 for server in answer.json()["servers"])

    wait_until(empty, 15, "nobody is inside")


def _seats_taken(trial: Trial) -> int:
    """Count the sessions, and the seats that are kept for whoever was dropped."""
    answer = httpx2.get(
        f"{trial.told['gateway']}/api/admin/queues/main", headers={"X-API-Token": trial.told["token"]}
    ).json()
    return int(answer["figures"]["sessions"] + answer["figures"]["kept"])


def test_a_crowd_that_is_not_done_in_time_is_counted_and_is_no_success(trial: Trial) -> None:
    done = trial.run(
        *("load", "--players", "4", "--over", "0.1", "--stay", "1000", "--limit", "3", "--json", "--seed", "1"),
        *("--refreshing", "0", "--abandoning", "0", "--sharing", "0", "--crashing", "0", "--report", "cut.html"),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    assert (figures["unfinished"], figures["lost"], figures["broken"]) == (4, 0, {})
    assert "not done when it ended" in (trial.directory / "cut.html").read_text()
    wait_until(lambda: _seats_taken(trial) == 0, 5, "seats are not kept for a crowd that is gone")


def test_a_crowd_that_is_stopped_says_how_far_it_went(trial: Trial) -> None:
    with subprocess.Popen(
        trial.command(
            "load", "--players", "4", "--over", "0.1", "--stay", "1000", "--json", "--report", "stopped.html"
        ),
        cwd=trial.directory,
        env=trial.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as crowd:
        assert crowd.stderr is not None
        assert "inside" in crowd.stderr.readline()
        crowd.send_signal(signal.SIGINT)
        out, err = crowd.communicate(timeout=20)
    assert crowd.returncode == 130, err
    assert "this is how far it went" in err
    assert json.loads(out)["unfinished"] > 0
    assert (trial.directory / "stopped.html").exists()


def test_who_is_not_let_in_has_not_entered(trial: Trial) -> None:
    elsewhere = trial.told["gateway"].replace("http", "ws")
    done = trial.run(
        *("load", "--players", "2", "--over", "0.1", "--arena", elsewhere, "--json", "--report", "out.html"),
        *("--refreshing", "0", "--abandoning", "0", "--sharing", "0", "--crashing", "0"),
    )
    assert done.returncode == 1
    figures = json.loads(done.stdout)
    assert (figures["entered"], figures["lost"]) == (0, 2)
    assert figures["broken"] == {Promise.CALLED_MEANS_ENTERED: 2, Promise.NOBODY_LOST: 2}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--report", "nowhere/report.html"), "The report cannot be written to nowhere/report.html"),
        (("--report", "."), "The report cannot be written"),
        (("--queue", "nobody-made-it"), "There is no queue nobody-made-it"),
        (("--arena", "wss://arena.example/gameserver"), "plain ws:// only"),
        (("--arena", "nonsense"), "plain ws:// only"),
        (("--url", "http://127.0.0.1:1"), "http://127.0.0.1:1 cannot be reached"),
    ],
)
def test_a_crowd_that_cannot_go_anywhere_is_told_before_it_sets_out(
    trial: Trial, words: tuple[str, str], why: str
) -> None:
    done = trial.run("load", "--players", "2", "--over", "0.1", "--limit", "5", *words)
    assert done.returncode == 1
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stdout == ""


def test_a_crowd_survives_answers_that_are_not_ours(trial: Trial) -> None:
    """A gateway behind something that now and then answers a page of its own."""
    gateway = trial.told["gateway"]

    class Front(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        pages = 3

        def do_GET(self) -> None:
            self._pass_on()

        def do_POST(self) -> None:
            self._pass_on()

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if "/status" in self.path and Front.pages:
                Front.pages -= 1
                self._answer(503, b"<h1>one moment</h1>")
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            found = httpx2.request(self.command, gateway + self.path, content=body, headers=headers)
            self._answer(found.status_code, found.content)

        def _answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *words: object) -> None:  # the library's name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Front) as front:
        threading.Thread(target=front.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{front.server_port}"
        done = trial.run(
            *(
                "load",
                "--players",
                "3",
                "--over",
                "0.1",
                "--stay",
                "0.1",
                "--url",
                url,
                "--json",
                "--report",
                "front.html",
            ),
            *("--refreshing", "0", "--abandoning", "0", "--sharing", "0", "--crashing", "0"),
        )
        front.shutdown()
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    assert figures["entered"] == 3
    assert figures["refusals"] == {"answer 503": 3}


def test_a_crowd_needs_a_gateway(trial: Trial) -> None:
    done = trial.run("load", "--url", trial.told["store"])
    assert done.returncode == 1
    assert "gateway" in done.stderr
    done = trial.run("load", "--sharing", "90", "--crashing", "20")
    assert done.returncode == 1
    assert "100 percent" in done.stderr
