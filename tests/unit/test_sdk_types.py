"""All that a user imports from `headgate.sdk` can be found, imported, and used in annotations under `mypy --strict`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from headgate import sdk

PROGRAM = """
from collections.abc import Sequence

import msgspec

from headgate.sdk import (
    Board, Change, Entry, Eta, Forked, Headgate, HeadgateError, HeadgateSync, Held, HeldPermit, Instance, InstanceList,
    JobView, Leader, Live, Lock, LockState, Offer, PolicyChange, Published, QueueView, Redeemed, Registered, RelayResponse,
    Seat, State, Status, SyncHeld, SyncLock, Ticket, UpstreamView, Value,
)


class Limits(msgspec.Struct, frozen=True):
    players: int


def address_of(status: Status) -> str | None:
    seat: Seat | None = status.server
    eta: Eta | None = status.eta
    waits: float | None = eta.seconds if eta is not None else status.least_seconds
    ticket: str | None = status.ticket or status.ticket_id
    if status.paused or waits is None or ticket is None or status.expires_in_ms is None or status.advice is not None:
        return None
    return seat.address if seat is not None and status.status is State.PROMOTED else None


def heard(change: Change) -> None:
    instance: Instance = change.instance
    print(change.kind, instance.instance_id, change.revision)


async def wait(hg: Headgate, user: str) -> str | None:
    entry: Entry = await hg.queue.entry(user)
    async for status in hg.queue.wait(user, place_token=entry.place_token):
        if (address := address_of(status)) is not None:
            return address
    return None


async def serve(offer: Offer, ticket: str) -> str | None:
    redeemed: Redeemed = await offer.redeem(ticket, "session")
    return redeemed.traceparent


async def guard(lock: Lock) -> int:
    async with lock as held:
        return fence_of(held)


def fence_of(held: Held) -> int:
    return held.fence


async def use(hg: Headgate) -> None:
    view: QueueView = await hg.queues.configure("main", PolicyChange(capacity=10))
    board: Board = await hg.queue.board(view.queue)
    made: Registered = await hg.registry.register(type="game", group="g", port=1, private_ip="10.0.0.1")
    found: InstanceList = await hg.registry.discover("game")
    await hg.registry.subscribe("game/g", heard)
    published: Published = await hg.config.set("shop", "limits", '{"players": 3}', content_type="json")
    value: Value = await hg.config.get("shop", "limits", version=published.version)
    live: Live[Limits] = await hg.config.live("shop", "limits", Limits)
    players: int = live.value.players
    response: RelayResponse = await hg.relay.request("GET", "partner", "/", user="ann")
    job: JobView = await hg.relay.job("id")
    upstreams: Sequence[UpstreamView] = await hg.relay.upstreams()
    state: LockState = await hg.locks.show("a")
    leader: Leader | None = await hg.election("boss").leader()
    ticket: Ticket = await hg.queue.check_ticket("signed")
    async with hg.relay.permit("partner", "ann") as permit:
        refused(permit)
    print(board, made, found.stale, value, players, response, job, upstreams, state, leader, ticket)


def refused(permit: HeldPermit) -> None:
    permit.refused(1.0)


def in_threads(hg: HeadgateSync) -> int:
    lock: SyncLock = hg.lock("nightly", ttl=10)
    with lock as held:
        return of_thread(held)


def of_thread(held: SyncHeld) -> int:
    return held.fence


def name_of(error: HeadgateError) -> str:
    return "child" if isinstance(error, Forked) else error.code
"""

WRONG = """
from headgate.sdk import Headgate, Status


def rank_of(status: Status) -> str:
    return status.rank


async def wrong(hg: Headgate) -> None:
    await hg.queue.entry(7)
    hg.lock("a", ttl="long")
"""


@pytest.mark.release
def test_a_users_program_is_typed(tmp_path: Path) -> None:
    """Both programs in one run, whose cache outlives it: mypy reads all of our package and its dependencies for them."""
    for name, program in (("right", PROGRAM), ("wrong", WRONG)):
        (tmp_path / f"{name}.py").write_text(program)
    cache = Path(__file__).parents[2] / ".mypy_cache" / "user_program"
    options = ["--strict", "--config-file=", "--no-error-summary", f"--cache-dir={cache}"]
    command = [sys.executable, "-m", "mypy", *options, "right.py", "wrong.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    lines = [(line.partition(":")[0], line.rpartition("[")[2]) for line in done.stdout.splitlines()]
    assert lines == [("wrong.py", "return-value]"), ("wrong.py", "arg-type]"), ("wrong.py", "arg-type]")], done.stdout


def test_dir_tells_what_can_be_imported() -> None:
    assert dir(sdk) == sorted(sdk.__all__)
    for name in dir(sdk):
        found = getattr(sdk, name)
        assert found.__name__ == name, "it has the name by which it is imported"
        assert found.__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        sdk.Nothing  # noqa: B018


def test_the_errors_that_calls_raise_can_be_imported() -> None:
    for name in ("StoreRefused", "UserMissing", "Malformed", "TooLarge", "ScriptFailed"):
        assert name in dir(sdk)
        assert issubclass(getattr(sdk, name), sdk.HeadgateError)


def test_no_answer_is_unset() -> None:
    found = {name: getattr(sdk, name) for name in set(dir(sdk)) - {"OverrideChange", "PolicyChange"}}  # which are asked
    structs = {
        name: each for name, each in found.items() if isinstance(each, type) and issubclass(each, msgspec.Struct)
    }
    assert {"Status", "Redeemed", "Instance", "JobView"} <= set(structs)
    for name, each in structs.items():
        for field in msgspec.structs.fields(each):
            assert "UnsetType" not in str(field.type), f"{name}.{field.name}"
            assert field.default is not msgspec.UNSET, f"{name}.{field.name}"


@pytest.mark.parametrize("client", [sdk.Headgate, sdk.HeadgateSync])
@pytest.mark.parametrize("url", ["localhost:8080", "http://", "ftp://host", "", None])
def test_a_url_that_is_neither_a_gateways_nor_a_stores_is_refused_at_once(
    client: type[sdk.Headgate | sdk.HeadgateSync], url: str
) -> None:
    with pytest.raises(sdk.InvalidRequest, match=r"begins with http:// or https:// \(a gateway\)"):
        client(url)
