"""`headgate up`: runs all processes on this machine, with the data in a local directory."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from headgate.cli import output
from headgate.cli.options import Json
from headgate.cli.processes.local_store import local_store
from headgate.cli.processes.ports import refuse_taken
from headgate.cli.running_up import RunningUp, forget, remember, without_password
from headgate.cli.settings import DataSettings, read_settings
from headgate.cli.trial.children import Child, SupervisedChild, run_all, wait_until_ready
from headgate.cli.trial.log_lines import show
from headgate.gateway.settings import GatewaySettings, check_admin_token
from headgate.kit import logs
from headgate.kit.life import Life
from headgate.kit.logs import LogSettings
from headgate.kit.ports import free_port
from headgate.kit.problems import HeadgateError
from headgate.kit.settings import DEFAULT, Configuration, Settings, spellings
from headgate.kit.tasks import Tasks
from headgate.store import StoreSettings
from headgate.store.embedded import DirectoryUnusable
from headgate.waiting_room.signing import SigningKeys


class UpPlan(msgspec.Struct, frozen=True):
    """The resolved settings of one `up`."""

    host: str
    port: int
    directory: Path
    token: str
    demo: bool
    elsewhere: bool = False


def children(plan: UpPlan) -> list[Child]:
    """List the processes that `up` runs, in the order in which they are started."""
    demo = ("--demo",) if plan.demo else ()
    at = f"http://{plan.host}"
    shop = Child(
        "shop",
        ("serve", "shop"),
        plan.port + 3,
        f"{at}:{plan.port + 3}",
        environment={"HEADGATE_URL": f"{at}:{plan.port}", "HEADGATE_TOKEN": plan.token},
    )
    return [
        Child("gateway", ("serve", "gateway"), plan.port, f"{at}:{plan.port}"),
        Child("worker", ("serve", "worker")),
        Child(
            "arena",
            ("serve", "arena", *demo),
            plan.port + 1,
            f"ws://{plan.host}:{plan.port + 1}/gameserver",
            environment={"HEADGATE_ARENA_HOST": plan.host, "HEADGATE_ARENA_DRAIN_SECONDS": "1"},
        ),
        Child(
            "relay",
            ("serve", "relay", *demo),
            plan.port + 2,
            f"{at}:{plan.port + 2}",
            environment={"HEADGATE_RELAY_DRAIN_SECONDS": "1"},
        ),
        *([shop] if plan.demo else []),
    ]


async def up(
    *,
    port: int | None = None,
    data: Path | None = None,
    demo: Annotated[bool, Parameter(negative="--no-demo")] = True,
    json: Json = False,
) -> int:
    """Start everything here: an embedded Valkey, a gateway, a worker, and something to look at.

    Parameters
    ----------
    port
        Port of the gateway (8080 unless set); the next three are for the other listeners.
    data
        Directory of the data, the admin token and the signing keys (.headgate unless set).
    demo
        Also run the demonstration.
    json
        When all is ready, print one line of JSON with the addresses, the token and the store's password.
    """
    configuration = read_settings(gateway__port=("--port", port), data__directory=("--data", data))
    logs.configure(configuration[LogSettings], "up")
    logs.hide(*configuration.secrets())
    plan = _plan(configuration, demo=demo)
    planned = children(plan)
    for child in planned:
        if child.port is not None:
            refuse_taken(plan.host, child.port, "--port")
    async with Life() as life, local_store(configuration, life.end, share=False) as store_url:
        environment = children_environment(configuration, plan, store_url)
        running = [SupervisedChild(child, environment, show) for child in planned]
        urls = {child.name: child.url for child in planned}
        addresses = RunningUp(
            gateway=urls["gateway"],
            arena=urls.get("arena"),
            relay=urls.get("relay"),
            console=f"{urls['gateway']}/console",
            token=plan.token,
            store=store_url,
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_announce(running, addresses, plan, life, as_json=json))
                await run_all(running, life.quiet)
                life.end()
        except* HeadgateError as errors:
            raise _first(errors) from None
        finally:
            forget(plan.directory)
    output.say("headgate: everything has stopped; the data is kept.")
    return 0


async def _announce(
    running: list[SupervisedChild], addresses: RunningUp, plan: UpPlan, life: Life, *, as_json: bool
) -> None:
    """Print the addresses once all children are ready."""
    async with Tasks() as tasks:
        ready = tasks.start(wait_until_ready(running))
        await asyncio.wait((ready, tasks.start(life.quiet.wait())), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            return
        await ready
    remember(plan.directory, addresses)
    if plan.elsewhere:
        here = shlex.quote(str(plan.directory.absolute()))
        output.say(
            f"headgate: commands find this with HEADGATE_DATA_DIRECTORY={here} in their environment, or with "
            f"--url {addresses.gateway} and HEADGATE_TOKEN."
        )
    if as_json:
        output.as_json(addresses)
        return
    output.table(
        ("what", "where"),
        [
            *((each.child.name, each.child.url) for each in running if each.child.url),
            ("console", addresses.console),
            ("API documentation", f"{addresses.gateway}/docs"),
            *((f"{each.child.name} probes", f"http://127.0.0.1:{each.child.ops_port}/readyz") for each in running),
            ("store", without_password(addresses.store)),
            ("admin token", addresses.token),
            ("kept in", str(plan.directory)),
        ],
    )
    output.say("headgate: everything is ready. Ctrl-C stops it.")


def _plan(configuration: Configuration, *, demo: bool) -> UpPlan:
    directory = configuration[DataSettings].directory
    gateway = configuration[GatewaySettings]
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        token = gateway.admin_token or _kept(directory / "token", lambda: f"hg_{secrets.token_urlsafe(32)}")
        if not gateway.signing_keys:
            _kept(directory / "signing-keys.json", SigningKeys.generate)
    except OSError as error:
        raise DirectoryUnusable(
            f"{directory} cannot be used for data ({error.strerror}); choose another directory with --data."
        ) from error
    check_admin_token(token)
    logs.hide(token)
    return UpPlan(
        host=gateway.host,
        port=gateway.port or free_port(),
        directory=directory,
        token=token,
        demo=demo,
        # The next command sees the environment and the default, but not this flag.
        elsewhere=configuration.origin("data.directory") == "--data" and directory != DataSettings().directory,
    )


def children_environment(configuration: Configuration, plan: UpPlan, store_url: str) -> dict[str, str]:
    """Give the environment of the children: our own, with the settings that `up` overrides."""
    overrides: dict[tuple[type[Settings], str], str] = {
        (StoreSettings, "url"): store_url,
        (GatewaySettings, "host"): plan.host,
        (GatewaySettings, "quiet_seconds"): "0",
        (GatewaySettings, "stop_seconds"): "2",
    }
    if configuration.origin("gateway.trusted_proxies") == DEFAULT:
        overrides[GatewaySettings, "trusted_proxies"] = "127.0.0.1,::1"
    if configuration.origin("log.format") == DEFAULT:
        overrides[LogSettings, "format"] = "json"
    environment = dict(os.environ)
    for (kind, name), value in overrides.items():
        for spelling in spellings(kind, name):
            environment.pop(spelling, None)
        environment[spellings(kind, name)[-1]] = value
    for name, file in (("admin_token", "token"), ("signing_keys", "signing-keys.json")):
        if configuration.origin(f"gateway.{name}") == DEFAULT:
            environment[f"HEADGATE_{name.upper()}_FILE"] = str((plan.directory / file).absolute())
    return environment


def _kept(file: Path, make: Callable[[], str]) -> str:
    """Read a secret from a file with mode 0600, which the first start creates."""
    if not file.exists():
        with (
            suppress(FileExistsError),
            os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new,
        ):
            new.write(f"{make()}\n")
    return file.read_text().strip()


def _first(errors: ExceptionGroup[HeadgateError]) -> HeadgateError:
    """Give the first error of a group; the others are its consequences."""
    error: Exception = errors
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, HeadgateError)
    return error
