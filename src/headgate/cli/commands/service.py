"""`headgate service …`: what is registered, and what an operator may do about it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Final, Self

from cyclopts import Parameter

from headgate.cli import output
from headgate.cli.options import Json
from headgate.cli.target import Url, target
from headgate.kit.children import signal_child
from headgate.kit.problems import HeadgateError, InvalidRequest, NotFound
from headgate.registry.model import Check, CheckKind, Instance, OverrideChange, Record
from headgate.registry.problems import UnknownInstance
from headgate.sdk import Headgate
from headgate.sdk.backends.registry import Gone, Listed, Put

NOT_EXECUTABLE, NOT_FOUND = 126, 127
RETRY_SECONDS: Final = 1.0
Namespace = Annotated[str, Parameter(name="--namespace", help="The service's namespace.")]


class NoSuchInstance(HeadgateError):
    """There is no such instance."""

    code = "no_such_instance"


async def list_services(*, namespace: Namespace = "default", url: Url = None, json: Json = False) -> None:
    """Show what is registered, with counts.

    Parameters
    ----------
    json
        Print JSON.
    """
    async with _client(url, namespace) as headgate:
        found = await headgate.registry.services()
    if json:
        output.as_json(found)
        return
    output.table(
        ("service", "instances", "available", "protection"),
        [
            (
                f"{each.type}/{each.group}",
                str(each.instances),
                str(each.healthy),
                f"{each.protection.suspects} suspects held" if each.protection.active else each.protection.mode,
            )
            for each in found
        ],
        empty="Nothing is registered.",
    )


async def show(
    service: str,
    *,
    healthy: bool | None = None,
    filter: Annotated[list[str] | None, Parameter(name="--filter", negative=())] = None,
    check: bool = False,
    namespace: Namespace = "default",
    url: Url = None,
    json: Json = False,
) -> None:
    """Show the instances of a service.

    Parameters
    ----------
    service
        TYPE, or TYPE/GROUP.
    healthy
        Only those that traffic may go to, or only those that it may not.
    filter
        Only those that pass, such as metadata.version==1.2; may be given several times.
    check
        Really ask each of them now, and show those that answer.
    json
        Print JSON.
    """
    type_, _, group = service.partition("/")
    async with _client(url, namespace) as headgate:
        found = await headgate.registry.discover(
            type_, group or None, healthy=healthy, filters=filter or [], check=check
        )
        narrowed = healthy is not None or bool(filter) or check
        if not found and not (narrowed and await headgate.registry.discover(type_, group or None)):
            raise NotFound(f"There is no instance of {service}; `headgate service list` shows what is registered.")
    if json:
        output.as_json(list(found))
        return
    output.table(
        ("instance", "group", "address", "state", "weight", "last heartbeat"),
        [_row(each) for each in found],
        empty=f"{service} has no such instances.",
    )


async def watch(
    service: str, *, namespace: Namespace = "default", position: str | None = None, url: Url = None, json: Json = False
) -> None:
    """Follow a service: what is there, then every change, until Ctrl-C.

    Parameters
    ----------
    service
        TYPE, or TYPE/GROUP.
    position
        Go on from where an earlier watch was.
    json
        Print one line of JSON for each change.
    """
    type_, _, group = service.partition("/")
    async with _client(url, namespace) as headgate:
        while True:
            try:
                async with aclosing(headgate.registry.watch(type_, group or None, position=position)) as events:
                    async for event in events:
                        match event:
                            case Listed():
                                for instance in event.instances:
                                    _print_change("present", instance.group, instance.instance_id, instance, json=json)
                            case Put():
                                instance = event.instance
                                _print_change("put", instance.group, instance.instance_id, instance, json=json)
                            case Gone():
                                _print_change(event.reason, event.group, event.instance_id, None, json=json)
                            case _:
                                position = event.position
            except HeadgateError as error:
                if error.status < 500:
                    raise
                output.say(f"headgate: {error.detail} Going on when it is back.")
            await asyncio.sleep(RETRY_SECONDS)


async def remove(service: str, instance: str, *, namespace: Namespace = "default", url: Url = None) -> None:
    """Take an instance out; if it still beats with its record, it comes back.

    Parameters
    ----------
    service
        TYPE/GROUP.
    instance
        The instance's id.
    """
    type_, group = _place(service)
    async with _client(url, namespace) as headgate:
        if not await _is_there(headgate, type_, group, instance):
            raise NoSuchInstance(_missing(service, instance))
        await headgate.registry.remove(instance, type_, group)
    output.say(f"headgate: {instance} is removed.")


async def drain(
    service: str, instance: str, *, undo: bool = False, namespace: Namespace = "default", url: Url = None
) -> None:
    """Send no more traffic to an instance, until this is undone.

    Parameters
    ----------
    service
        TYPE/GROUP.
    instance
        The instance's id.
    undo
        Send traffic again.
    """
    type_, group = _place(service)
    change = OverrideChange(drain=None if undo else True)
    async with _client(url, namespace) as headgate:
        try:
            await headgate.registry.override(type_, group, instance, change)
        except UnknownInstance as error:
            raise NoSuchInstance(_missing(service, instance)) from error
    output.say(f"headgate: {instance} {'takes traffic again' if undo else 'is draining'}.")


async def evict(
    service: str,
    instance: str,
    *,
    seconds: Annotated[float, Parameter(name="--for")] = 300.0,
    namespace: Namespace = "default",
    url: Url = None,
) -> None:
    """Take an instance out and refuse its registration for a time.

    Parameters
    ----------
    service
        TYPE/GROUP.
    instance
        The instance's id.
    seconds
        For how many seconds it may not come back.
    """
    type_, group = _place(service)
    async with _client(url, namespace) as headgate:
        there = await _is_there(headgate, type_, group, instance)
        await headgate.registry.evict(type_, group, instance, seconds)
    if there:
        output.say(f"headgate: {instance} is evicted for {seconds:g} s.")
    else:
        output.say(f"headgate: {_missing(service, instance)} Should it come, it is refused for {seconds:g} s.")


async def register(
    service: str,
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    port: int | None = None,
    host: str | None = None,
    protocol: str = "",
    metadata: Annotated[list[str] | None, Parameter(name="--metadata", negative=())] = None,
    check: CheckKind | None = None,
    ttl: float = 30.0,
    namespace: Namespace = "default",
    url: Url = None,
) -> int:
    """Run any program and keep it registered while it lives: `headgate service register TYPE/GROUP -- command …`.

    The program gets its instance id in HEADGATE_INSTANCE_ID. It is removed when the program ends, whatever its exit code,
    which becomes that of this command.

    Parameters
    ----------
    service
        TYPE, or TYPE/GROUP.
    command
        What to run, after `--`.
    port
        The port it serves at.
    host
        The address others reach it at; this machine's name if not given.
    protocol
        What it speaks: http, https, tcp, grpc, ws or wss.
    metadata
        A label, as KEY=VALUE; may be given several times.
    check
        Have workers check its health this way.
    ttl
        Seconds after which it is gone if this machine dies.
    """
    if not command:
        raise InvalidRequest("Say what to run: headgate service register TYPE/GROUP -- command …", field="command")
    type_, _, group = service.partition("/")
    record = Record(
        type=type_,
        group=group or "default",
        hostname=socket.gethostname(),
        private_ip=host or "",
        port=port,
        protocol=protocol,
        metadata=dict(_label(each) for each in metadata or []),
        ttl_seconds=ttl,
        check=Check(kind=check) if check else None,
    ).checked()
    headgate = _client(url, namespace)
    headgate.heartbeat_interval_ms = int(ttl * 1000 / 3)
    # Signals are handled before the registration: a signal that ended us would leave it behind.
    with _Signals() as signals:
        async with headgate, headgate.registry.registered(record):
            return await _run(command, record.instance_id, signals)


class _Signals:
    """Forwards signals to the program once it has started."""

    _NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self) -> None:
        self.early: signal.Signals | None = None
        self._process: Process | None = None

    def __enter__(self) -> Self:
        for number in self._NUMBERS:
            asyncio.get_running_loop().add_signal_handler(number, self._pass_on, number)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._NUMBERS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def pass_to(self, process: Process) -> None:
        """Forward signals to this process from now on, and the one that came before it started."""
        self._process = process
        if self.early is not None:
            self._pass_on(self.early)

    def _pass_on(self, number: signal.Signals) -> None:
        if self._process is None:
            self.early = number
        else:
            signal_child(self._process, number)


async def _run(command: tuple[str, ...], instance_id: str, signals: _Signals) -> int:
    """Run the program, forward signals, and return the exit code that a shell would."""
    if signals.early is not None:
        return 128 + signals.early
    try:
        process = await asyncio.create_subprocess_exec(
            *command, env={**os.environ, "HEADGATE_INSTANCE_ID": instance_id}
        )
    except FileNotFoundError:
        output.complain(f"{command[0]} was not found")
        return NOT_FOUND
    except OSError as error:
        output.complain(f"{command[0]} cannot be run: {error.strerror}")
        return NOT_EXECUTABLE
    signals.pass_to(process)
    try:
        code = await process.wait()
    finally:
        if process.returncode is None:
            signal_child(process, signal.SIGKILL)
            await process.wait()
    return 128 - code if code < 0 else code


def _client(url: str | None, namespace: str) -> Headgate:
    headgate = target(url)
    headgate.namespace = namespace
    return headgate


async def _is_there(headgate: Headgate, type_: str, group: str, instance: str) -> bool:
    found = await headgate.registry.discover(type_, group)
    # During an outage it is unknown; the next call reports the outage.
    return found.stale or any(each.instance_id == instance for each in found)


def _missing(service: str, instance: str) -> str:
    return f"There is no instance {instance} in {service}; `headgate service show {service}` lists them."


def _place(service: str) -> tuple[str, str]:
    type_, slash, group = service.partition("/")
    if not slash:
        raise InvalidRequest("Say which group: TYPE/GROUP.", field="service")
    return type_, group


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequest(f"{text!r} is not KEY=VALUE.", field="metadata")
    return key, value


def _print_change(kind: str, group: str, instance_id: str, instance: Instance | None, *, json: bool) -> None:
    if json:
        output.as_json({"kind": kind, "group": group, "instanceId": instance_id, "instance": instance})
    else:
        words = (instance.address, _state(instance)) if instance else ("", "gone")
        output.line("\t".join((kind, group, instance_id, *words)))


def _row(instance: Instance) -> tuple[str, ...]:
    address = f"{instance.address}:{instance.port}" if instance.port else instance.address
    return (
        instance.instance_id,
        instance.group,
        address,
        _state(instance),
        f"{instance.weight:g}",
        _ago(instance.last_heartbeat) if sys.stdout.isatty() else instance.last_heartbeat,
    )


def _ago(at: str) -> str:
    """Return how long ago a heartbeat came, by this machine's clock."""
    try:
        seconds = max((datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds(), 0)
    except (TypeError, ValueError):
        return at
    return f"{seconds:.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago"


def _state(instance: Instance) -> str:
    facts = {
        "draining": instance.draining,
        "disabled": not instance.enabled,
        "unhealthy": not instance.healthy,
        "suspect": instance.suspect,
    }
    return " ".join(word for word, holds in facts.items() if holds) or "up"
