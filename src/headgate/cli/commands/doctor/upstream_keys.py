"""Finds keys of upstreams that no list names, for `headgate doctor`.

Only the relay creates keys on demand, some for each user, so only it could leave keys behind. They are found by a scan of
the key space, which only reads, goes in small steps and ends at a limit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Collection
from typing import Final, cast
from urllib.parse import unquote

from headgate.cli.commands.doctor.finding import Finding, Severity
from headgate.store import Index, Store, Thing
from headgate.store.client.link import LinkLost, ServerError
from headgate.store.keys import split_tag

_PART: Final = "upstream"
_CHECK: Final = "keys of upstreams"
_STEP: Final = 1000
_MOST_STEPS: Final = 1000
_MOST_FOUND: Final = 200_000
_UNLISTED = (
    "Write its policy again with `headgate relay upstream set`: no worker looks after one that the list does not name."
)
_LEFT = "They only take memory: delete them with `valkey-cli UNLINK`, and report it with `headgate doctor --json`."
_NAMED = 3


class UpstreamKeys:
    """The keys of all upstreams that a scan has found, and why it is incomplete, if it is."""

    def __init__(self) -> None:
        self.trouble = ""
        self.suffixes: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, tag: str, suffix: str) -> None:
        """Add a key."""
        self.suffixes[tag].add(suffix)

    def users(self, thing: Thing) -> Collection[str]:
        """Return the users of whom an upstream has keys."""
        return {unquote(suffix.partition("/")[2]) for suffix in self.suffixes.get(thing.tag, ()) if "/" in suffix}


async def find_keys(store: Store) -> UpstreamKeys:
    """Scan the key space of every primary for keys of upstreams."""
    keys = UpstreamKeys()
    start = f"{store.prefix}:{_PART}:{{"
    pattern = "".join(f"\\{sign}" if sign in "*?[]\\^" else sign for sign in start) + "*"
    found = 0
    for link in await store.route.primaries():
        cursor, steps = b"0", 0
        while steps == 0 or cursor != b"0":
            if steps >= _MOST_STEPS or found >= _MOST_FOUND:
                keys.trouble = f"only the first {found} were looked at"
                return keys
            try:
                reply = await link.send(("SCAN", cursor, "MATCH", pattern, "COUNT", _STEP), store.deadline())
            except (ServerError, LinkLost) as error:
                keys.trouble = f"not looked for: {error}"
                return keys
            cursor, page = cast("tuple[bytes, list[bytes]]", reply)
            steps += 1
            for key in page:
                tag, between, suffix = key.decode(errors="replace").removeprefix(start).partition("}:")
                if between:
                    found += 1
                    keys.add(tag, suffix)
    return keys


async def left_over(store: Store, keys: UpstreamKeys) -> AsyncIterator[Finding]:
    """Report keys whose upstream is not in the index: the index lost it, or the upstream was removed and they remain."""
    listed = {thing.tag for thing in await Index(store, _PART).list(None)}
    for tag in sorted(keys.suffixes.keys() - listed):
        thing = store.thing(_PART, *split_tag(tag))
        # It may have been created or deleted since the scan: then it is in the index now, or its keys are gone.
        _, left = await _look_again(store, thing, keys.suffixes[tag])
        if not left or thing in await Index(store, _PART).list(thing.namespace):
            continue
        served, left = await _look_again(store, thing, keys.suffixes[tag])
        if served:
            yield Finding(Severity.PROBLEM, _CHECK, f"{tag} is served and is not in the list of upstreams", _UNLISTED)
        elif left:
            named = ", ".join(sorted(left)[:_NAMED]) + (", …" if len(left) > _NAMED else "")
            yield Finding(
                Severity.WARNING, _CHECK, f"{len(left)} keys are left of {tag}, which is gone: {named}", _LEFT
            )
    if keys.trouble:
        yield Finding(Severity.OK, _CHECK, keys.trouble)


async def _look_again(store: Store, thing: Thing, suffixes: Collection[str]) -> tuple[bool, Collection[str]]:
    """Return whether an upstream is served, and which of its keys exist; the mark of a removed upstream stays for a day."""
    reply = await store.read(thing, "HMGET", thing.key("policy"), "version", "gone")
    version, gone = cast("list[bytes | None]", reply)
    keys = [thing.key(suffix) for suffix in suffixes if suffix != "policy" or not gone]
    left = [key for key in keys if await store.read(thing, "EXISTS", key) == 1]
    return version is not None and not gone, left
