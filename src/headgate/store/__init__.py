"""The only code that talks to Valkey: connections, keys, scripts, batches, hints and indexes."""

from headgate.store.batch import Batch, BatchedCall
from headgate.store.client.link import Arg, Reply, ServerError
from headgate.store.client.pending import PendingReply
from headgate.store.facts import clock_words
from headgate.store.index import CHANGES_KEPT_SECONDS, Changes, Claim, Index
from headgate.store.keys import Thing
from headgate.store.scripts.script import Script, script
from headgate.store.settings import StoreSettings
from headgate.store.store import Store, open_store

__all__ = [
    "CHANGES_KEPT_SECONDS",
    "Arg",
    "Batch",
    "BatchedCall",
    "Changes",
    "Claim",
    "Index",
    "PendingReply",
    "Reply",
    "Script",
    "ServerError",
    "Store",
    "StoreSettings",
    "Thing",
    "clock_words",
    "open_store",
    "script",
]
