"""Sends jobs: takes the next few of each user, waits in line for each, and never sends one twice that must not be.

Before its first byte leaves, a job is marked as being sent. One whose sender died after that is sent again only if that
does no harm; otherwise its honest end is `unknown`. One that has outlived several senders is parked.

A runner that is to finish takes nothing new, gives back at once what waits, and lets what is being sent come to its end.
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
from headgate.relay.forward import Forwarder, RelayAnswer, RelayRequest
from headgate.relay.headers import target_of, trace_of
from headgate.relay.incoming import KeptBody
from headgate.relay.job_holdings import HeldJob, Holdings
from headgate.relay.job_queue import Jobs, response_of
from headgate.relay.model import JobState, Order, Response, Upstream
from headgate.relay.permits import Permits
from headgate.relay.problems import JobSending, JobTaken, LineFull, UpstreamFailed, UpstreamTimeout
from headgate.relay.settings import RelaySettings
from headgate.relay.upstreams import Upstreams
from headgate.store import ServerError, Store
from headgate.store.errors import as_problem

LOOK_SECONDS: Final = 1.0
SETTLE_SECONDS: Final = 1.0
PARK_AFTER: Final = 3
PAGE: Final = 100

log = get_logger()


class JobEnd(NamedTuple):
    """How a job ended."""

    state: JobState
    reason: str = ""
    response: Response | None = None


class JobRunner:
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
        self._held: dict[str, HeldJob] = {}
        self._holdings: dict[str, Holdings] = {}
        self._listening = ExitStack()
        self._heard: set[str] = set()
        self._finishing = False

    def finish(self) -> None:
        """Take nothing new; `run` ends when what is being sent has ended."""
        self._finishing = True
        self._look.set()

    async def run(self) -> None:
        """Take and send jobs until told to finish."""
        self._heard.clear()  # one that was started again listens anew
        with self._listening:
            async with asyncio.TaskGroup() as group:
                while not self._finishing:
                    try:
                        await self._round(group)
                    except Closed:
                        raise
                    except HeadgateError as error:
                        log.debug("jobs could not be looked at", error=error.detail)
                    except Exception:  # a look that fails must not end what is being sent
                        log.exception("jobs could not be looked at")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_SECONDS):
                            await self._look.wait()
                    self._look.clear()
                await self._drain()

    async def _round(self, group: asyncio.TaskGroup) -> None:
        for view in await self._upstreams.list():
            if view.name not in self._heard:
                self._heard.add(view.name)
                self._listening.enter_context(
                    self._store.hints.listen(self._upstreams.thing(view.name), "events", self._hear)
                )
            if self._finishing:
                return
            await self._take(view.name, group)

    async def _take(self, upstream: str, group: asyncio.TaskGroup) -> None:
        """Take the next jobs of one upstream, of its users in turn."""
        holder = self._permits.process
        holdings = self._holdings.setdefault(upstream, Holdings(self._settings.held_jobs))
        users = await self._jobs.due(upstream, holder, PAGE)
        for user in users:
            if self._finishing:
                return
            now = self._loop.time()
            found = await self._jobs.next(upstream, user, holder, max(0, holdings.room))
            self._hold(holdings, upstream, user, found.ids, group)
            if found.ready:
                spare = holdings.spare(now)
                others = spare.choose(user, found.ready, now)
                if not others and spare.empty(now):
                    return  # whoever is due stays so until something ends
                await self._make_room(others)
                if holdings.room > 0:
                    found = await self._jobs.next(upstream, user, holder, holdings.room)
                    self._hold(holdings, upstream, user, found.ids, group)
            holdings.learn(user, now + found.wait_ms / 1000)
        if len(users) == PAGE:
            self._look.set()

    async def _make_room(self, jobs: Iterable[HeldJob]) -> None:
        """Give back jobs that must wait anyway, unless they are being sent by now."""
        waiting = [held for held in jobs if held.waits]
        await _cancelled(waiting)
        await asyncio.gather(*(self._give_back(held, at_once=False) for held in waiting))

    def _hold(self, holdings: Holdings, upstream: str, user: str, ids: Iterable[str], group: asyncio.TaskGroup) -> None:
        for id in ids:
            if id not in self._held:
                held = self._held[id] = HeldJob(upstream, user, id)
                holdings.add(held)
                held.task = group.create_task(self._keep(held))
                held.task.add_done_callback(partial(self._let_go, holdings, held))

    def _let_go(self, holdings: Holdings, held: HeldJob, task: asyncio.Task[None]) -> None:
        if holdings.room <= 0:
            self._look.set()  # somebody may have been left out
        del self._held[held.id]
        holdings.remove(held)

    def _hear(self, words: str | None) -> None:
        kind, _, rest = (words or "").partition(" ")
        if kind == "job":
            self._look.set()
        elif kind == "ended":
            id, _, state = rest.partition(" ")
            held = self._held.get(id)
            if held is not None and held.task is not None and state == JobState.CANCELLED:
                held.task.cancel()

    async def _drain(self) -> None:
        """Give back what is not being sent, and let the rest end within the time that a stopping relay has."""
        limit = self._loop.time() + self._settings.drain_seconds
        waiting = [held for held in self._held.values() if not held.marked]
        await _cancelled(waiting)
        await asyncio.gather(*(self._give_back(held, at_once=True) for held in waiting))
        while self._held and (left := limit - self._loop.time()) > 0:
            await asyncio.wait(_tasks(self._held.values()), timeout=min(LOOK_SECONDS, left))
            for upstream in {held.upstream for held in self._held.values()}:
                try:
                    await self._jobs.due(upstream, self._permits.process, 0)  # others would take what we are sending
                except Closed:
                    raise
                except HeadgateError as error:
                    log.debug("no sign of life could be given", upstream=upstream, error=error.detail)
        await _cancelled([*self._held.values()])
        await self._permits.settled(SETTLE_SECONDS)

    async def _give_back(self, held: HeldJob, *, at_once: bool) -> None:
        try:
            await self._jobs.give_back(held.id, held.user, self._permits.process, at_once=at_once)
        except Closed:
            raise
        except (HeadgateError, ServerError) as error:  # others find it when they miss us
            log.info("a job could not be given back", job=held.id, error=str(error))

    async def _keep(self, held: HeldJob) -> None:
        """See one job through to an end; whatever goes wrong with it, the others go on."""
        try:
            end = await self._outcome(held)
            if end is not None:
                await self._end(held, end)
        except Closed:
            raise
        except Exception:  # the top of this job's own loop; it is found again among those that are ours and not held
            log.exception("the end of a job could not be written", job=held.id)

    async def _outcome(self, held: HeldJob) -> JobEnd | None:
        """Send a job and give its end; what the store did not hear is tried again. None: it is not ours to end."""
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
            except Exception as error:  # such as an order that cannot be written: one job must not end the others
                log.exception("job failed", job=held.id)
                state = JobState.UNKNOWN if held.marked else JobState.FAILED
                return JobEnd(state, f"it could not be sent and answered ({type(error).__name__})")

    async def _send(self, held: HeldJob) -> JobEnd | None:
        id, holder = held.id, self._permits.process
        taken = await self._jobs.take(id, holder)
        if taken is None:
            return None
        view = await self._upstreams.get(held.upstream)
        request = _request(view.policy, taken.order)
        # A mark of our own tells nothing: whatever has us take a job again is raised where it may be sent (again).
        if taken.attempt != held.attempt:
            if taken.attempts >= PARK_AFTER:
                return JobEnd(JobState.FAILED, f"parked after {taken.attempts} attempts that ended a relay")
            if taken.state is JobState.SENDING and not request.repeatable:
                return JobEnd(JobState.UNKNOWN, "its relay died while sending it")

        async def mark() -> None:
            held.marked, held.waits = True, False
            await self._jobs.mark_sending(id, holder, held.attempt)

        async def unmark() -> None:
            await self._jobs.mark_refused(id, holder, held.attempt)
            held.marked, held.waits = False, True

        deadline = self._loop.time() + max(0, taken.order.wait_ms - taken.age_ms) / 1000
        # The trace of whoever submitted it goes on.
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
                await self._jobs.end(held.id, held.user, self._permits.process, end.state, end.reason, end.response)
                return
            except Closed:
                raise
            except StoreUnavailable:
                await asyncio.sleep(0.25)
            except (JobTaken, JobSending):
                return


def _public_detail(error: HeadgateError | ServerError) -> str:
    """Say what went wrong in words for whoever submitted the job; the store's own words are for the log only."""
    return (as_problem(error) if isinstance(error, ServerError) else error).public_detail


async def _read(answer: RelayAnswer, most: int) -> tuple[bytes, bool]:
    """Read a body; True if a part of it is missing: it is too large, or it belongs to a refusal and broke off."""
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
    return RelayRequest(order.method, target, headers, KeptBody(order.body), order.user, order.units)
