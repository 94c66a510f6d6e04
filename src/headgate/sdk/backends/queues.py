"""`hg.queues`: list, configure, pause and delete queues, for operators."""

from __future__ import annotations

from typing import Protocol

from headgate.kit.ids import thing_name
from headgate.kit.problems import InvalidRequest
from headgate.sdk.http import Http
from headgate.store import Store, Thing
from headgate.waiting_room.policy import PolicyChange
from headgate.waiting_room.waiting_room import WaitingRoom
from headgate.waiting_room.wire import Audit, History, QueueList, QueueView

OPERATOR = "operator"
ACTIONS = ("pause", "resume", "drain", "reset", "admit")
MOST_MINUTES = 10_080
MOST_ADMITTED = 1_000_000


class Operators(Protocol):
    """The queues of a namespace, for their operators."""

    async def list(self) -> list[QueueView]:
        """Show all queues."""

    async def show(self, queue: str) -> QueueView:
        """Show one queue."""

    async def configure(self, queue: str, change: PolicyChange, expected: int | None = None) -> QueueView:
        """Create a queue or change its policy; `expected` is the version it must have, 0 for a new one."""

    async def operate(self, queue: str, action: str, count: int | None = None) -> QueueView:
        """Pause, resume, drain or reset a queue, or admit `count` waiters; gives the queue as it is then."""

    async def delete(self, queue: str) -> None:
        """Delete a queue."""

    async def audit(self, queue: str) -> Audit:
        """List the changes that operators made."""

    async def history(self, queue: str, minutes: int = 60) -> History:
        """Give the figures of each of the last minutes."""


class StoreQueuesBackend:
    """Queues on the store."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._room = WaitingRoom(store)
        self._queues = self._room.queues
        self._namespace = namespace

    async def list(self) -> list[QueueView]:
        return [*await self._queues.list(self._namespace)]

    async def show(self, queue: str) -> QueueView:
        return await self._queues.view(self._thing(queue))

    async def configure(self, queue: str, change: PolicyChange, expected: int | None = None) -> QueueView:
        return await self._queues.configure(self._thing(queue), change, who=OPERATOR, expected=expected)

    async def operate(self, queue: str, action: str, count: int | None = None) -> QueueView:
        _check_action(action, count)
        thing = self._thing(queue)
        await self._queues.operate(thing, action, who=OPERATOR, number=count or 0)
        if action == "admit":
            await self._room.promotion.visit(thing)
        return await self._queues.view(thing)

    async def delete(self, queue: str) -> None:
        await self._queues.operate(self._thing(queue), "delete", who=OPERATOR)

    async def audit(self, queue: str) -> Audit:
        return await self._queues.audit(self._thing(queue))

    async def history(self, queue: str, minutes: int = 60) -> History:
        if not 1 <= minutes <= MOST_MINUTES:
            raise InvalidRequest(f"minutes must be 1 to {MOST_MINUTES}.", field="minutes")
        return await self._queues.history(self._thing(queue), minutes)

    def _thing(self, queue: str) -> Thing:
        return self._queues.thing(self._namespace, queue)


class HttpQueuesBackend:
    """Queues behind a gateway."""

    def __init__(self, http: Http, namespace: str) -> None:
        self._http = http
        self._query = {"namespace": namespace}

    async def list(self) -> list[QueueView]:
        found = await self._http.request("GET", "/api/admin/queues", query=self._query, answer=QueueList)
        return found.queues

    async def show(self, queue: str) -> QueueView:
        return await self._http.request("GET", _path(queue), query=self._query, answer=QueueView)

    async def configure(self, queue: str, change: PolicyChange, expected: int | None = None) -> QueueView:
        headers = {} if expected is None else {"If-Match": f'"{expected}"'} if expected else {"If-None-Match": "*"}
        return await self._http.request(
            "PUT", _path(queue), query=self._query, body=change, headers=headers, answer=QueueView
        )

    async def operate(self, queue: str, action: str, count: int | None = None) -> QueueView:
        _check_action(action, count)
        body = None if count is None else {"count": count}
        return await self._http.request(
            "POST", f"{_path(queue)}/{action}", query=self._query, body=body, answer=QueueView
        )

    async def delete(self, queue: str) -> None:
        await self._http.request("DELETE", _path(queue), query=self._query, answer=type(None))

    async def audit(self, queue: str) -> Audit:
        return await self._http.request("GET", f"{_path(queue)}/audit", query=self._query, answer=Audit)

    async def history(self, queue: str, minutes: int = 60) -> History:
        return await self._http.request(
            "GET", f"{_path(queue)}/history", query={**self._query, "minutes": minutes}, answer=History
        )


def _path(queue: str) -> str:
    return f"/api/admin/queues/{thing_name(queue, 'queue')}"


def _check_action(action: str, count: int | None) -> None:
    if action not in ACTIONS:
        raise InvalidRequest(f"A queue can be told: {', '.join(ACTIONS)}.", field="action")
    if action == "admit" and not 1 <= (count or 0) <= MOST_ADMITTED:
        raise InvalidRequest(f"count must be 1 to {MOST_ADMITTED}.", field="count")
