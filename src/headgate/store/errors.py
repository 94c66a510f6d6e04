"""Classifies the server's errors (retry, ask another node, give up) and turns them into our exceptions."""

from __future__ import annotations

from typing import Final

from headgate.kit.problems import BY_CODE, HeadgateError, StoreFull, StoreRefused, StoreUnavailable
from headgate.store.client.link import ServerError

# The server did not run the call; retry it later.
RETRY_LATER: Final = frozenset(
    {"TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "BUSY", "UNBLOCKED", "NOREPLICASTOWRITE"}
)
# The server did not run the call; ask another node.
OTHER_NODE: Final = frozenset({"READONLY"})
DENIED: Final = frozenset({"NOPERM", "DENIED"})
# The server did not run the call, for any reason.
NOT_RUN: Final = RETRY_LATER | OTHER_NODE | DENIED | {"ASK", "MOVED", "NOSCRIPT", "NOAUTH", "OOM", "MISCONF"}


class ScriptFailed(HeadgateError):
    """A script failed in the store; this is a defect of Headgate."""

    code, status = "script_failed", 500


def as_problem(error: ServerError) -> HeadgateError:
    """Turn the server's error into our exception: a script's refusal by its code, others by the table above."""
    kind = BY_CODE.get(error.code.lower())
    if kind is not None:
        return kind(error.words or None)
    # The server puts ERR before a refusal that has no words after its code.
    bare = BY_CODE.get(error.words.lower()) if error.code == "ERR" else None
    if bare is not None:
        return bare()
    if error.code == "ERR" and error.words.startswith("AUTH"):
        return StoreRefused("The store's URL gives a password, but none is set there; leave it out or set one there.")
    if error.code == "ERR" and "DB index" in error.words:
        return StoreRefused("The store has no database of the number that its URL ends in; most have 0 to 15.")
    if error.code == "NOAUTH":
        return StoreRefused("The store asks for a password; write it into the URL: valkey://:PASSWORD@host:port/0.")
    if error.code == "WRONGPASS":
        return StoreRefused(
            "The store refuses the user or the password in its URL; the form is valkey://USER:PASSWORD@host:port/0, "
            "or valkey://:PASSWORD@host:port/0 for the default user."
        )
    if error.code in DENIED:
        refused = StoreRefused("Run 'headgate doctor --acl': the store refuses our user or one of its rights.")
        return refused.because(str(error))
    if error.code == "OOM":
        return StoreFull(retry_after=5)
    if error.code == "MISCONF":  # it cannot write to its disk
        return StoreUnavailable("The store takes no writes.", retry_after=5).because(error.words)
    if error.code in RETRY_LATER | OTHER_NODE:
        return StoreUnavailable("The store is not ready.", retry_after=1).because(str(error))
    return ScriptFailed().because(str(error))
