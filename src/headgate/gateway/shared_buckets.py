"""Rate limits that all gateway processes of a machine count together, in a memory-mapped file.

A bucket is stored as one number, the time at which it will be full again, on the clock that all processes of a machine share.
The file is a hash table of fixed size: a key belongs to one group of slots, and replaces the fullest bucket of the group when
no slot is free. There are no locks. Two processes that count one address in the same microsecond may count one request
instead of two, which a limit tolerates; a lock whose holder is suspended would block every gateway.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b, sha256
from pathlib import Path
from time import monotonic
from typing import Final

from headgate.gateway.limits import Buckets
from headgate.kit.logs import get_logger

GROUPS: Final = 8_192
SLOTS: Final = 8
NUMBER_BYTES: Final = 8
SALT_BYTES: Final = 16
_KEYS_BYTES: Final = GROUPS * SLOTS * NUMBER_BYTES
SIZE: Final = SALT_BYTES + 2 * _KEYS_BYTES

log = get_logger()


class SharedTable:
    """The hash table in the mapped file."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self.salt = mapped[:SALT_BYTES]
        self._view = memoryview(mapped)
        self.keys = self._view[SALT_BYTES : SALT_BYTES + _KEYS_BYTES].cast("Q")
        self.times = self._view[SALT_BYTES + _KEYS_BYTES :].cast("d")

    def slot(self, key: str) -> tuple[int, bool]:
        """Return the slot of a key, and whether the key already had it."""
        digest = blake2b(key.encode(), digest_size=NUMBER_BYTES, key=self.salt).digest()
        mark = int.from_bytes(digest, "big") | 1  # 0 marks an unused slot
        first = (mark >> 1) % GROUPS * SLOTS
        keys, times = self.keys, self.times
        chosen = first
        for slot in range(first, first + SLOTS):
            if keys[slot] == mark:
                return slot, True
            if times[slot] < times[chosen]:
                chosen = slot
        keys[chosen] = mark
        return chosen, False

    def close(self) -> None:
        """Release the mapped memory."""
        self.keys.release()
        self.times.release()
        self._view.release()


class SharedBuckets(Buckets):
    """The buckets of one class of requests, counted with all other processes that map the same table."""

    __slots__ = ("_table",)

    def __init__(self, name: str, per_second: float, burst: float, table: SharedTable) -> None:
        super().__init__(name, per_second, burst)
        self._table = table

    def take(self, key: str) -> None:
        """Count one request, or raise RateLimited with the time until the next is allowed."""
        now = monotonic()
        slot, found = self._table.slot(key)
        full_at = self._table.times[slot] if found else now
        # A time later than any that this limit writes is from before a reboot, or from another rate.
        if not now < full_at <= now + self._room + self._step:
            full_at = now
        wait = full_at - now - self._room
        if wait > 0:
            raise self._refusal(wait)
        self._table.times[slot] = full_at + self._step


@contextmanager
def shared_table(name: str) -> Iterator[SharedTable | None]:
    """Open the table that all gateways of this name and this user share on this machine; None if the file cannot be opened.

    The last process that closes it removes the file.
    """
    try:
        file, descriptor = _opened(name)
    except OSError as error:
        log.warning("entries are counted by each process alone", error=str(error))
        yield None
        return
    try:
        with mmap.mmap(descriptor, SIZE) as mapped:
            table = SharedTable(mapped)
            try:
                yield table
            finally:
                table.close()
        with suppress(OSError):  # other processes use it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def table_file(name: str) -> Path:
    """Return the path of the file for gateways of this name, in a directory that only this user can access."""
    digest = sha256(f"{name} {SIZE}".encode()).hexdigest()[:32]
    return Path(tempfile.gettempdir()) / f"headgate-{os.getuid()}" / digest


def _opened(name: str) -> tuple[Path, int]:
    """Open the file with a shared lock, which marks it as in use."""
    file = table_file(name)
    directory = file.parent
    directory.mkdir(mode=0o700, exist_ok=True)
    facts = directory.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise PermissionError(f"{directory} belongs to somebody else, or is open to others")
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with suppress(BlockingIOError):  # other processes use it, so it is initialized
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_size != SIZE:
                    os.ftruncate(descriptor, SIZE)
                    os.pwrite(descriptor, secrets.token_bytes(SALT_BYTES), 0)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            # Before we got the lock, the last user may have removed the file, or the first may have died before initializing it.
            ours = os.fstat(descriptor)
            with suppress(FileNotFoundError):
                if ours.st_size == SIZE and ours.st_ino == file.stat().st_ino:
                    return file, descriptor
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
