"""Request limits that all gateway processes of a machine count together: the buckets are in a file that each of them maps.

A bucket is one number, the moment at which it will be full again, by the clock that all processes of a machine share. The
file is a hash table of a fixed size: a key belongs to one group of slots, and takes the slot whose bucket is full, or nearly,
when all are taken. Nothing is locked. Two processes that count the same address in the same microsecond may count one
request instead of two, which a limit can bear; a lock whose holder is stopped could stop every gateway.
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
    """The hash table of one file, as this process sees it."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self.salt = mapped[:SALT_BYTES]
        self._view = memoryview(mapped)
        self.keys = self._view[SALT_BYTES : SALT_BYTES + _KEYS_BYTES].cast("Q")
        self.moments = self._view[SALT_BYTES + _KEYS_BYTES :].cast("d")

    def slot(self, key: str) -> tuple[int, bool]:
        """Give the slot of a key, and whether the key had it before."""
        digest = blake2b(key.encode(), digest_size=NUMBER_BYTES, key=self.salt).digest()
        mark = int.from_bytes(digest, "big") | 1  # 0 is a slot that nobody has used
        first = (mark >> 1) % GROUPS * SLOTS
        keys, moments = self.keys, self.moments
        chosen = first
        for at in range(first, first + SLOTS):
            if keys[at] == mark:
                return at, True
            if moments[at] < moments[chosen]:
                chosen = at
        keys[chosen] = mark
        return chosen, False

    def close(self) -> None:
        """Let go of the file."""
        self.keys.release()
        self.moments.release()
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
        slot, known = self._table.slot(key)
        full_at = self._table.moments[slot] if known else now
        # A moment later than any that we would write is from before this machine was started, or of another rate.
        if not now < full_at <= now + self._room + self._step:
            full_at = now
        wait = full_at - now - self._room
        if wait > 0:
            raise self._refusal(wait)
        self._table.moments[slot] = full_at + self._step


@contextmanager
def shared_table(name: str) -> Iterator[SharedTable | None]:
    """Open the table that all gateways of this name and this user share on this machine; None if there is no place for it.

    Whoever closes it last removes the file.
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
        with suppress(OSError):  # others use it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def table_file(name: str) -> Path:
    """Give the path of the file in which all gateways of this name count, in a directory of this user alone."""
    digest = sha256(f"{name} {SIZE}".encode()).hexdigest()[:32]
    return Path(tempfile.gettempdir()) / f"headgate-{os.getuid()}" / digest


def _opened(name: str) -> tuple[Path, int]:
    """Open the file, with a lock that tells others that it is in use."""
    file = table_file(name)
    directory = file.parent
    directory.mkdir(mode=0o700, exist_ok=True)
    facts = directory.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise PermissionError(f"{directory} belongs to somebody else, or is open to others")
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with suppress(BlockingIOError):  # others use it: all of it was written before
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_size != SIZE:
                    os.ftruncate(descriptor, SIZE)
                    os.pwrite(descriptor, secrets.token_bytes(SALT_BYTES), 0)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            # Whoever was the last to use it may have removed it, and whoever was the first may have died, before the lock was ours.
            ours = os.fstat(descriptor)
            with suppress(FileNotFoundError):
                if ours.st_size == SIZE and ours.st_ino == file.stat().st_ino:
                    return file, descriptor
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
