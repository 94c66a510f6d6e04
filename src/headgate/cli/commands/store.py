"""`headgate store url`: the store's URL with its password, for programs that use the store themselves."""

from __future__ import annotations

from headgate.cli import output, running_up
from headgate.cli.processes.local_store import NoStore
from headgate.cli.settings import DataSettings, read_settings
from headgate.store import StoreSettings
from headgate.store.settings import EMBEDDED


def url() -> None:
    """Print the store's URL with its password: the one of the settings, else that of the `up` running here."""
    configuration = read_settings()
    named = configuration[StoreSettings].url
    if named != EMBEDDED:
        output.line(named)
        return
    up = running_up.find(configuration[DataSettings].directory)
    if up is None:
        raise NoStore(
            "No store is named and no `up` runs here; set HEADGATE_STORE, or run `headgate up` in this directory."
        )
    output.line(up.store)
