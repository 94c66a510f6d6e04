"""`headgate doctor`: checks a store or a gateway, and gives advice on each finding."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from cyclopts import Parameter

from headgate.cli import output, running_up
from headgate.cli.commands.doctor import data_checks, store_checks
from headgate.cli.commands.doctor.finding import Finding, Severity
from headgate.cli.commands.doctor.gateway_checks import of_gateway
from headgate.cli.options import Json
from headgate.cli.processes.local_store import NoStore
from headgate.cli.settings import ClientSettings, DataSettings, read_settings
from headgate.cli.target import check_url
from headgate.kit.problems import HeadgateError
from headgate.kit.settings import Configuration
from headgate.store import StoreSettings, acl, open_store
from headgate.store.client.address import parse_address
from headgate.store.settings import EMBEDDED

GATEWAY = ("http://", "https://")


async def doctor(
    *,
    store: Annotated[str | None, Parameter(name=["--store", "--url"])] = None,
    acl: Annotated[bool, Parameter(negative=())] = False,
    json: Json = False,
) -> int:
    """Check the store: version, persistence, memory policy, clocks, latency, scripts, topology, replication, and invariants.

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
        found = [finding async for finding in _check_store(settings)]
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
    """Return the gateway's URL and the token that commands would use there."""
    up, token = running_up.find_by_url(configuration[DataSettings].directory, url), configuration[ClientSettings].token
    return (up.gateway, token or up.token) if up is not None else (url, token)


async def _check_store(settings: StoreSettings) -> AsyncIterator[Finding]:
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
                store_checks.processes,
                store_checks.topology,
                store_checks.latency,
                store_checks.scripts,
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


def _print_rights(configuration: Configuration, *, as_json: bool) -> None:
    prefix = configuration[StoreSettings].prefix
    rights = {f"headgate-{process}": acl.rules(process, prefix) for process in acl.PACKAGES}
    if as_json:
        output.as_json(rights)
        return
    for user, rules in rights.items():
        output.line(f"user {user} on >PASSWORD {rules}")
    output.say("headgate: put your own passwords in. Sentinels have users of their own and need no rule of ours.")
