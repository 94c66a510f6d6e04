"""Snapshots on disk: what was last known, for a start or an outage without Headgate. A damaged file is ignored."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Generic, TypeVar
from urllib.parse import quote

import msgspec
import structlog

log = structlog.get_logger()
T = TypeVar("T")


def cache_directory() -> Path:
    """Give the directory where this platform keeps caches."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "headgate"
    return Path.home() / ".cache" / "headgate"


class Snapshots(Generic[T]):
    """One file per name, written whole or not at all, with a checksum in its first line."""

    def __init__(self, directory: Path, kind: type[T]) -> None:
        self._directory = directory
        self._decoder = msgspec.json.Decoder(kind)

    def write(self, name: str, value: T) -> None:
        """Keep a value; a disk that refuses costs only the snapshot. This blocks."""
        body = msgspec.json.encode(value)
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, path = tempfile.mkstemp(dir=self._directory, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_checksum(body) + b"\n" + body)
                Path(path).replace(self._path(name))
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(path).unlink()
                raise
        except OSError as error:
            log.warning("snapshot not written", name=name, error=str(error))

    def read(self, name: str) -> T | None:
        """Give what was kept; None if there is nothing or it is damaged. This blocks."""
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

    def _path(self, name: str) -> Path:
        file = quote(name, safe="")
        if len(file) > 120:
            file = file[:80] + hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        return self._directory / f"{file}.json"


def directory_for(base: Path | None, *place: str) -> Path:
    """Give a directory of its own for each place (a URL, a namespace), so that two stores never mix."""
    digest = hashlib.blake2b("\n".join(place).encode(), digest_size=8).hexdigest()
    return (base or cache_directory()) / digest


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode()
