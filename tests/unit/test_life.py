"""Run, quiet, stop; jobs that fail and go on; the operations port."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import httpx2
import pytest

from headgate.http.operations import serve_operations
from headgate.kit.life import Job, Life, run_jobs
from headgate.kit.problems import StoreUnavailable
from tests.topology import Stopwatch

_PROCESS = """
import asyncio, sys
from headgate.kit.life import Job, Life, run_jobs

async def work(seconds):
    print("step", flush=True)
    try:
        await asyncio.sleep(seconds)
        print("finished", flush=True)
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        raise

async def main():
    async with Life(stop_seconds=float(sys.argv[2])) as life:
        await life.run(run_jobs([Job("work", lambda: work(float(sys.argv[1])), 0.01)], life.quiet))
    print("ended", flush=True)

asyncio.run(main())
"""


def start(step_seconds: float, stop_seconds: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROCESS, str(step_seconds), str(stop_seconds)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "step\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_step_under_way_finish_and_exits_with_0(number: signal.Signals) -> None:
    process = start(step_seconds=2, stop_seconds=10)
    process.send_signal(number)
    rest, _ = process.communicate(timeout=10)
    assert rest == "finished\nended\n"
    assert process.returncode == 0


def test_what_does_not_finish_by_the_deadline_is_cancelled() -> None:
    process = start(step_seconds=60, stop_seconds=0.2)
    process.terminate()
    rest, _ = process.communicate(timeout=10)
    assert rest == "cancelled\nended\n"
    assert process.returncode == 0


def test_a_second_signal_does_not_wait_for_the_deadline() -> None:
    process = start(step_seconds=60, stop_seconds=50)
    process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.terminate()
    rest, _ = process.communicate(timeout=10)
    assert rest == "cancelled\nended\n"


async def test_a_failed_step_neither_ends_its_job_nor_the_others() -> None:
    quiet = asyncio.Event()
    steps: list[str] = []

    async def stumble() -> None:
        steps.append("stumble")
        raise RuntimeError("this step fails on purpose")

    async def walk() -> None:
        steps.append("walk")
        if steps.count("stumble") >= 3 and steps.count("walk") >= 3:
            quiet.set()

    async with asyncio.timeout(10):
        await run_jobs([Job("stumble", stumble, 0.01), Job("walk", walk, 0.01)], quiet)
    assert steps.count("stumble") >= 3


@pytest.mark.parametrize("defect", [False, True])
async def test_an_outage_is_told_in_a_sentence_and_a_defect_with_its_trace(
    defect: bool, caplog: pytest.LogCaptureFixture
) -> None:
    quiet = asyncio.Event()

    async def fail() -> None:
        raise StoreUnavailable("The store is away.")

    async def work() -> None:
        quiet.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            await asyncio.sleep(0)
            if defect:
                raise KeyError("of ours")

    await run_jobs([Job("work", work, 0.001)], quiet)
    (line,) = [line for line in caplog.records if line.__dict__["event"] == "job failed"]
    assert bool(line.exc_info) is defect
    assert line.__dict__["keys"].get("error") == (None if defect else "The store is away.")


async def test_a_lifelong_job_is_cancelled_when_quiet_and_started_again_when_it_fails() -> None:
    quiet = asyncio.Event()
    lives: list[str] = []

    async def watch() -> None:
        lives.append("begun")
        if len(lives) == 1:
            raise RuntimeError("the first life fails on purpose")
        quiet.set()
        try:
            await asyncio.sleep(60)
        finally:
            lives.append("ended")

    async with asyncio.timeout(10):
        await run_jobs([Job("watch", watch)], quiet)
    assert lives == ["begun", "begun", "ended"]


async def test_a_lifelong_job_that_can_finish_is_asked_to_and_awaited() -> None:
    quiet, asked = asyncio.Event(), asyncio.Event()
    lives: list[str] = []

    async def serve() -> None:
        quiet.set()
        try:
            await asked.wait()
            for _ in range(100):  # beats of the loop: as long as it likes
                await asyncio.sleep(0)
            lives.append("finished")
        except asyncio.CancelledError:
            lives.append("cancelled")
            raise

    async with asyncio.timeout(10):
        await run_jobs([Job("serve", serve, finish=asked.set)], quiet)
    assert lives == ["finished"]


async def test_a_lifelong_job_that_does_not_finish_in_time_is_cancelled() -> None:
    ended = asyncio.Event()

    async def serve(life: Life) -> None:
        life.end()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with asyncio.timeout(10), Life(stop_seconds=0.05) as life:
        await life.run(run_jobs([Job("serve", lambda: serve(life), finish=lambda: None)], life.quiet))
    assert ended.is_set()


async def test_a_failure_of_the_main_part_reaches_the_caller() -> None:
    async def fail() -> None:
        raise LookupError("nothing here")

    with pytest.raises(LookupError):
        async with Life() as life:
            await life.run(fail())


async def test_the_operations_port_answers_probes_and_metrics() -> None:
    why_not: str | None = None

    async def ready() -> str | None:
        return why_not

    async with serve_operations(0, ready) as port, httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        shown = await client.get("/metrics")
        assert shown.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert "headgate_job_steps_total" in shown.text
        assert (await client.head("/livez")).content == b""
        assert (await client.post("/livez")).status_code == 405
        assert (await client.get("/nothing")).status_code == 404
        why_not = "the store is away"
        refused = await client.get("/readyz")
        assert (refused.status_code, refused.text) == (503, "the store is away\n")


async def test_a_readiness_check_that_fails_is_not_ready() -> None:
    async def ready() -> str | None:
        raise RuntimeError("secret words")

    async with serve_operations(0, ready) as port, httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        refused = await client.get("/readyz")
        assert refused.status_code == 503
        assert "secret words" not in refused.text


async def test_an_answer_that_takes_too_long_is_503_with_a_sentence() -> None:
    async def ready() -> str | None:
        await asyncio.sleep(60)
        return None

    async with (
        serve_operations(0, ready) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client,
    ):
        late = await client.get("/readyz")
        assert (late.status_code, late.text) == (503, "no answer within 5 s\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET  HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET  /livez HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\nHost: x\n\n", 400),
        (b"GET /livez HTTP/1.1\n", 400),
        (b"GET /livez\r\n\r\n", 505),
        (b"\r\n\r\n\0", 400),
    ],
)
async def test_what_is_no_request_on_the_operations_port_is_refused_at_once(request_bytes: bytes, status: int) -> None:
    async def ready() -> str | None:
        return None

    async with serve_operations(0, ready) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes)
        watch = Stopwatch()
        assert (await reader.read()).startswith(b"HTTP/1.1 %d " % status)
        assert watch.seconds < 4
        writer.close()


async def test_rubbish_and_silence_on_the_operations_port_keep_nobody_waiting() -> None:
    async def ready() -> str | None:
        return None

    async with serve_operations(0, ready) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\nX: " + b"x" * 80_000)
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
        writer.close()
        await writer.wait_closed()
        watch = Stopwatch()
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            assert (await client.get("/livez")).status_code == 200
        assert watch.seconds < 2
    for reader, writer in silent:
        assert await reader.read() == b""  # they were not kept when the listener ended
        writer.close()
        await writer.wait_closed()
