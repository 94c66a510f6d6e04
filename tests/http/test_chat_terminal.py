"""`headgate chat` on a terminal, while it waits in line."""

from __future__ import annotations

import fcntl
import os
import pty
import secrets
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.processes import GatewayProcess
from tests.topology import wait_until

pytestmark = pytest.mark.topology("standalone")


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    screen, side = pty.openpty()
    termios.tcsetwinsize(screen, (24, 100))
    try:
        yield screen, side
    finally:
        os.close(side)
        os.close(screen)


def read_until(screen: int, words: bytes) -> bytes:
    seen = b""
    while words not in seen:
        seen += os.read(screen, 4096)
    return seen


def typed(side: int) -> int:
    """Count what was typed and not read yet."""
    return struct.unpack("i", fcntl.ioctl(side, termios.FIONREAD, bytes(4)))[0]  # type: ignore[no-any-return]


def test_what_is_typed_while_waiting_in_line_is_not_shown(gateway_process: GatewayProcess, tmp_path: Path) -> None:
    queue = f"q{secrets.token_hex(4)}"
    httpx2.put(
        f"{gateway_process.url}/api/admin/queues/{queue}",
        headers={"X-API-Token": gateway_process.token},
        json={"capacity": 0},
    ).raise_for_status()
    environment = {
        **os.environ, "HEADGATE_URL": gateway_process.url, "HEADGATE_TOKEN": gateway_process.token,
        "HOME": str(tmp_path), "TERM": "xterm-256color",
    }  # fmt: skip
    with terminal() as (screen, side):
        before = termios.tcgetattr(side)
        command = [sys.executable, "-m", "headgate", "chat", "Ryan", "--queue", queue]
        with subprocess.Popen(command, env=environment, stdin=side, stdout=side, stderr=side) as chatting:
            try:
                read_until(screen, b"in line")
                os.write(screen, b"hello?\n")
                wait_until(lambda: typed(side) == len(b"hello?\n"))  # the kernel takes it in its own time
                chatting.send_signal(signal.SIGINT)
                seen = read_until(screen, b"you left the line.")
                assert chatting.wait(20) == 130
            finally:
                chatting.kill()
        assert b"hello?" not in seen
        assert termios.tcgetattr(side) == before, "the terminal is as it was"
