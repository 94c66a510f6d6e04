"""`headgate doctor`: looks the store over, and says what to do about each finding."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Annotated

import msgspec
from cyclopts import Parameter

from headgate.cli import output, running_up
from headgate.cli.commands.doctor import data_checks, store_checks
from headgate.cli.commands.doctor.gateway_checks import of_gateway
from headgate.cli.commands.doctor.store_checks import RIGHTS, Finding, Severity
from headgate.cli.options import Json
from headgate.cli.processes.local_store import NoStore
from headgate.cli.processes.registration import PROCESS_TYPES, clock_offsets
from headgate.cli.settings import ClientSettings, DataSettings, read_settings
from headgate.cli.target import check_url
from headgate.kit.problems import HeadgateError
from headgate.kit.settings import Configuration
from headgate.registry.registry import Registry
from headgate.registry.settings import RegistrySettings
from headgate.store import Store, StoreSettings, acl, open_store
from headgate.store.client.address import StoreKind, parse_address
from headgate.store.client.link import LinkLost, ServerError
from headgate.store.scripts.contracts import operations
from headgate.store.scripts.script import Script
from headgate.store.settings import EMBEDDED

GATEWAY = ("http://", "https://")
_PINGS = 50
_SLOW_MS, _VERY_SLOW_MS = 10.0, 100.0


async def doctor(
    *,
    store: Annotated[str | None, Parameter(name=["--store", "--url"])] = None,
    acl: Annotated[bool, Parameter(negative=())] = False,
    json: Json = False,
) -> int:
    """Check the store: version, persistence, memory policy, clocks, latency, scripts, topology, replication, and data_checks.

    Of a gateway: whether it answers, its version, its store, and what the token of HEADGATE_TOKEN may do there.

    Parameters
    ----------
    store
        The store's URL, or a gateway's; without it, the one of the settings or of the `up` running here.
    acl
        Print the least rights that each process needs there, as ACL rules, and check nothing.
    json
        Print JSON.
    """
    configuration = read_settings(store__url=("--store", store))
    if acl:
        _print_rights(configuration, as_json=json)
        return 0
    url = _url(configuration)
    if url.startswith(GATEWAY):
        found = [finding async for finding in of_gateway(*_gateway(configuration, url))]
    else:
        check_url(url, "The URL")
        settings = msgspec.structs.replace(configuration[StoreSettings], url=url)
        found = [finding async for finding in _look_over(settings)]
    if json:
        output.as_json(found)
    else:
        marks = {Severity.OK: "✓", Severity.WARNING: "!", Severity.PROBLEM: "✗"}
        output.table(
            ("", "check", "found", "what to do"),
            [(marks[finding.level], finding.check, finding.found, finding.advice) for finding in found],
        )
    problems = sum(finding.level is Severity.PROBLEM for finding in found)
    warnings = sum(finding.level is Severity.WARNING for finding in found)
    output.say(f"headgate: {output.counted(problems, 'problem')}, {output.counted(warnings, 'warning')}.")
    return 1 if problems else 0


def _url(configuration: Configuration) -> str:
    url = configuration[StoreSettings].url
    if url != EMBEDDED:
        return url
    if configuration[ClientSettings].url:
        return configuration[ClientSettings].url
    up = running_up.find(configuration[DataSettings].directory)
    if up is None:
        raise NoStore
    return up.store


def _gateway(configuration: Configuration, url: str) -> tuple[str, str]:
    """Give the gateway's URL and the token that commands would show there."""
    up, token = running_up.find_by_url(configuration[DataSettings].directory, url), configuration[ClientSettings].token
    return (up.gateway, token or up.token) if up is not None else (url, token)


