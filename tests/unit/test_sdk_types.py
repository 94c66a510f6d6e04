"""All that a user imports from `headgate.sdk` can be found, imported, and used in annotations under `mypy --strict`."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest

from headgate import sdk
from headgate.locks import Locks
from headgate.sdk.backends.locks import HttpLocksBackend

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


PARTS = (
    sdk.Queue, sdk.Operators, sdk.Registry, sdk.Config, sdk.Relay, Locks, HttpLocksBackend, sdk.Quorum,
    sdk.ServiceDiscoveryClient, sdk.SyncLock, sdk.SyncElection,
)  # fmt: skip

BETWEEN_OURSELVES = {
    "take": "a lock asks its source",
    "grant": "a lock asks its source",
    "thing": "the routes name a lock's keys",
    "own": "the relay settles the permit that it holds itself",
}
"""Public methods that only other classes of ours call, by name and caller."""


def own_classes(annotation: object) -> Iterator[type]:
    """Give the classes of ours in an annotation."""
    for each in (annotation, get_origin(annotation)):
        if isinstance(each, type) and each.__module__.startswith("headgate."):
            yield each
    for argument in get_args(annotation):
        yield from own_classes(argument)


def given(kind: type) -> Iterator[tuple[str, object]]:
    """Give the annotations of what one gets from an object: its fields, properties, and what its methods return."""
    for name, annotation in get_type_hints(kind).items():
        if not name.startswith("_"):
            yield name, annotation
    if issubclass(kind, Enum):
        return
    for name, member in inspect.getmembers_static(kind):
        function: Any = getattr(member, "fget", None) or getattr(member, "func", None) or member
        if name in {"__aenter__", "__enter__", "__aiter__", "__iter__"} or not name.startswith("_"):
            function = inspect.unwrap(getattr(function, "__func__", function)) if callable(function) else function
            if inspect.isfunction(function) and name not in BETWEEN_OURSELVES:
                yield name, get_type_hints(function).get("return")


def test_whatever_a_call_gives_can_be_imported() -> None:
    importable = {getattr(sdk, name) for name in dir(sdk)}
    found: dict[type, str] = {}
    waiting: list[type] = [*PARTS]
    while waiting:
        kind = waiting.pop()
        for name, annotation in given(kind):
            for each in own_classes(annotation):
                if each not in found:
                    found[each] = f"{each.__module__}.{each.__name__}, given by {kind.__name__}.{name}"
                    waiting.append(each)
    assert {sdk.Status, sdk.Offer, sdk.Instance, sdk.Value, sdk.Held, sdk.Limit, sdk.UpstreamView} <= set(found)
    assert sorted(where for each, where in found.items() if each not in importable) == []


@pytest.mark.parametrize("client", [sdk.Headgate, sdk.HeadgateSync])
@pytest.mark.parametrize("url", ["localhost:8080", "http://", "ftp://host", "", None])
def test_a_url_that_is_neither_a_gateways_nor_a_stores_is_refused_at_once(
    client: type[sdk.Headgate | sdk.HeadgateSync], url: str
) -> None:
    with pytest.raises(sdk.InvalidRequest, match=r"begins with http:// or https:// \(a gateway\)"):
        client(url)
