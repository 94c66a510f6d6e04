"""The lifecycle of a process: running, quiet, stopped.

The first SIGTERM or SIGINT makes it quiet: it accepts no new work, says so at `/readyz`, and finishes its current work. After
the deadline the rest is cancelled; a second signal does that at once. A process that a signal stopped exits with 0.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from time import monotonic
from types import TracebackType
from typing import Any, Self

import msgspec

from headgate.kit import logs, metrics
from headgate.kit.logs import get_logger
from headgate.kit.problems import Closed, HeadgateError
from headgate.kit.tasks import Tasks

STOP_SECONDS = 5.0
_RESTART_SECONDS = 1.0

log = get_logger()
_STEPS = metrics.counter("headgate_job_steps_total", "Steps of background jobs.", ["job_name", "outcome"])
_STEP_SECONDS = metrics.histogram(
    "headgate_job_step_seconds", "How long a step of a background job takes.", ["job_name"]
)


class Job(msgspec.Struct, frozen=True):
    """Background work: one step every `every_seconds`, or (with 0) one coroutine for the life of the process.

    `finish` asks a lifelong job to return; a job without it is cancelled.
    """

    name: str
    run: Callable[[], Awaitable[object]]
    every_seconds: float = 0.0
    finish: Callable[[], None] | None = None


class Life:
    """Handles the signals of this process: `async with Life() as life: await life.run(serve())`."""

    def __init__(self, stop_seconds: float = STOP_SECONDS) -> None:
        self.stop_seconds = stop_seconds
        self.quiet = asyncio.Event()
        self._stop = asyncio.Event()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.end)
        loop.add_signal_handler(signal.SIGINT, self.end)
        loop.add_signal_handler(signal.SIGUSR1, logs.switch_debug)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            loop.remove_signal_handler(number)

    def end(self) -> None:
        """Become quiet; called again, stop without waiting for the deadline."""
        if self.quiet.is_set():
            self._stop.set()
        self.quiet.set()

    async def run(self, main: Coroutine[Any, Any, object]) -> None:
        """Run `main` until it returns; once quiet, it is cancelled at the deadline."""
        async with Tasks() as tasks:
            task = tasks.start(main)
            quiet = tasks.start(self.quiet.wait())
            await asyncio.wait((task, quiet), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                stop = tasks.start(self._stop.wait())
                await asyncio.wait((task, stop), timeout=self.stop_seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
                return
        with suppress(Closed):  # it was cancelled at the deadline; another error is raised
            await task


async def run_jobs(jobs: Sequence[Job], quiet: asyncio.Event) -> None:
    """Run all jobs concurrently until `quiet`; a step in progress is finished, a lifelong job finishes or is cancelled."""
    async with asyncio.TaskGroup() as group:
        group.create_task(quiet.wait())  # keeps a process without jobs running
        for job in jobs:
            group.create_task(_repeat(job, quiet) if job.every_seconds else _keep(job, quiet), name=job.name)


async def _repeat(job: Job, quiet: asyncio.Event) -> None:
    await _pause(
        quiet, random.uniform(0, job.every_seconds)
    )  # so that workers started together do not run their steps together
    while not quiet.is_set():
        started = monotonic()
        await _step(job)
        await _pause(quiet, job.every_seconds - (monotonic() - started))


async def _keep(job: Job, quiet: asyncio.Event) -> None:
    while not quiet.is_set():
        async with Tasks() as tasks:
            step = tasks.start(_step(job))
            await asyncio.wait((step, tasks.start(quiet.wait())), return_when=asyncio.FIRST_COMPLETED)
            if job.finish is not None and quiet.is_set():
                job.finish()
                await asyncio.wait((step,))
        await _pause(quiet, _RESTART_SECONDS)


async def _step(job: Job) -> None:
    started = monotonic()
    try:
        await job.run()
    except Exception as error:  # the top of a worker's loop: a failed step must not end the job
        _STEPS.labels(job.name, "failed").inc()
        refusal = _refusal(error)
        if refusal is None:
            log.exception("job failed", job=job.name)
        else:  # such as an outage of the store: a traceback would not help
            log.warning("job failed", job=job.name, error=refusal.detail)
    else:
        _STEPS.labels(job.name, "done").inc()
    finally:
        _STEP_SECONDS.labels(job.name).observe(monotonic() - started)


def _refusal(error: Exception) -> HeadgateError | None:
    """Give the HeadgateError of a failed step, also of a group of them; None if there was another error."""
    if isinstance(error, ExceptionGroup):
        found = [_refusal(one) for one in error.exceptions]
        return None if None in found else found[0]
    return error if isinstance(error, HeadgateError) else None


async def _pause(quiet: asyncio.Event, seconds: float) -> None:
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await quiet.wait()
