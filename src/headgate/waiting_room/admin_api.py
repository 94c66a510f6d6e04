"""HTTP routes of the waiting room for operators; a change may require a version of the queue."""

from __future__ import annotations

from typing import Any, Final

from headgate.http.conditional import expected_version
from headgate.http.routes import Access, Answer, Call, Operation
from headgate.kit.problems import VersionConflict
from headgate.store import Thing
from headgate.waiting_room.policy import PolicyChange
from headgate.waiting_room.problems import QueueUnknown
from headgate.waiting_room.queues import ANY_VERSION, Queues
from headgate.waiting_room.waiting_room import WaitingRoom
from headgate.waiting_room.wire import AdmitRequest, Audit, History, HistoryQuery, QueueList, QueueView

TAG: Final = "queues"
IF_MATCH: Final = {
    "If-Match": "the ETag that the queue must still have; `*`: any, but it must exist. If-None-Match: * creates only"
}
ACTIONS: Final = {
    "pause": ("Stop calling people", "Nobody is called until the queue is resumed; tickets and sessions stay."),
    "resume": ("Go on", "Ends a pause and a drain."),
    "drain": ("Take nobody new", "Those in line are served; newcomers get 409 `queue_closed`."),
    "reset": ("Begin anew", "Everybody in line loses their place, tickets are void; players on servers stay."),
}


def operations(room: WaitingRoom) -> list[Operation]:
    """List the routes."""
    api = QueueAdminRoutes(room)

    def route(method: str, path: str, handler: Any, summary: str, access: Access, **more: Any) -> Operation:
        return Operation(method, path, handler, summary, access=access, tag=TAG, namespaced=True, **more)

    def act(action: str) -> Operation:
        async def handler(call: Call) -> Answer:
            return await api.operate(call, action)

        summary, description = ACTIONS[action]
        return route(
            "POST", f"/api/admin/queues/{{queue}}/{action}", handler, summary, Access.ADMIN, answer=QueueView,
            errors=(QueueUnknown, VersionConflict), headers=IF_MATCH, description=description, name=f"{action}_queue",
        )  # fmt: skip

    queue = "/api/admin/queues/{queue}"
    return [
        route("GET", "/api/admin/queues", api.list, "List queues", Access.READ, answer=QueueList, name="list_queues"),
        route("GET", queue, api.show, "Show a queue", Access.READ, answer=QueueView, errors=(QueueUnknown,), name="show_queue"),
        route(
            "PUT", queue, api.configure, "Create or change a queue", Access.ADMIN, body=PolicyChange, answer=QueueView,
            other_statuses=(201,), errors=(VersionConflict,), headers=IF_MATCH, name="configure_queue",
            description="Fields that are left out stay as they are. In force on every node at once.",
        ),
        route(
            "DELETE", queue, api.delete, "Delete a queue", Access.ADMIN, errors=(QueueUnknown, VersionConflict),
            headers=IF_MATCH, name="delete_queue",
        ),
        *(act(action) for action in ACTIONS),
        route(
            "POST", f"{queue}/admit", api.admit, "Call some people now", Access.ADMIN, body=AdmitRequest, answer=QueueView,
            errors=(QueueUnknown, VersionConflict), headers=IF_MATCH, name="admit",
            description="Beyond what rate and pause allow, as seats become free; a pause takes back what is left, and so does an empty line.",
        ),
        route("GET", f"{queue}/audit", api.audit, "Show who changed what", Access.READ, answer=Audit, errors=(QueueUnknown,),
              name="queue_audit"),
        route("GET", f"{queue}/history", api.history, "Show what happened by the minute", Access.READ, query=HistoryQuery,
              answer=History, errors=(QueueUnknown,), name="queue_history"),
    ]  # fmt: skip


class QueueAdminRoutes:
    """The handlers of the routes."""

    def __init__(self, room: WaitingRoom) -> None:
        self._queues: Queues = room.queues
        self._promotion = room.promotion

    async def list(self, call: Call) -> QueueList:
        return QueueList([*await self._queues.list(call.namespace)])

    async def show(self, call: Call) -> Answer:
        return _tagged(await self._queues.view(self._thing(call)))

    async def configure(self, call: Call) -> Answer:
        change: PolicyChange = call.body
        view = await self._queues.configure(self._thing(call), change, who=call.caller.name, expected=_expected(call))
        return _tagged(view, 201 if view.version == 1 else 200)

    async def delete(self, call: Call) -> None:
        await self._queues.operate(self._thing(call), "delete", who=call.caller.name, expected=_expected(call))

    async def operate(self, call: Call, action: str) -> Answer:
        thing = self._thing(call)
        await self._queues.operate(thing, action, who=call.caller.name, expected=_expected(call))
        return _tagged(await self._queues.view(thing))

    async def admit(self, call: Call) -> Answer:
        request: AdmitRequest = call.body
        thing = self._thing(call)
        await self._queues.operate(thing, "admit", who=call.caller.name, expected=_expected(call), number=request.count)
        await self._promotion.visit(thing)
        return _tagged(await self._queues.view(thing))

    async def audit(self, call: Call) -> Audit:
        return await self._queues.audit(self._thing(call))

    async def history(self, call: Call) -> History:
        query: HistoryQuery = call.query
        return await self._queues.history(self._thing(call), query.minutes)

    def _thing(self, call: Call) -> Thing:
        return self._queues.thing(call.namespace, call.path["queue"])


def _tagged(view: QueueView, status: int = 200) -> Answer:
    return Answer(view, status, {"ETag": f'"{view.version}"', "Cache-Control": "no-store"})


def _expected(call: Call) -> int | None:
    """Give the version that the caller requires."""
    return expected_version(call, ANY_VERSION)
