"""Snapshots on disk: the last known state, for a start during an outage. A damaged file is ignored."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from pathlib import Path
from time import time
from typing import Final, Generic, TypeVar
from urllib.parse import quote

import msgspec

from headgate.kit.logs import get_logger

UNFINISHED: Final = ".new-"
LEFT_SECONDS: Final = 3600.0

log = get_logger()
T = TypeVar("T")


def cache_directory() -> Path:
    """Give the directory where this platform keeps caches."""
    try:
        home = Path.home()
    except RuntimeError:  # a user without a name, as in some containers
        return Path(tempfile.gettempdir()) / f"headgate-{os.getuid()}"
    return home / "Library" / "Caches" / "headgate" if sys.platform == "darwin" else home / ".cache" / "headgate"


class Snapshots(Generic[T]):
    """One file per name, written whole or not at all, with a checksum in its first line."""

    def __init__(self, directory: Path, kind: type[T]) -> None:
        self._directory = directory
        self._decoder = msgspec.json.Decoder(kind)
        self._tidied = False

    def write(self, name: str, value: T) -> None:
        """Write a value; an error of the disk is only logged. This blocks."""
        body = msgspec.json.encode(value)
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._tidy()
            handle, path = tempfile.mkstemp(dir=self._directory, prefix=UNFINISHED)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_checksum(body) + b"\n" + body)
                    file.flush()
                    os.fsync(file.fileno())  # else a crash of the machine may leave the new name with no content
                Path(path).replace(self._path(name))
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(path).unlink()
                raise
        except OSError as error:
            log.warning("snapshot not written", name=name, error=str(error))

    def read(self, name: str) -> T | None:
        """Read a value; None if there is no file or it is damaged. This blocks."""
        try:
            head, _, body = self._path(name).read_bytes().partition(b"\n")
            if head != _checksum(body):
                raise ValueError("the checksum does not match")
            return self._decoder.decode(body)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, msgspec.DecodeError) as error:
            log.warning("snapshot ignored", name=name, error=str(error))
            return None

    def forget(self, name: str) -> None:
        """Delete the file of a name. This blocks."""
        with contextlib.suppress(OSError):
            self._path(name).unlink()

    def _tidy(self) -> None:
        """Delete, once per process, the temporary files of processes that were killed during a write."""
        if not self._tidied:
            self._tidied = True
            for path in self._directory.glob(f"{UNFINISHED}*"):
                with contextlib.suppress(OSError):
                    if time() - path.stat().st_mtime > LEFT_SECONDS:
                        path.unlink()

    def _path(self, name: str) -> Path:
        file = quote(name, safe="")
        if len(file) > 120:
            file = file[:80] + hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        return self._directory / f"{file}.json"


def directory_for(base: str | Path | None, *place: str) -> Path:
    """Give a directory of its own for each place (a URL, a namespace), so that two stores never mix."""
    digest = hashlib.blake2b("\n".join(place).encode(), digest_size=8).hexdigest()
    return (Path(base) if base else cache_directory()) / digest


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode()
