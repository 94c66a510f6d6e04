"""etcd as a peer: started with its data on disk, and spoken to in its own gRPC, without its client library."""

from __future__ import annotations

import base64
import shutil
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc

from bench.harness import Contestant
from tests.topology import HOST, free_port, reaper

NAME: Final = "etcd"


def contestant() -> Contestant | None:
    """Name etcd as a contestant; None where it is not installed."""
    program = shutil.which("etcd")
    if program is None:
        return None
    peer = f"http://{HOST}:{free_port()}"
    client = f"http://{HOST}:{{port}}"
    command = [
        program, "--data-dir", str(reaper().directory("etcd")), "--log-level", "error", "--listen-client-urls", client,
        "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
        "--initial-cluster", f"default={peer}",
    ]  # fmt: skip
    return Contestant(NAME, command)


def text(value: str) -> str:
    """Write a key or value as etcd's JSON wants it."""
    return base64.b64encode(value.encode()).decode()


def end_of(prefix: str) -> str:
    """Give the end of the range of all keys with a prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


class Etcd:
    """A few of etcd's calls."""

    def __init__(self, port: int) -> None:
        self._channel = grpc.aio.insecure_channel(
            f"{HOST}:{port}",
            options=[("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", 1 << 26)],
        )

    async def grant(self, ttl: int) -> int:
        """Make a lease."""
        answer = await self._call("/etcdserverpb.Lease/LeaseGrant", _number(1, ttl))
        return _read_number(answer, 2)

    async def put(self, key: str, value: str, lease: int = 0) -> None:
        """Put a key, bound to a lease."""
        request = _bytes(1, key.encode()) + _bytes(2, value.encode()) + (_number(3, lease) if lease else b"")
        await self._call("/etcdserverpb.KV/Put", request)

    async def range(self, prefix: str) -> bytes:
        """Read all keys with a prefix."""
        request = _bytes(1, prefix.encode()) + _bytes(2, end_of(prefix).encode())
        return await self._call("/etcdserverpb.KV/Range", request)

    def keep_alive(self) -> Any:
        """Open a stream of keep-alives: write a lease's id, read the answer."""
        return self._channel.stream_stream("/etcdserverpb.Lease/LeaseKeepAlive")()

    async def watch(self, prefix: str) -> AsyncIterator[bytes]:
        """Follow all keys with a prefix; the first message says that the watch is on."""
        create = _bytes(1, prefix.encode()) + _bytes(2, end_of(prefix).encode())
        stream = self._channel.stream_stream("/etcdserverpb.Watch/Watch")()
        await stream.write(_bytes(1, create))
        while True:
            message = await stream.read()
            if message is grpc.aio.EOF:
                return
            yield message

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close()

    async def _call(self, method: str, request: bytes) -> bytes:
        answer: bytes = await self._channel.unary_unary(method)(request)
        return answer


def lease_id(lease: int) -> bytes:
    """Write the request of one keep-alive."""
    return _number(1, lease)


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _read_number(message: bytes, field: int) -> int:
    """Find a whole number in a message."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        if key & 7 == 0:
            value, at = _read_varint(message, at)
            if key >> 3 == field:
                return value
        else:
            length, at = _read_varint(message, at)
            at += length
    return 0


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
