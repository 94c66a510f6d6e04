"""`headgate relay …`: upstreams, who waits for them, and the proof that their limits hold."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from http import HTTPStatus
from secrets import token_hex
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from headgate.cli import output
from headgate.cli.error_advice import instead
from headgate.cli.options import Json
from headgate.cli.target import Url, check_url, target
from headgate.cli.trial.prove import USER, Ask, ProofRun, ProofVerdict
from headgate.cli.trial.prove import prove as run_trial
from headgate.kit.problems import HeadgateError, InvalidRequest
from headgate.kit.validation import explain
from headgate.relay.model import Counter, Upstream
from headgate.relay.problems import UpstreamUnknown
from headgate.relay.wire import UpstreamStatus, UpstreamView
from headgate.sdk import Headgate
from headgate.sdk.relay import Relay

DISPROVED, UNPROVEN = 1, 3
WATCH_SECONDS = 1.0


async def list_upstreams(*, url: Url = None, json: Json = False) -> None:
    """Show all upstreams and their limits.

    Parameters
    ----------
    json
        Print JSON.
    """
    async with target(url) as headgate:
        found = await headgate.relay.upstreams()
    if json:
        output.as_json(found)
        return
    output.table(
        ("name", "base URL", "limits", "counter", "version"),
        [
            (view.name, view.policy.base_url, limits(view.policy), view.policy.counter, str(view.version))
            for view in found
        ],
        empty="There are no upstreams yet; `headgate relay upstream set NAME …` adds one.",
    )


async def set_upstream(
    name: str,
    policy: str | None = None,
    *,
    base_url: str | None = None,
    count: int | None = None,
    seconds: float | None = None,
    counter: Counter | None = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Add or change an upstream: by a whole policy in JSON, or one window by its numbers.

    Parameters
    ----------
    name
        The upstream's name.
    policy
        The policy in JSON; - reads it from stdin.
    base_url
        Where the upstream is.
    count
        How many requests of one user it takes …
    seconds
        … in any window of so many seconds.
    counter
        How it counts.
    json
        Print JSON.
    """
    async with target(url) as headgate:
        known = {view.name: view.policy for view in await headgate.relay.upstreams()}.get(name)
        view = await headgate.relay.put_upstream(name, _policy(known, policy, base_url, count, seconds, counter))
    if json:
        output.as_json(view)
    else:
        output.line(_words(view))


async def remove_upstream(name: str, *, url: Url = None) -> None:
    """Take an upstream out of service.

    Parameters
    ----------
    name
        The upstream's name.
    """
    async with target(url) as headgate:
        with instead(UpstreamUnknown, _missing(name)):
            await headgate.relay.remove_upstream(name)
    output.say(f"headgate: {name} is out of service.")


async def status(name: str | None = None, *, url: Url = None, json: Json = False) -> None:
    """Show who waits, what is in flight, and how many permits still count in their window.

    Parameters
    ----------
    name
        One upstream; all of them unless given.
    json
        Print JSON.
    """
    async with target(url) as headgate:
        found = await _status(headgate.relay, name)
    if json:
        output.as_json(found)
    else:
        output.table(_COLUMNS, _rows(found), empty="There are no upstreams yet.")


async def watch(name: str | None = None, *, url: Url = None, json: Json = False) -> None:
    """Show the status of upstreams once a second, until interrupted.

    Parameters
    ----------
    name
        One upstream; all of them unless given.
    json
        Print a line of JSON a second.
    """
    async with target(url) as headgate:
        while True:
            found = await _status(headgate.relay, name)
            if json:
                output.as_json(found)
            else:
                if sys.stdout.isatty():
                    sys.stdout.write("\x1b[H\x1b[2J")
                output.table(_COLUMNS, _rows(found), empty="There are no upstreams yet.")
            await asyncio.sleep(WATCH_SECONDS)


async def prove(
    *,
    requests: int = 100,
    count: int = 10,
    seconds: float = 2.0,
    counter: Counter = Counter.LOG,
    delay_ms: float = 20.0,
    tail_ms: float = 500.0,
    seed: int = 1,
    relay: Annotated[
        tuple[str, ...],
        Parameter(negative=(), help="URLs of relays to flood in turn; without it, only the one of --url."),
    ] = (),
    url: Url = None,
    json: Json = False,
) -> int:
    """Flood live relays with one user's requests and count what arrives at a strict upstream with jitter.

    Exit codes: 0 if the limit held, 1 if it did not, 3 if requests were left without an answer, which proves neither.

    Parameters
    ----------
    requests
        How many requests, all at once.
    count
        The upstream's limit …
    seconds
        … in any window of so many seconds.
    counter
        How the upstream counts.
    delay_ms
        Median of the delay on each way.
    tail_ms
        Now and then a way takes up to so much longer.
    seed
        Of the random delays.
    json
        Print JSON.
    """
    for each in relay:
        check_url(each, "--relay")
    trial = ProofRun(requests, count, seconds, counter, delay_ms / 1000, tail_ms / 1000, seed)
    name = f"prove-{token_hex(4)}"
    troubles: list[str] = []
    async with AsyncExitStack() as stack:
        headgate = await stack.enter_async_context(target(url))
        relays = [await stack.enter_async_context(Headgate(each, token=headgate.token)) for each in relay]

        async def begin(policy: Upstream) -> None:
            await headgate.relay.put_upstream(name, policy)

        bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(), disable=not sys.stderr.isatty(), console=output.stderr(),
        )  # fmt: skip
        try:
            with bar:
                task = bar.add_task("largest window 0", total=requests)
                verdict = await run_trial(
                    trial,
                    begin,
                    [_ask(each.relay, name, troubles) for each in (relays or [headgate])],
                    lambda done, largest: bar.update(task, completed=done, description=f"largest window {largest}"),
                )
        finally:
            await headgate.relay.remove_upstream(name)
    unproven = _unproven(verdict, troubles)
    if json:
        output.as_json(verdict)
    elif not unproven:
        output.line(_verdict(verdict))
    if unproven:
        output.complain(unproven)
        return UNPROVEN
    return 0 if verdict.holds else DISPROVED


