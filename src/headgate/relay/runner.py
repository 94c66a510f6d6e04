"""Sends jobs: takes them from the stream, waits in line for each, and never sends one twice that must not be.

Before its first byte leaves, a job is marked as being sent. One whose sender died after that is sent again only if that
does no harm; otherwise its honest end is `unknown`. One that has outlived several senders is parked.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final, cast

import structlog

from headgate.kit.ids import new_ulid
from headgate.kit.problems import DeadlineExceeded, HeadgateError, OutcomeUnknown, StoreUnavailable
from headgate.relay import metrics
from headgate.relay.forward import Forwarder, Request
from headgate.relay.headers import target_of
from headgate.relay.incoming import Kept
from headgate.relay.jobs import GROUP, Jobs, entries_of, response_of
from headgate.relay.model import JobState, Order, Response, Upstream
from headgate.relay.permits import Permits
from headgate.relay.problems import JobSending, JobTaken, LineFull, UpstreamFailed, UpstreamTimeout
from headgate.relay.settings import RelaySettings
from headgate.relay.upstreams import Upstreams
from headgate.store import ServerError, Store
from headgate.store.link import Reply

LOOK_SECONDS: Final = 1.0
RECLAIM_SECONDS: Final = 5.0
DEAD_MS: Final = 5_000
PARK_AFTER: Final = 3
PAGE: Final = 100

log = structlog.get_logger()


class Runner:
    """Sends the jobs of every upstream, together with the runners of other processes."""

    def __init__(
        self, store: Store, upstreams: Upstreams, permits: Permits, forwarder: Forwarder, jobs: Jobs,
        settings: RelaySettings,
    ) -> None:  # fmt: skip
        self._store = store
        self._upstreams = upstreams
        self._permits = permits
        self._forwarder = forwarder
        self._jobs = jobs
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._look = asyncio.Event()
        self._held: dict[str, asyncio.Task[None]] = {}
        self._listening = ExitStack()
        self._heard: set[str] = set()
        self._reclaim_at = 0.0

    async def run(self) -> None:
        """Take and send jobs for as long as the process lives."""
        with self._listening:
            async with asyncio.TaskGroup() as group:
                while True:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_SECONDS):
                            await self._look.wait()
                    self._look.clear()
                    try:
                        await self._round(group)
                    except HeadgateError as error:
                        log.debug("jobs could not be looked at", error=error.detail)

    async def _round(self, group: asyncio.TaskGroup) -> None:
        reclaim = self._loop.time() >= self._reclaim_at
        if reclaim:
            self._reclaim_at = self._loop.time() + RECLAIM_SECONDS
        for view in await self._upstreams.list():
            if view.name not in self._heard:
                self._heard.add(view.name)
                self._listening.enter_context(
                    self._store.hints.listen(self._upstreams.thing(view.name), "events", self._hear)
                )
            for id in [*(await self._orphans(view.name) if reclaim else ()), *await self._fresh(view.name)]:
                if id not in self._held:
                    task = group.create_task(self._keep(view.name, id))
                    self._held[id] = task
                    task.add_done_callback(partial(self._let_go, id))

    def _let_go(self, id: str, task: asyncio.Task[None]) -> None:
        self._held.pop(id, None)

    def _hear(self, words: str | None) -> None:
        kind, _, rest = (words or "").partition(" ")
        if kind == "job":
            self._look.set()
        elif kind == "ended":
            id, _, state = rest.partition(" ")
            task = self._held.get(id)
            if task is not None and state == JobState.CANCELLED:
                task.cancel()

    async def _fresh(self, upstream: str) -> list[str]:
        """Read jobs that nobody has read yet."""
        room = min(PAGE, self._settings.held_jobs - len(self._held))
        thing = self._upstreams.thing(upstream)
        if not await self._store.read(thing, "EXISTS", thing.key("jobs")):
            return []
        # Without room for more, one of ours is read again: a reader that asks for nothing is taken for dead.
        count, after = (room, ">") if room > 0 else (1, "0")
        read = ("GROUP", GROUP, self._permits.process, "COUNT", count, "STREAMS", thing.key("jobs"), after)
        try:
            reply = await self._store.write(thing, "XREADGROUP", *read)
        except OutcomeUnknown:
            self._reclaim_at = 0.0  # they may be ours already: found again among those that are read and not held
            return []
        except HeadgateError as error:
            if not _no_group(error):
                raise
            await self._store.write(
                thing, "XGROUP", "CREATE", thing.key("jobs"), GROUP, "0", "MKSTREAM", again=True
            )  # fmt: skip
            return []
        streams = cast("list[list[Reply]]", reply or [])
        found = [id for stream in streams for _, id in entries_of(stream[1])]
        if len(found) == room:
            self._look.set()
        return found

    async def _orphans(self, upstream: str) -> list[str]:
        """Find jobs whose reader is dead, or that are ours and were lost on the way to us; claim them."""
        thing = self._upstreams.thing(upstream)
        if not await self._store.read(thing, "EXISTS", thing.key("jobs")):
            return []
        try:
            reply = await self._store.read(thing, "XINFO", "CONSUMERS", thing.key("jobs"), GROUP)
        except HeadgateError as error:
            if _no_group(error):
                return []
            raise
        found: list[str] = []
        for consumer in cast("list[list[Reply]]", reply):
            facts = dict(zip(cast("list[bytes]", consumer[::2]), consumer[1::2], strict=True))
            name, pending = cast("bytes", facts[b"name"]), cast("int", facts[b"pending"])
            ours = name.decode() == self._permits.process
            if not ours and cast("int", facts[b"idle"]) < DEAD_MS:
                continue
            if not pending:
                if not ours:
                    await self._store.write(
                        thing, "XGROUP", "DELCONSUMER", thing.key("jobs"), GROUP, name, again=True
                    )  # fmt: skip
                continue
            page = cast(
                "list[list[Reply]]",
                await self._store.read(thing, "XPENDING", thing.key("jobs"), GROUP, "-", "+", PAGE, name),
            )
            entries = [cast("bytes", row[0]) for row in page]
            if entries:
                claimed = await self._store.write(
                    thing, "XCLAIM", thing.key("jobs"), GROUP, self._permits.process, 0, *entries, again=True
                )
                found += [id for _, id in entries_of(claimed)]
        return found

    async def _keep(self, upstream: str, id: str) -> None:
        """See one job through to an end; what the store did not hear is tried again."""
        while True:
            try:
                await self._send(upstream, id)
                return
            except StoreUnavailable:
                await asyncio.sleep(LOOK_SECONDS)
            except JobTaken:
                return
            except (HeadgateError, ServerError) as error:
                log.warning("job failed", job=id, error=str(error))
                await self._end(upstream, id, JobState.FAILED, str(error), None)
                return

    async def _send(self, upstream: str, id: str) -> None:
        holder = self._permits.process
        taken = await self._jobs.take(id, holder)
        if taken is None:
            return
        view = await self._upstreams.get(upstream)
        request = _request(view.policy, taken.order)
        if taken.attempts >= PARK_AFTER:
            reason = f"parked after {taken.attempts} attempts that ended a relay"
            await self._end(upstream, id, JobState.FAILED, reason, None)
            return
        if taken.state is JobState.SENDING and not request.repeatable:
            await self._end(upstream, id, JobState.UNKNOWN, "its relay died while sending it", None)
            return

        async def mark() -> None:
            await self._jobs.mark_sending(id, holder, new_ulid())

        deadline = self._loop.time() + max(0, taken.order.wait_ms - taken.age_ms) / 1000
        try:
            async with self._forwarder.forward(
                view, request, deadline=deadline, place=taken.place, most=1_000_000, before=mark
            ) as answer:
                body, truncated = b"", False
                async for chunk in answer.chunks:
                    body += chunk
                    if len(body) > self._settings.job_bytes:
                        body, truncated = body[: self._settings.job_bytes], True
                        break
                response = response_of(answer.status, answer.headers, body, truncated=truncated)
            await self._end(upstream, id, JobState.DONE, "", response)
        except (DeadlineExceeded, LineFull) as error:
            await self._end(upstream, id, JobState.FAILED, error.detail, None)
        except (UpstreamFailed, UpstreamTimeout) as error:
            state = JobState.FAILED if error.members.get("outcome") == "unsent" else JobState.UNKNOWN
            await self._end(upstream, id, state, error.detail, None)

    async def _end(self, upstream: str, id: str, state: JobState, reason: str, response: Response | None) -> None:
        metrics.JOBS.labels(upstream, state).inc()
        while True:
            try:
                await self._jobs.end(id, self._permits.process, state, reason, response)
                return
            except StoreUnavailable:
                await asyncio.sleep(0.25)
            except (JobTaken, JobSending):
                return


def _no_group(error: HeadgateError) -> bool:
    return "NOGROUP" in error.detail or "no such key" in error.detail


def _request(policy: Upstream, order: Order) -> Request:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in order.headers]
    target = target_of(policy, order.path.encode("latin-1"), order.query.encode("latin-1"))
    return Request(order.method, target, headers, Kept(order.body), order.user, order.units)
