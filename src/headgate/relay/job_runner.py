"""Sends jobs: takes the next few of each user, waits for a permit for each, and sends none twice unless it is repeatable.

Before its first byte is sent, a job is marked as being sent. A job whose runner died after that is sent again only if it
is repeatable; otherwise it ends as `unknown`. A job that has outlived several runners is parked.

A runner that shuts down takes no new jobs, gives back the waiting ones at once, and lets those being sent finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from http import HTTPStatus
from typing import Final, NamedTuple

from headgate.kit import traces
from headgate.kit.logs import get_logger
from headgate.kit.problems import Closed, DeadlineExceeded, HeadgateError, StoreUnavailable
from headgate.kit.tasks import cancel
from headgate.relay import metrics
from headgate.relay.forwarder import Forwarder, RelayAnswer, RelayRequest
from headgate.relay.headers import target_of, trace_of
from headgate.relay.held_jobs import HeldJob, HeldJobs
from headgate.relay.job_queue import JobQueue, response_of
from headgate.relay.model import JobState, Order, Upstream
from headgate.relay.permits import Permits
from headgate.relay.problems import JobSending, JobTaken, LineFull, UpstreamFailed, UpstreamTimeout
from headgate.relay.request_body import BufferedBody
from headgate.relay.settings import RelaySettings
from headgate.relay.upstreams import Upstreams
from headgate.relay.wire import Response
from headgate.store import ServerError, Store
from headgate.store.errors import as_problem

LOOK_SECONDS: Final = 1.0
SETTLE_SECONDS: Final = 1.0
PARK_AFTER: Final = 3
PAGE: Final = 100

log = get_logger()


class JobEnd(NamedTuple):
    """The final state of a job, with its reason and answer."""

    state: JobState
    reason: str = ""
    response: Response | None = None


class JobRunner:
    """Sends the jobs of every upstream; the runners of other processes share the work."""

    def __init__(
        self, store: Store, upstreams: Upstreams, permits: Permits, forwarder: Forwarder, jobs: JobQueue,
        settings: RelaySettings,
    ) -> None:  # fmt: skip
        self._store = store
        self._upstreams = upstreams
        self._permits = permits
        self._forwarder = forwarder
        self._queue = jobs
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._held: dict[str, HeldJob] = {}
        self._by_upstream: dict[str, HeldJobs] = {}
        self._subscriptions = ExitStack()
        self._subscribed: set[str] = set()
        self._finishing = False

    def finish(self) -> None:
        """Take no new jobs; `run` returns when those being sent have ended."""
        self._finishing = True
        self._wake.set()

    async def run(self) -> None:
        """Take and send jobs until `finish` is called."""
        self._subscribed.clear()  # a restarted runner subscribes again
        with self._subscriptions:
            async with asyncio.TaskGroup() as group:
                while not self._finishing:
                    try:
                        await self._round(group)
                    except Closed:
                        raise
                    except HeadgateError as error:
                        log.debug("jobs could not be looked at", error=error.detail)
                    except Exception:  # a failed round must not end the jobs being sent
                        log.exception("jobs could not be looked at")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_SECONDS):
                            await self._wake.wait()
                    self._wake.clear()
                await self._drain()

    async def _round(self, group: asyncio.TaskGroup) -> None:
        for view in await self._upstreams.list():
            if view.name not in self._subscribed:
                self._subscribed.add(view.name)
                self._subscriptions.enter_context(
                    self._store.hints.listen(self._upstreams.thing(view.name), "events", self._on_hint)
                )
            if self._finishing:
                return
            await self._take(view.name, group)

    async def _take(self, upstream: str, group: asyncio.TaskGroup) -> None:
        """Take the next jobs of one upstream, from its users in turn."""
        holder = self._permits.process
        held_jobs = self._by_upstream.setdefault(upstream, HeldJobs(self._settings.held_jobs))
        users = await self._queue.due(upstream, holder, PAGE)
        for user in users:
            if self._finishing:
                return
            now = self._loop.time()
            found = await self._queue.next(upstream, user, holder, max(0, held_jobs.room))
            self._hold(held_jobs, upstream, user, found.ids, group)
            if found.ready:
                releasable = held_jobs.releasable(now)
                others = releasable.choose(user, found.ready, now)
                if not others and releasable.empty(now):
                    return  # users that are due stay so until a job ends
                await self._make_room(others)
                if held_jobs.room > 0:
                    found = await self._queue.next(upstream, user, holder, held_jobs.room)
                    self._hold(held_jobs, upstream, user, found.ids, group)
            held_jobs.learn(user, now + found.wait_ms / 1000)
        if len(users) == PAGE:
            self._wake.set()

    async def _make_room(self, jobs: Iterable[HeldJob]) -> None:
        """Give back jobs that must wait anyway, unless they are being sent already."""
        waiting = [held for held in jobs if held.waits]
        await _cancelled(waiting)
        await asyncio.gather(*(self._give_back(held, at_once=False) for held in waiting))

    def _hold(
        self, held_jobs: HeldJobs, upstream: str, user: str, ids: Iterable[str], group: asyncio.TaskGroup
    ) -> None:
        for id in ids:
            if id not in self._held:
                held = self._held[id] = HeldJob(upstream, user, id)
                held_jobs.add(held)
                held.task = group.create_task(self._keep(held))
                held.task.add_done_callback(partial(self._let_go, held_jobs, held))

    def _let_go(self, held_jobs: HeldJobs, held: HeldJob, task: asyncio.Task[None]) -> None:
        if held_jobs.room <= 0:
            self._wake.set()  # a user may have been left out
        del self._held[held.id]
        held_jobs.remove(held)

    def _on_hint(self, words: str | None) -> None:
        kind, _, rest = (words or "").partition(" ")
        if kind == "job":
            self._wake.set()
        elif kind == "ended":
            id, _, state = rest.partition(" ")
            held = self._held.get(id)
            if held is not None and held.task is not None and state == JobState.CANCELLED:
                held.task.cancel()

    async def _drain(self) -> None:
        """Give back the jobs that are not being sent, and wait for the others within the shutdown time of a relay."""
        limit = self._loop.time() + self._settings.drain_seconds
        waiting = [held for held in self._held.values() if not held.marked]
        await _cancelled(waiting)
        await asyncio.gather(*(self._give_back(held, at_once=True) for held in waiting))
        while self._held and (left := limit - self._loop.time()) > 0:
            await asyncio.wait(_tasks(self._held.values()), timeout=min(LOOK_SECONDS, left))
            for upstream in {held.upstream for held in self._held.values()}:
                try:
                    await self._queue.due(upstream, self._permits.process, 0)  # a heartbeat, else others take our jobs
                except Closed:
                    raise
                except HeadgateError as error:
                    log.debug("no sign of life could be given", upstream=upstream, error=error.detail)
        await _cancelled([*self._held.values()])
        await self._permits.settled(SETTLE_SECONDS)

    async def _give_back(self, held: HeldJob, *, at_once: bool) -> None:
        try:
            await self._queue.give_back(held.id, held.user, self._permits.process, at_once=at_once)
        except Closed:
            raise
        except (HeadgateError, ServerError) as error:  # others take it when our heartbeat is missing
            log.info("a job could not be given back", job=held.id, error=str(error))

    async def _keep(self, held: HeldJob) -> None:
        """Send one job and write its end; an error in one job does not affect the others."""
        try:
            end = await self._outcome(held)
            if end is not None:
                await self._end(held, end)
        except Closed:
            raise
        except Exception:  # the top of this job's task; the next round finds the job again as ours and not held
            log.exception("the end of a job could not be written", job=held.id)

    async def _outcome(self, held: HeldJob) -> JobEnd | None:
        """Send a job and return its end; retries during an outage of the store. None if another runner has the job."""
        while True:
            try:
                return await self._send(held)
            except Closed:
                raise
            except StoreUnavailable:
                await asyncio.sleep(LOOK_SECONDS)
            except JobTaken:
                return None
            except (HeadgateError, ServerError) as error:
                log.warning("job failed", job=held.id, error=str(error))
                return JobEnd(JobState.FAILED, _public_detail(error))
            except Exception as error:  # such as an order that cannot be encoded: one job must not end the others
                log.exception("job failed", job=held.id)
                state = JobState.UNKNOWN if held.marked else JobState.FAILED
                return JobEnd(state, f"it could not be sent and answered ({type(error).__name__})")

    async def _send(self, held: HeldJob) -> JobEnd | None:
        id, holder = held.id, self._permits.process
        taken = await self._queue.take(id, holder)
        if taken is None:
            return None
        view = await self._upstreams.get(held.upstream)
        request = _request(view.policy, taken.order)
        # Our own mark is no sign of a dead runner: errors that make us take a job again occur only where it may be sent again.
        if taken.attempt != held.attempt:
            if taken.attempts >= PARK_AFTER:
                return JobEnd(JobState.FAILED, f"parked after {taken.attempts} attempts that ended a relay")
            if taken.state is JobState.SENDING and not request.repeatable:
                return JobEnd(JobState.UNKNOWN, "its relay died while sending it")

        async def mark() -> None:
            held.marked, held.waits = True, False
            await self._queue.mark_sending(id, holder, held.attempt)

        async def unmark() -> None:
            await self._queue.mark_refused(id, holder, held.attempt)
            held.marked, held.waits = False, True

        deadline = self._loop.time() + max(0, taken.order.wait_ms - taken.age_ms) / 1000
        # The span continues the submitter's trace.
        job = traces.span(
            "relay job", kind=traces.SpanKind.CONSUMER, caller=trace_of(request.headers), upstream=held.upstream
        )
        forwarding = self._forwarder.forward(
            view, request, deadline=deadline, place=taken.place, most=1_000_000, before=mark, refused=unmark
        )
        held.waits = taken.state is JobState.WAITING
        try:
            with job:
                async with forwarding as answer:
                    body, truncated = await _read(answer, self._settings.job_bytes)
                    return JobEnd(
                        JobState.DONE, "", response_of(answer.status, answer.headers, body, truncated=truncated)
                    )
        except (DeadlineExceeded, LineFull) as error:
            return JobEnd(JobState.FAILED, error.public_detail)
        except (UpstreamFailed, UpstreamTimeout) as error:
            state = JobState.FAILED if error.members.get("outcome") == "unsent" else JobState.UNKNOWN
            return JobEnd(state, error.public_detail)
        finally:
            held.waits = False

    async def _end(self, held: HeldJob, end: JobEnd) -> None:
        metrics.JOBS.labels(held.upstream, end.state).inc()
        while True:
            try:
                await self._queue.end(held.id, held.user, self._permits.process, end.state, end.reason, end.response)
                return
            except Closed:
                raise
            except StoreUnavailable:
                await asyncio.sleep(0.25)
            except (JobTaken, JobSending):
                return


def _public_detail(error: HeadgateError | ServerError) -> str:
    """Return the error message for the job's owner; the store's own message is only logged."""
    return (as_problem(error) if isinstance(error, ServerError) else error).public_detail


async def _read(answer: RelayAnswer, most: int) -> tuple[bytes, bool]:
    """Read a body; True if it is incomplete: too large, or the body of a 429 that broke off."""
    if answer.truncated:
        return b"", True
    body = b""
    try:
        async for chunk in answer.chunks:
            body += chunk
            if len(body) > most:
                return body[:most], True
    except (UpstreamFailed, UpstreamTimeout):
        if answer.status != HTTPStatus.TOO_MANY_REQUESTS:
            raise
        return body, True
    return body, False


def _tasks(jobs: Iterable[HeldJob]) -> list[asyncio.Task[None]]:
    return [held.task for held in jobs if held.task is not None]


async def _cancelled(jobs: Sequence[HeldJob]) -> None:
    await cancel(*_tasks(jobs))


def _request(policy: Upstream, order: Order) -> RelayRequest:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in order.headers]
    target = target_of(policy, order.path.encode("latin-1"), order.query.encode("latin-1"))
    return RelayRequest(order.method, target, headers, BufferedBody(order.body), order.user, order.units)