def limits(policy: Upstream) -> str:
    """Format limits for people."""
    return ", ".join(
        f"every {limit.every_ms} ms per {limit.per}"
        if limit.every_ms
        else f"{limit.count} at once per {limit.per}"
        if limit.seconds is None
        else f"{limit.count} per {limit.seconds:g} s per {limit.per}"
        + (f", burst {limit.burst}" if limit.burst else "")
        for limit in policy.limits
    )


def _ask(relay: Relay, name: str, troubles: list[str]) -> Ask:
    async def ask(path: str, deadline: float) -> int:
        path, _, query = path.partition("?")
        try:
            answer = await relay.request("GET", name, path, user=USER, query=query, deadline=deadline)
        except HeadgateError as error:
            troubles.append(error.detail)
            raise
        if answer.status != HTTPStatus.OK:
            troubles.append(f"the answer was {answer.status}.")
        return answer.status

    return ask


def _policy(
    known: Upstream | None, text: str | None, base_url: str | None, count: int | None, seconds: float | None,
    counter: Counter | None,
) -> Upstream:  # fmt: skip
    if text is not None:
        try:
            return msgspec.json.decode(sys.stdin.buffer.read() if text == "-" else text.encode(), type=Upstream)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"The policy does not fit: {explain(error, Upstream)[0]}") from error
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f"The policy is not JSON: {error}.") from error
    given: dict[str, object] = msgspec.to_builtins(known) if known is not None else {}
    if base_url is not None:
        given["baseUrl"] = base_url
    if count is not None or seconds is not None:
        given["limits"] = [{"count": count, "seconds": seconds}]
    if counter is not None:
        given["counter"] = counter
    try:
        return msgspec.convert(given, Upstream)
    except msgspec.ValidationError as error:
        wrong, field = explain(error, Upstream)
        if {"baseUrl", "limits"} - set(given):
            raise InvalidRequest("Give --base-url, --count and --seconds, or the whole policy in JSON.") from error
        raise InvalidRequest(wrong, field=field) from error


async def _status(relay: Relay, name: str | None) -> list[UpstreamStatus]:
    if name is None:
        return [await relay.status(view.name) for view in await relay.upstreams()]
    with instead(UpstreamUnknown, _missing(name)):
        return [await relay.status(name)]


def _missing(name: str) -> str:
    return f"There is no upstream named {name}; `headgate relay upstream list` shows those that are there."


_COLUMNS = ("upstream", "users", "waiting", "jobs", "in flight", "cooling", "held")


def _rows(found: list[UpstreamStatus]) -> list[tuple[str, ...]]:
    return [
        (
            each.name, str(each.users), str(each.waiting), str(each.jobs), str(each.in_flight), str(each.cooling),
            f"{each.held_ms / 1000:.1f} s" if each.held_ms else "no",
        )
        for each in found
    ]  # fmt: skip


def _words(view: UpstreamView) -> str:
    return f"{view.name}: {limits(view.policy)} at {view.policy.base_url} (version {view.version})"


def _unproven(verdict: ProofVerdict, troubles: list[str]) -> str:
    """Return why the run proves nothing, if requests failed without breaking the limit; else nothing."""
    if verdict.holds or verdict.refused or verdict.largest_window > verdict.limit:
        return ""
    why = troubles[0] if troubles else "nobody knows why."
    if not verdict.answered:
        return f"Nothing was proven: {why}"
    return (
        f"Nothing was proven: {verdict.failed} of {verdict.requests} requests failed ({why.rstrip('.')}); the others kept "
        "the limit."
    )


def _verdict(verdict: ProofVerdict) -> str:
    said = "The limit held" if verdict.holds else "THE LIMIT DID NOT HOLD"
    return (
        f"{said}: the largest window of {verdict.seconds:g} s had {verdict.largest_window} arrivals, the limit is "
        f"{verdict.limit}; {verdict.refused} of {verdict.requests} refused, {verdict.answered} answered, in "
        f"{verdict.took_seconds:.1f} s ({verdict.utilisation:.0%} of the pace that the limit allows)."
    )
