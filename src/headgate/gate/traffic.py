"""Traffic: each gate counts requests in memory and sends the counts to the store several times a second.

The store adds the counts of all gates over a sliding window and switches a queue on when its threshold is crossed.
Workers switch it off again when its traffic was below the threshold for the cooldown and nobody waits. A queue that was
made from a template is removed when it is off and no ticket of it is held; if its template is deleted, waiting users
are promoted first.
"""

from __future__ import annotations

from collections import Counter
from time import monotonic
from typing import Final, cast

from headgate.gate.rules import GateRules, Guard, Match
from headgate.kit.logs import get_logger
from headgate.kit.problems import HeadgateError, OutcomeUnknown, VersionConflict
from headgate.store import Arg, Store, Thing, script
from headgate.waiting_room.policy import MANY_SEATS, Policy, PolicyChange, Seats
from headgate.waiting_room.problems import QueueUnknown
from headgate.waiting_room.queues import Queues

TRAFFIC = script("headgate.waiting_room", "traffic")
COOL = script("headgate.waiting_room", "cool")
SWITCH_OFF = script("headgate.waiting_room", "switch_off")

MOST_COUNTED: Final = 10_000
MOST_COOLED: Final = 200
IDLE_SECONDS: Final = 60.0
AUTHOR: Final = "gate"

log = get_logger()


