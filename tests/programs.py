"""Programs that some tests drive, of the system or of `.venv`: found, or said to be missing in one line."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from glob import glob

import pytest

_PACKAGES = {"etcd": "etcd-server", "luacheck": "lua-check", "promtool": "prometheus"}
_OURS = frozenset({"envoy", "traefik"})
_ELSEWHERE = ("/usr/sbin", "/usr/local/sbin", "/sbin")


def need(program: str) -> str:
    """Give the program's path; without it, skip the test, or fail it where CI=true."""
    found = _find(program)
    if found:
        return found
    package = f"Debian: apt install {_PACKAGES.get(program, program)}"
    reason = f"{program} is not installed ({'on Linux, ./dev installs it' if program in _OURS else package})"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _find(program: str) -> str | None:
    if program == "libfaketime":
        return next(iter(_faketime_libraries()), None)
    if program in _OURS:
        return shutil.which(program, path=os.path.dirname(sys.executable))
    path = os.pathsep.join((os.environ.get("PATH", ""), *_ELSEWHERE))
    return shutil.which(program, path=path)


def _faketime_libraries() -> Iterable[str]:
    return glob("/usr/lib/*/faketime/libfaketime.so.1")
