"""The jobs that workers run for the gate."""

from __future__ import annotations

from typing import Final

from headgate.gate.gate import Gate
from headgate.kit.life import Job

COOL_SECONDS: Final = 1.0


def jobs(gate: Gate) -> list[Job]:
    """List the jobs: automatic queues that have cooled down are switched off."""
    return [Job("gate cooling", gate.traffic.cool, COOL_SECONDS)]
