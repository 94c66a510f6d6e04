"""Every Python and shell snippet of README and docs runs as it is written, against a running `headgate up`.

Only the numbers of ports are others, so that tests can run side by side. A block that names a file after its language quotes
that file: it is no whole program, but its lines must stand there.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from headgate.sdk import Quorum, QuorumLost
from tests.http.test_up import Up, clean_environment, end
from tests.kinds import new_store
from tests.topology import free_port, wait_until

pytestmark = pytest.mark.topology("standalone")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
LANGUAGES = {"", "http", "lua", "nginx", "python", "sh"}
LEFT_OUT = "…"

NOT_HERE = {
    "./dev up": "the world of these tests runs `headgate up`, which is the same",
    "./dev test": "it would run these tests again",
    "./dev bench": "a benchmark wants the machine for itself",
    "headgate up": "it runs already",
}
UNTIL_STOPPED = {
    "headgate queue watch": "concert",
    "headgate chat": "in line",
    "headgate serve arena": "arena started",
    "HEADGATE_TOKEN=$(cat .headgate/token) headgate serve arena": "arena started",
    "headgate service register": "Serving",
    "HEADGATE_ADMIN_TOKEN=$(cat .headgate/token) headgate serve gateway": "listening",
}
"""Commands that run until somebody stops them, and a word that they say once they run."""

PRELUDE = """
set -euo pipefail
until_stopped() {  # a word, then a command: wait until it says the word, then stop it
  local word=$1 said; shift
  said=$(mktemp -p .)
  "$@" > "$said" 2>&1 < <(exec sleep 30) &
  local pid=$!
  for _ in $(seq 200); do
    if grep -q "$word" "$said"; then
      kill -TERM "$pid" && wait "$pid" || true
      return 0
    fi
    kill -0 "$pid" 2> /dev/null || { cat "$said"; return 1; }
    sleep 0.1
  done
  kill -KILL "$pid"; cat "$said"; return 1
}
"""


class Snippet(NamedTuple):
    """One block of a page."""

    page: str
    line: int
    language: str
    file: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def snippets(page: Path) -> Iterator[Snippet]:
    text = page.read_text()
    for found in re.finditer(r"^ *```(\S*)(?: +(\S+))? *\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
        line = text[: found.start()].count("\n") + 1
        yield Snippet(str(page.relative_to(ROOT)), line, found[1], found[2] or "", found[3])


ALL = [snippet for page in PAGES for snippet in snippets(page)]


class World:
    """A directory with a running `headgate up`, and the ports that stand here for those of the pages."""

    def __init__(self, directory: Path, ports: dict[int, int]) -> None:
        self.directory = directory
        self._ports = {str(port): str(here) for port, here in ports.items()}

    def run(self, text: str, *command: str) -> str:
        text = re.sub(rf"\b({'|'.join(self._ports)})\b", lambda found: self._ports[found[0]], text)
        environment = clean_environment(
            PATH=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            EDITOR="sed -i s/100/200/",
            HEADGATE_GATEWAY_PORT=str(free_port()),
            HEADGATE_ARENA_PORT=str(free_port()),
            HOME=str(self.directory),
        )
        ended = subprocess.run(
            [*command, text],
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, f"{text}\n{ended.stdout}\n{ended.stderr}"
        assert "Traceback" not in ended.stderr, ended.stderr
        return ended.stdout


async def may_vote(urls: list[str]) -> bool:
    """Tell whether servers that were just started take part in a quorum by now."""
    async with Quorum(urls, longest_ttl=10) as quorum:
        try:
            async with quorum.lock("ready", ttl=1, wait=0):
                return True
        except QuorumLost:
            return False


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("snippets")
    subprocess.run(["git", "init", "-q", directory], check=True)
    with ExitStack() as stack:
        up = Up(directory, "--json")
        stack.callback(end, up)
        up.ready()
        voters = [stack.enter_context(new_store("standalone")) for _ in range(3)]
        wait_until(lambda: asyncio.run(may_vote([voter.url for voter in voters])), 60)
        ports = {port: free_port() for port in (7000, 8090, 8091, 8092)}
        ports |= {8080: up.port, 8082: up.port + 2}
        ports |= {7001 + n: voter.nodes[0].port for n, voter in enumerate(voters)}
        yield World(directory, ports)


def commands(block: str) -> Iterator[str]:
    """Give a block's commands, each with all of its lines."""
    command = ""
    for line in block.splitlines():
        command += line + "\n"
        try:
            shlex.split(command.removesuffix("\n"), comments=True)
        except ValueError:
            continue  # a quotation or a line goes on
        yield command
        command = ""
    assert not command, block


def prepared(block: str) -> str:
    """Make a script of a block: what runs until it is stopped is stopped, and what cannot run here is left out."""
    script = PRELUDE
    for command in commands(block):
        word = next((word for start, word in UNTIL_STOPPED.items() if command.startswith(start)), None)
        if word is not None:
            script += f"until_stopped {shlex.quote(word)} bash -c {shlex.quote('exec env ' + command)}\n"
        elif not command.startswith(tuple(NOT_HERE)):
            script += command
    return script


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_run_as_they_are_written(world: World, page: Path) -> None:
    """All of a page in their order: people read from the top."""
    for snippet in snippets(page):
        if snippet.file:
            continue
        if snippet.language == "python":
            world.run(snippet.text, sys.executable, "-W", "error::ResourceWarning", "-c")
        elif snippet.language == "sh":
            world.run(prepared(snippet.text), "bash", "-c")


def passages(block: str) -> Iterator[list[str]]:
    """Give the passages of a quotation, between which lines are left out; how far they are indented is no matter."""
    lines = [line.strip() for line in block.splitlines()]
    while LEFT_OUT in lines:
        yield lines[: lines.index(LEFT_OUT)]
        lines = lines[lines.index(LEFT_OUT) + 1 :]
    yield lines


@pytest.mark.parametrize("snippet", [each for each in ALL if each.file], ids=str)
def test_quoted_lines_stand_in_the_file(snippet: Snippet) -> None:
    lines = [line.strip() for line in (ROOT / snippet.file).read_text().splitlines()]
    for passage in passages(snippet.text):
        assert any(passage)
        starts = [n for n in range(len(lines)) if lines[n : n + len(passage)] == passage]
        assert starts, f"{snippet.file} has no such lines after the ones before:\n" + "\n".join(passage)
        lines = lines[starts[0] + len(passage) :]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_block_escapes_by_its_language(page: Path) -> None:
    found = list(snippets(page))
    assert {snippet.language for snippet in found} <= LANGUAGES, "a program is called python or sh"
    assert len(re.findall(r"^\s*(```|~~~)", page.read_text(), re.MULTILINE)) == 2 * len(found)


@pytest.mark.parametrize("snippet", [each for each in ALL if each.language == ""], ids=str)
def test_a_block_without_a_language_is_no_command(snippet: Snippet) -> None:
    assert not re.search(r"^(headgate|curl|\./dev|pip|python3?|async|import|from) ", snippet.text, re.MULTILINE)


def test_what_is_left_out_is_still_written_somewhere() -> None:
    written = "".join(f"\n{snippet.text}" for snippet in ALL if snippet.language == "sh")
    for start in (*NOT_HERE, *UNTIL_STOPPED):
        assert f"\n{start}" in written, start
