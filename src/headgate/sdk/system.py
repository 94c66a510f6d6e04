"""Describes this machine: static facts for `systemInfo`, load for every heartbeat."""

from __future__ import annotations

import os
import platform
import socket
from typing import Any

from headgate.kit.problems import HeadgateError
from headgate.registry.model import Json


class PsutilMissing(HeadgateError):
    """System information is collected with psutil; install headgate[system]."""

    code = "psutil_missing"


def system_info() -> Json:
    """Give the facts that do not change: processors, memory, operating system."""
    psutil = _psutil()
    return {
        "cpu": psutil.cpu_count() or 1,
        "memoryBytes": psutil.virtual_memory().total,
        "os": platform.system().lower(),
        "release": platform.release(),
        "python": platform.python_version(),
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
    }


def load_figures() -> Json:
    """Measure the load of this machine and this process."""
    psutil = _psutil()
    memory = psutil.virtual_memory()
    return {
        "load": round(os.getloadavg()[0], 3),
        "cpuPercent": psutil.cpu_percent(interval=None),
        "memoryPercent": memory.percent,
        "rssBytes": psutil.Process().memory_info().rss,
    }


def _psutil() -> Any:
    try:
        import psutil
    except ImportError as error:
        raise PsutilMissing from error
    return psutil
