"""The only code that speaks Valkey: connections, keys, scripts, group commit, hints and indexes."""

from headgate.store.awaited import Awaited
from headgate.store.batch import Batch, Seat
from headgate.store.index import Claim, Index
from headgate.store.keys import Thing
from headgate.store.link import Arg, Reply, ServerError
from headgate.store.script import Script, script
from headgate.store.settings import StoreSettings
from headgate.store.store import Store, open_store

__all__ = [
    "Arg",
    "Awaited",
    "Batch",
    "Claim",
    "Index",
    "Reply",
    "Script",
    "Seat",
    "ServerError",
    "Store",
    "StoreSettings",
    "Thing",
    "open_store",
    "script",
]
