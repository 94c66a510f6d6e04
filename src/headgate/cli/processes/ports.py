"""Checks that a chosen port is free before anything is started."""

from __future__ import annotations

from headgate.kit.ports import bind_error
from headgate.kit.problems import HeadgateError


class PortTaken(HeadgateError):
    """The port is in use by another program; choose another one."""

    code = "port_taken"


def refuse_taken(host: str, port: int, flag: str) -> None:
    """Raise if this port cannot be listened on, naming the flag that chooses another."""
    why = bind_error(host, port)
    if why is not None:
        raise PortTaken(f"Port {port} on {host} cannot be used ({why}); free it or choose another with {flag}.")
