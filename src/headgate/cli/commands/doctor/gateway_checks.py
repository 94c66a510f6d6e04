"""Checks a gateway for `headgate doctor`: whether it answers, its version and store, and the role of our token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import urlsplit

import msgspec

from headgate import __version__
from headgate.cli.commands.doctor.finding import LOOPBACK, Finding, Severity
from headgate.cli.commands.doctor.store_checks import process_clocks
from headgate.cli.error_advice import next_step
from headgate.cli.processes.registration import PROCESS_TYPES, clock_offsets
from headgate.gateway.api import SystemFacts
from headgate.kit.problems import HeadgateError, Unauthorized
from headgate.registry.model import Instance, Listing
from headgate.sdk.http import Http

TOKEN_STEP: Final = next_step(Unauthorized())


class _Info(msgspec.Struct, frozen=True):
    title: str
    version: str


class _Document(msgspec.Struct, frozen=True):
    info: _Info


class _Caller(msgspec.Struct, frozen=True):
    name: str
    role: str
    namespace: str | None = None


async def of_gateway(url: str, token: str) -> AsyncIterator[Finding]:
    """Check a gateway from the outside, with the token that commands would use there."""
    split = urlsplit(url)
    if split.scheme == "http" and not (split.hostname or "").startswith(LOOPBACK):
        yield Finding(
            Severity.WARNING,
            "TLS",
            f"{split.netloc.rpartition('@')[2]} is reached without TLS",
            "Use https:// unless the network between is yours alone: the token can be read on the way.",
        )
    async with Http(url, token or None) as http:
        try:
            document = await http.request("GET", "/openapi.json", answer=_Document)
        except HeadgateError as error:
            advice = "Check that a gateway runs there and that this machine may reach it; its own log says more."
            yield Finding(Severity.PROBLEM, "connection", error.detail, advice)
            return
        yield Finding(Severity.OK, "connection", f"{http.url} answers")
        yield _version(document.info)
        async for finding in _token(http, given=bool(token)):
            yield finding


def _version(info: _Info) -> Finding:
    if info.version == __version__:
        return Finding(Severity.OK, "version", f"{info.title} {info.version}")
    found = f"{info.title} {info.version} there, {__version__} here"
    return Finding(Severity.WARNING, "version", found, "Install the same version on both sides.")


async def _token(http: Http, *, given: bool) -> AsyncIterator[Finding]:
    if not given:
        yield Finding(Severity.PROBLEM, "token", "there is none", TOKEN_STEP)
        return
    try:
        caller = await http.request("GET", "/console/session", answer=_Caller)
        limited = f", in the namespace {caller.namespace} alone" if caller.namespace else ""
        yield Finding(Severity.OK, "token", f"{caller.name}, with the role {caller.role}{limited}")
    except Unauthorized as error:
        yield Finding(Severity.PROBLEM, "token", error.detail, TOKEN_STEP)
        return
    except HeadgateError as error:
        yield Finding(Severity.WARNING, "token", error.detail, "Try again when the store is well.")
    try:
        facts = await http.request("GET", "/api/system", answer=SystemFacts)
    except HeadgateError as error:
        yield Finding(
            Severity.PROBLEM, "store", error.detail, "Run `headgate doctor --store URL` where the gateway runs."
        )
        return
    async for finding in _clocks(http):
        yield finding
    if facts.store.healthy:
        yield Finding(Severity.OK, "store", f"{facts.store.kind}, {', '.join(facts.store.servers)}")
    else:
        advice = "Run `headgate doctor --store URL` where the gateway runs."
        yield Finding(Severity.PROBLEM, "store", "it does not answer the gateway", advice)


async def _clocks(http: Http) -> AsyncIterator[Finding]:
    """Check the clocks of the processes that are registered there."""
    processes: list[Instance] = []
    try:
        for type in PROCESS_TYPES:
            found = await http.request("GET", "/sd/v1/instances", query={"type": type}, answer=Listing)
            processes += found.instances
    except HeadgateError:
        return  # a token of another namespace, or a relay, which does not serve the registry
    for finding in process_clocks(clock_offsets(processes), len(processes)):
        yield finding