async def _look_over(settings: StoreSettings) -> AsyncIterator[Finding]:
    address = parse_address(settings.url)
    for finding in store_checks.access(address):
        yield finding
    try:
        async with open_store(settings, any_store=True) as store:
            nodes = await store.facts()
            for node in nodes:
                for finding in store_checks.of_node(node, address.kind, volatile=settings.volatile):
                    yield finding
            for finding in store_checks.clocks(nodes):
                yield finding
            for check in (
                _processes,
                _topology,
                _latency,
                _scripts,
                data_checks.queues,
                data_checks.services,
                data_checks.locks,
                data_checks.upstreams,
            ):
                async for finding in check(store):
                    yield finding
    except HeadgateError as error:
        yield Finding(
            Severity.PROBLEM,
            "connection",
            error.detail,
            "Check the URL, that the server runs, and that this machine may reach it with this user and password.",
        )


async def _processes(store: Store) -> AsyncIterator[Finding]:
    """Look at the clocks of our own processes, as each reports its own in the registry."""
    registry = Registry(store, RegistrySettings())
    listings = [await registry.discover("default", type) for type in PROCESS_TYPES]
    processes = [each for found in listings for each in found.instances]
    for finding in store_checks.process_clocks(clock_offsets(processes), len(processes)):
        yield finding


async def _topology(store: Store) -> AsyncIterator[Finding]:
    primaries = await store.route.primaries()
    kind = store.address.kind
    if kind is not StoreKind.CLUSTER:
        yield Finding(Severity.OK, "topology", f"{kind}, primary {primaries[0].endpoint}")
        return
    try:
        reply = await primaries[0].send(("CLUSTER", "INFO"), store.deadline())
    except (ServerError, LinkLost) as error:
        yield Finding(
            Severity.OK, "topology", f"cluster with {len(primaries)} primaries; its state is not told ({error})"
        )
        return
    info = dict(
        line.split(":", 1) for line in bytes(reply if isinstance(reply, bytes) else b"").decode().split() if ":" in line
    )
    if info.get("cluster_state") == "ok":
        yield Finding(Severity.OK, "topology", f"cluster with {len(primaries)} primaries, all slots served")
    else:
        yield Finding(
            Severity.PROBLEM,
            "topology",
            f"the cluster's state is {info.get('cluster_state')}: {info.get('cluster_slots_ok')} of 16384 slots are served",
            "Bring back or replace the nodes that failed, then run `valkey-cli --cluster check`.",
        )


async def _latency(store: Store) -> AsyncIterator[Finding]:
    taken: list[float] = []
    for _ in range(_PINGS):
        started = perf_counter()
        await store.ping()
        taken.append((perf_counter() - started) * 1000)
    taken.sort()
    half, most = taken[len(taken) // 2], taken[int(len(taken) * 0.99)]
    words = f"{half:.1f} ms, 99 of 100 within {most:.1f} ms"
    if half > _SLOW_MS or most > _VERY_SLOW_MS:
        yield Finding(
            Severity.WARNING,
            "latency",
            words,
            "Put the store nearer, or look for slow commands there (`SLOWLOG GET`) and a busy disk.",
        )
    else:
        yield Finding(Severity.OK, "latency", words)


async def _scripts(store: Store) -> AsyncIterator[Finding]:
    scripts = [Script(path) for path in operations()]
    for link in await store.route.primaries():
        limit = asyncio.get_running_loop().time() + 10
        for script in scripts:
            try:
                await link.send(("SCRIPT", "LOAD", script.source), limit)
            except (ServerError, LinkLost) as error:
                yield Finding(
                    Severity.PROBLEM,
                    "scripts",
                    f"{link.endpoint} does not take {script.name}.lua: {error}",
                    RIGHTS,
                )
                return
    yield Finding(Severity.OK, "scripts", f"all {len(scripts)} are accepted")


def _print_rights(configuration: Configuration, *, as_json: bool) -> None:
    prefix = configuration[StoreSettings].prefix
    rights = {f"headgate-{process}": acl.rules(process, prefix) for process in acl.PACKAGES}
    if as_json:
        output.as_json(rights)
        return
    for user, rules in rights.items():
        output.line(f"user {user} on >PASSWORD {rules}")
    output.say("headgate: put your own passwords in. Sentinels have users of their own and need no rule of ours.")
