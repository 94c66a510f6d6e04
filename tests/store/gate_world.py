"""A gate on a store of its own, and what tests of it do again and again."""

from __future__ import annotations

from headgate.gate.gate import Gate, GateRequest, Verdict
from headgate.gate.passes import Visitor
from headgate.waiting_room.policy import PolicyChange

NS = "default"


async def configure(gate: Gate, name: str, **policy: object) -> None:
    room = gate._room
    await room.queues.configure(room.queues.thing(NS, name), PolicyChange(**policy), who="test")  # type: ignore[arg-type]
    await gate.rules.refresh()


async def ask(gate: Gate, resource: str = "", visitor: Visitor | None = None, **more: object) -> Verdict:
    cookies = ((await gate.keys()).seal(visitor),) if visitor else ()
    return await gate.check(GateRequest(NS, resource=resource, cookies=cookies, **more))  # type: ignore[arg-type]


async def enter(gate: Gate, resource: str) -> Visitor:
    verdict = await ask(gate, resource)
    assert verdict.passes
    assert verdict.visitor is not None
    return verdict.visitor
