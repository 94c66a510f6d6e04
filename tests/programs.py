"""Programs of the system that some tests drive: found, or said to be missing in one line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from glob import glob

import pytest

_PACKAGES = {"etcd": "etcd-server", "luacheck": "lua-check"}
_ELSEWHERE = ("/usr/sbin", "/usr/local/sbin", "/sbin")


def need(program: str) -> str:
    """Give the program's path; without it, skip the test, or fail it where CI=true."""
    found = _find(program)
    if found:
        return found
    reason = f"{program} is not installed (Debian: apt install {_PACKAGES.get(program, program)})"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _find(program: str) -> str | None:
    if program == "libfaketime":
        return next(iter(_faketime_libraries()), None)
    path = os.pathsep.join((os.environ.get("PATH", ""), *_ELSEWHERE))
    return shutil.which(program, path=path)


def _faketime_libraries() -> Iterable[str]:
    return glob("/usr/lib/*/faketime/libfaketime.so.1")
