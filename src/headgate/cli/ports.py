"""Ports: whether one can be listened on, said before anything is started."""

from __future__ import annotations

import socket

from headgate.kit.problems import HeadgateError


class PortTaken(HeadgateError):
    """The port is in use by another program; choose another one."""

    code = "port_taken"


def trouble(host: str, port: int) -> str | None:
    """Say why this port cannot be listened on; None if it can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def refuse_taken(host: str, port: int, flag: str) -> None:
    """Raise if this port cannot be listened on, naming the flag that chooses another."""
    why = trouble(host, port)
    if why is not None:
        raise PortTaken(f"Port {port} on {host} cannot be used ({why}); free it or choose another with {flag}.")


def free_port() -> int:
    """Find a port that nobody uses now."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])
