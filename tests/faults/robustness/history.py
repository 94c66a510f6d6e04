"""Records what every client saw, in one list of events with the time of this machine's monotonic clock."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, NamedTuple


class Event(NamedTuple):
    """One observation: `began` is before the request was sent, `at` after its answer was read."""

    what: str
    who: str
    began: float
    at: float
    facts: dict[str, Any]


class History:
    """An append-only list of events; `save` writes it as JSON lines for a look at a failure."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.events: list[Event] = []

    def add(self, what: str, who: str, *, began: float | None = None, **facts: Any) -> None:
        now = time.monotonic()
        self.events.append(Event(what, who, now if began is None else began, now, facts))

    def of(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.what in kinds]

    def save(self, path: Path) -> None:
        with path.open("w") as file:
            for event in self.events:
                row = event._asdict()
                row["began"] = round(event.began - self.started, 4)
                row["at"] = round(event.at - self.started, 4)
                file.write(json.dumps(row, default=str) + "\n")
