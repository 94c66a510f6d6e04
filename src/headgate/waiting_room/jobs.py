"""The jobs that workers run for the waiting room."""

from __future__ import annotations

from headgate.kit.life import Job
from headgate.waiting_room.waiting_room import WaitingRoom


def jobs(room: WaitingRoom) -> list[Job]:
    """List the jobs: promotion, and the numbers of all queues for metrics."""
    return [Job("promotion", room.promotion.run), Job("queue numbers", room.numbers.run)]
