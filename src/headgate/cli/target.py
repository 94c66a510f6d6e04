"""Opens the client of a command: for `--url`, else `HEADGATE_URL`, else the `up` running in this directory."""

from __future__ import annotations

from typing import Annotated, Final

from cyclopts import Parameter

from headgate.cli import running_up
from headgate.cli.settings import ClientSettings, DataSettings, read_settings
from headgate.kit import logs
from headgate.kit.logs import Level, LogSettings
from headgate.kit.problems import HeadgateError, InvalidRequest
from headgate.kit.settings import DEFAULT
from headgate.sdk import Headgate
from headgate.store import StoreSettings

Url = Annotated[str | None, Parameter(name="--url", help="A gateway's or a store's URL; else the `up` running here.")]
STORES: Final = frozenset({"valkey", "valkeys", "redis", "rediss"})


class NoTarget(HeadgateError):
    """Nothing says which Headgate is meant; give --url or HEADGATE_URL, or run `headgate up` in this directory."""

    code = "no_target"


def check_url(url: str, said: str) -> None:
    """Refuse a URL that is neither a gateway's nor a store's; the message omits it, since it may contain a password."""
    scheme, there, _ = url.partition("://")
    if not there or not (scheme in {"http", "https"} or scheme.partition("+")[0] in STORES):
        raise InvalidRequest(
            f"{said} must begin with http:// or https:// (a gateway), or with valkey://, valkeys:// (TLS), "
            "valkey+sentinel:// or valkey+cluster:// (a store).",
            field="url",
        )


def target(url: str | None, level: Level = Level.WARNING) -> Headgate:
    """Return the client for this command, not yet open; the token comes from HEADGATE_TOKEN or from `up`.

    Log lines below this level are not shown, unless the settings name another level.
    """
    configuration = read_settings(client__url=("--url", url))
    said = configuration.origin("log.level") != DEFAULT
    logs.configure(configuration[LogSettings] if said else LogSettings(level=level), "cli")
    settings, prefix = configuration[ClientSettings], configuration[StoreSettings].prefix
    if settings.url:
        check_url(settings.url, configuration.origin("client.url"))
        named = running_up.find_by_url(configuration[DataSettings].directory, settings.url)
        if named is not None:
            return Headgate(named.gateway, token=settings.token or named.token, prefix=prefix)
        return Headgate(settings.url, token=settings.token or None, prefix=prefix, needs_store=True)
    up = running_up.find(configuration[DataSettings].directory)
    if up is None:
        raise NoTarget
    return Headgate(up.gateway, token=settings.token or up.token, prefix=prefix)
