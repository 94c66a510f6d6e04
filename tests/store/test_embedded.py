"""The embedded store: its data outlives everything, the server outlives nobody."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from headgate.store.embedded import DirectoryInUse, DirectoryUnusable, Embedded, EmbeddedFailed
from tests.topology import wait_until

pytestmark = pytest.mark.topology("standalone")

_OWNER = """
import asyncio, sys
from pathlib import Path
from headgate.store.embedded import Embedded

async def main():
    async with Embedded(Path(sys.argv[1])) as store:
        print(store.pid, store.url, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def ask(url: str, *words: str) -> bytes:
    """Send commands over one plain connection and give everything that came back in a short line each."""
    password = url.partition("//:")[2].partition("@")[0]
    port = int(url.rpartition(":")[2].partition("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"AUTH {password}\r\n".encode())
        assert await reader.readline() == b"+OK\r\n"
        writer.write((" ".join(words) + "\r\n").encode())
        answer = await reader.readline()
        return await reader.readline() if answer.startswith(b"$") and answer != b"$-1\r\n" else answer
    finally:
        writer.close()
        await writer.wait_closed()


class Owner:
    """Another process that owns an embedded store."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWNER, str(directory)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        pid, self.url = self.process.stdout.readline().split()
        self.server = int(pid)

    def end(self) -> None:
        """Kill it. Its pipes are closed unread: processes that it started, and that may be stopped, hold them open too."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
async def owner(tmp_path: Path) -> AsyncIterator[Owner]:
    started = Owner(tmp_path)
    yield started
    started.end()
    wait_until(lambda: not psutil.pid_exists(started.server), 5, "the server ended with its owner")


async def test_data_port_and_password_are_kept_over_a_clean_restart(tmp_path: Path) -> None:
    async with Embedded(tmp_path / "made" / "here") as store:
        first = store.url
        assert await ask(store.url, "SET", "a", "1") == b"+OK\r\n"
    async with Embedded(tmp_path / "made" / "here") as store:
        assert store.url == first
        assert await ask(store.url, "GET", "a") == b"1\r\n"


async def test_data_is_whole_after_the_server_was_killed(tmp_path: Path) -> None:
    async with Embedded(tmp_path) as store:
        assert await ask(store.url, "SET", "a", "1") == b"+OK\r\n"
        assert await ask(store.url, "WAITAOF", "1", "0", "5000") != b""
        died = asyncio.ensure_future(store.died())
        os.kill(store.pid, signal.SIGKILL)
        assert await asyncio.wait_for(died, 5) == "was killed by SIGKILL"
        await store.start()
        assert await ask(store.url, "GET", "a") == b"1\r\n"


async def test_a_torn_last_write_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    async with Embedded(tmp_path) as store:
        assert await ask(store.url, "SET", "a", "1") == b"+OK\r\n"
    (log,) = (tmp_path / "appendonlydir").glob("*.incr.aof")
    with log.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$1")
    async with Embedded(tmp_path) as store:
        assert await ask(store.url, "GET", "a") == b"1\r\n"


async def test_second_owner_is_told_who_the_first_is(tmp_path: Path, owner: Owner) -> None:
    with pytest.raises(DirectoryInUse, match=rf"in use by process {owner.process.pid}\b"):
        async with Embedded(tmp_path):
            pass
    assert await ask(owner.url, "PING") == b"+PONG\r\n"


async def test_a_failed_second_owner_leaves_the_lock_alone(tmp_path: Path) -> None:
    async with Embedded(tmp_path):
        for _ in range(2):
            with pytest.raises(DirectoryInUse, match=str(os.getpid())):
                await Embedded(tmp_path).__aenter__()


async def test_server_ends_when_its_owner_is_killed_and_the_data_is_kept(tmp_path: Path, owner: Owner) -> None:
    assert await ask(owner.url, "SET", "a", "1") == b"+OK\r\n"
    owner.end()
    wait_until(lambda: not psutil.pid_exists(owner.server), 5, "the server ended with its owner")
    async with Embedded(tmp_path) as store:
        assert await ask(store.url, "GET", "a") == b"1\r\n"


async def test_server_ends_when_its_owner_is_killed_while_all_of_them_are_stopped(owner: Owner) -> None:
    """As it goes where jobs are stopped and killed: the kernel hangs up on a stopped group that lost its parent."""
    processes = [psutil.Process(owner.process.pid), *psutil.Process(owner.process.pid).children(recursive=True)]
    for process in processes:
        process.suspend()
    owner.end()
    for process in processes[1:]:
        with suppress(psutil.NoSuchProcess):  # the kernel may have let them go on already
            process.resume()
    wait_until(lambda: not psutil.pid_exists(owner.server), 10, "the server ended with its owner")


async def test_an_orphan_whose_watcher_died_too_is_stopped_by_the_next_owner(tmp_path: Path, owner: Owner) -> None:
    watchers = [
        child for child in psutil.Process(owner.process.pid).children(recursive=True) if child.pid != owner.server
    ]
    assert watchers
    for watcher in watchers:
        watcher.kill()
    assert await ask(owner.url, "SET", "a", "1") == b"+OK\r\n"
    owner.end()
    assert psutil.pid_exists(owner.server)
    async with Embedded(tmp_path) as store:
        wait_until(lambda: not psutil.pid_exists(owner.server), 5, "the orphan is gone")
        assert await ask(store.url, "GET", "a") == b"1\r\n"


async def test_only_its_password_lets_anybody_in_and_only_from_this_machine(tmp_path: Path) -> None:
    async with Embedded(tmp_path) as store:
        reader, writer = await asyncio.open_connection("127.0.0.1", store.port)
        writer.write(b"PING\r\n")
        assert (await reader.readline()).startswith(b"-NOAUTH")
        writer.close()
        await writer.wait_closed()
        listening = {c.laddr.ip for c in psutil.Process(store.pid).net_connections() if c.status == psutil.CONN_LISTEN}
        assert listening == {"127.0.0.1"}
        for name in ("password", "valkey.conf"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
        password = (tmp_path / "password").read_text().strip()
        assert password not in " ".join(psutil.Process(store.pid).cmdline())


async def test_taken_port_is_replaced_by_a_free_one(tmp_path: Path) -> None:
    async with Embedded(tmp_path) as store:
        before = store.port
    busy = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", before)
    async with busy, Embedded(tmp_path) as store:
        assert store.port != before
        assert await ask(store.url, "PING") == b"+PONG\r\n"


async def test_a_directory_that_is_a_file_is_said_to_be_unusable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DirectoryUnusable, match="choose another directory"):
        await Embedded(tmp_path / "file" / "data").__aenter__()


async def test_broken_data_is_reported_in_the_servers_own_words_and_nothing_is_left_running(tmp_path: Path) -> None:
    async with Embedded(tmp_path):
        pass
    (tmp_path / "appendonlydir" / "appendonly.aof.manifest").write_bytes(secrets.token_bytes(64))
    before = _servers()
    with pytest.raises(EmbeddedFailed, match="manifest"):
        await Embedded(tmp_path).__aenter__()
    assert _servers() <= before


def _servers() -> set[int]:
    """Find the servers that run under this process; other tests may share one."""
    return {child.pid for child in psutil.Process().children(recursive=True) if "valkey" in child.name()}


async def test_only_a_directory_that_was_just_made_is_fresh(tmp_path: Path) -> None:
    """One whose data somebody has deleted is not: what was lost with it is not known."""
    directory = tmp_path / "store"
    async with Embedded(directory) as store:
        assert store.fresh
    async with Embedded(directory) as store:
        assert not store.fresh
    shutil.rmtree(directory / "appendonlydir")
    async with Embedded(directory) as store:
        assert not store.fresh
