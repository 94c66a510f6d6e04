"""What the server's error words mean for a caller: repeat, look elsewhere, give up, or one of our own refusals."""

from __future__ import annotations

from typing import Final

from headgate.kit.problems import BY_CODE, HeadgateError, StoreRefused, StoreUnavailable
from headgate.store.link import ServerError

# The server did not run the call and will take it soon.
LATER: Final = frozenset(
    {"TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "NOREPLICAS", "BUSY", "UNBLOCKED", "NOREPLICASTOWRITE"}
)
# The server did not run the call and another node must be asked.
ELSEWHERE: Final = frozenset({"READONLY"})
DENIED: Final = frozenset({"NOAUTH", "WRONGPASS", "NOPERM", "DENIED"})
FULL: Final = frozenset({"OOM", "MISCONF"})


class ScriptFailed(HeadgateError):
    """A script failed in the store; this is a defect of Headgate."""

    code, status = "script_failed", 500


def as_problem(error: ServerError) -> HeadgateError:
    """Turn the server's error into ours: a script's refusal by its code, or what the server's own word means."""
    kind = BY_CODE.get(error.code.lower())
    if kind is not None:
        return kind(error.words or None)
    # The server puts ERR before a refusal that is its code alone.
    bare = BY_CODE.get(error.words.lower()) if error.code == "ERR" else None
    if bare is not None:
        return bare()
    if error.code == "ERR" and error.words.startswith("AUTH"):
        return StoreRefused("The store's URL gives a password, but none is set there; leave it out or set one there.")
    if error.code in DENIED:
        return StoreRefused(f"The store refuses our user or one of its rights: {error}. Run 'headgate doctor --acl'.")
    if error.code in FULL:
        return StoreUnavailable(f"The store takes no writes: {error.words}", retry_after=5)
    if error.code in LATER | ELSEWHERE:
        return StoreUnavailable(f"The store is not ready: {error.words}", retry_after=1)
    return ScriptFailed(str(error))