class Traffic:
    """The request counts of this process, and the queues that traffic switches on and off."""

    def __init__(self, store: Store, queues: Queues, rules: GateRules) -> None:
        self._store = store
        self._queues = queues
        self._rules = rules
        self._counts: dict[Match, int] = {}
        self._cooled_at: dict[Thing, float] = {}

    def count(self, match: Match) -> None:
        """Count one request."""
        counts = self._counts
        counts[match] = counts.get(match, 0) + 1

    async def flush(self) -> None:
        """Send the counts since the last flush to the store; counts that cannot be sent are dropped."""
        counts, self._counts = self._counts, {}
        by_template: dict[Thing, Counter[str]] = {}
        for match, number in counts.items():
            by_template.setdefault(match.guard.thing, Counter())[match.resource] += number
        for thing, requests in by_template.items():
            guard = self._rules.guard(thing)
            if guard is None or guard.policy.auto is None:
                continue
            try:
                await self._send(guard, requests)
            except (QueueUnknown, OutcomeUnknown) as error:
                log.debug("traffic not counted", queue=thing.name, error=error.detail)
            except HeadgateError as error:
                log.warning("traffic not counted", queue=thing.name, error=error.detail)

    async def create_queue(self, guard: Guard, name: str) -> Thing:
        """Create the queue of a resource from its template, unless it exists."""
        thing = self._store.thing("queue", guard.thing.namespace, name)
        try:
            await self._queues.configure(
                thing, derived_policy(guard.policy), who=AUTHOR, expected=0, template=guard.thing.name
            )
            log.info("queue switched on", queue=name, template=guard.thing.name)
        except VersionConflict:
            # Another gate was faster, or an earlier queue still exists, which drains if its template was deleted.
            view = await self._queues.view(thing)
            if view.template and view.draining:
                await self._queues.operate(thing, "resume", who=AUTHOR)
        await self._rules.read(thing)
        return thing

    async def cool(self) -> None:
        """Switch off the queues that have cooled down and are empty; workers run this."""
        await self._rules.refresh()
        for guard in self._rules.templates():
            auto = guard.policy.auto
            if auto is None or not self._is_due(guard):
                continue
            window_ms, cooldown_ms = int(auto.window_seconds * 1000), int(auto.cooldown_seconds * 1000)
            try:
                reply = await self._store.run(COOL, guard.thing, auto.threshold, window_ms, cooldown_ms, MOST_COOLED)
                for resource in cast("list[bytes]", reply)[1:]:
                    await self._switch_off(guard, resource.decode(), cooldown_ms)
            except QueueUnknown:
                continue
        await self._remove_derived()

    def _is_due(self, guard: Guard) -> bool:
        """Tell whether to cool a template: each second while a resource is on, else rarely, to drop old counts."""
        now = monotonic()
        if not guard.on and now - self._cooled_at.get(guard.thing, -IDLE_SECONDS) < IDLE_SECONDS:
            return False
        if len(self._cooled_at) >= MOST_COUNTED:
            self._cooled_at.clear()
        self._cooled_at[guard.thing] = now
        return True

    async def _send(self, guard: Guard, requests: Counter[str]) -> None:
        auto = guard.policy.auto
        if auto is None:
            return
        arguments: list[Arg] = [auto.threshold, int(auto.window_seconds * 1000), auto.max_queues, MOST_COUNTED]
        for resource, number in requests.items():
            arguments += (resource, number)
        replies = cast("list[int | Exception]", await self._store.run(TRAFFIC, guard.thing, *arguments))
        switched = [name for name, on in zip(requests, replies, strict=True) if on == 1 and name not in guard.on]
        if switched:
            await self._queues.mark_changed(guard.thing)
            await self._rules.read(guard.thing)
            if "*" in auto.resource:
                for name in switched:
                    await self.create_queue(guard, name)

    async def _switch_off(self, guard: Guard, resource: str, cooldown_ms: int) -> None:
        """Switch a resource's queue off at all gates if nobody waits in it; held tickets stay valid."""
        derived = guard.policy.auto is not None and "*" in guard.policy.auto.resource
        queue = self._store.thing("queue", guard.thing.namespace, resource) if derived else guard.thing
        try:
            if (await self._queues.view(queue)).waiting:
                return
        except QueueUnknown:
            pass
        if await self._store.run(SWITCH_OFF, guard.thing, resource, cooldown_ms) == 1:
            log.info("queue switched off", queue=resource, template=guard.thing.name)
            await self._queues.mark_changed(guard.thing)
            await self._rules.read(guard.thing)

    async def _remove_derived(self) -> None:
        """Remove the queues made from a template that are off, or whose template is gone."""
        templates: dict[Thing, Guard | None] = {}
        for guard in self._rules.derived():
            queue, owner = guard.thing, self._store.thing("queue", guard.thing.namespace, guard.policy.template)
            known = self._rules.guard(owner)
            if known is not None and _is_on(known, queue.name):
                continue
            if owner not in templates:
                # The known rules may be old, and a queue that was just switched on must not be removed.
                templates[owner] = await self._rules.read(owner)
            template = templates[owner]
            if template is None or not _is_on(template, queue.name):
                await self._remove(queue, has_template=template is not None and template.policy.auto is not None)

    async def _remove(self, queue: Thing, *, has_template: bool) -> None:
        """Remove a queue once nobody can be promoted and no ticket is held; drain it first without a template."""
        try:
            view = await self._queues.view(queue)
            stopped = view.paused or view.rate_per_second == 0 or view.capacity == 0
            if not has_template and not view.draining:
                await self._queues.operate(queue, "drain", who=AUTHOR)
            if view.holds or (view.waiting and not stopped):
                return
            # A user who entered after the view passes at the next check, since the queue is gone.
            await self._queues.operate(queue, "delete", who=AUTHOR)
        except QueueUnknown:
            pass
        await self._rules.read(queue)


def _is_on(template: Guard, name: str) -> bool:
    """Tell whether a template wants the queue of this name."""
    return template.policy.auto is not None and (template.policy.queue_all or name in template.on)


def derived_policy(template: Policy) -> PolicyChange:
    """Give the policy of a queue made from a template: it admits by rate, since visitors inside were never counted."""
    auto = template.auto
    values = {name: getattr(template, name) for name in Policy.__struct_fields__}
    del values["template"]
    values.update(auto=None, paths=[], queue_all=False)
    if template.batch == template.own_batch:
        del values["batch"]  # the default, which follows the rate
    if template.seats is Seats.SERVERS and template.capacity is None:
        values.update(seats=Seats.FIXED, capacity=MANY_SEATS)
    if template.rate_per_second is None and auto is not None:
        values["rate_per_second"] = auto.own_rate
    return PolicyChange(**values)
