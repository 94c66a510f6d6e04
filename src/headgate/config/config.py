"""Config: publishes, reads and rolls back values; one linear history per namespace, with author and reason."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Mapping, Sequence
from time import time
from typing import Any, Final, cast

import msgspec

from headgate.config import metrics
from headgate.config.model import (
    ConfigEntry,
    ContentType,
    Draft,
    Published,
    Update,
    Value,
    check_key,
    check_new_key,
    parse,
)
from headgate.config.problems import ContentInvalid, NamespaceFull, UnknownKey, UnknownVersion
from headgate.config.settings import ConfigSettings
from headgate.kit.ids import display_text, new_ulid, thing_name
from headgate.kit.logs import get_logger
from headgate.kit.problems import InvalidRequest, TooLarge, VersionConflict
from headgate.kit.validation import explain
from headgate.store import Arg, Store, Thing, script
from headgate.store.watch.feed import Feed, FeedChange, Snapshot

PUBLISH = script(__package__, "publish")
DELETE = script(__package__, "delete")
READ = script(__package__, "read")
VERSIONS = script(__package__, "versions")

MOST_AT_ONCE: Final = 100
PAGE: Final = 50
# A large YAML takes a second to parse, so it is parsed in a thread.
MOST_INLINE_BYTES: Final = 8192
SLOW_TO_PARSE: Final = frozenset({ContentType.YAML, ContentType.TOML, ContentType.PROPERTIES})

log = get_logger()
_entries = msgspec.json.Decoder(ConfigEntry)
_updates = msgspec.json.Decoder(list[ConfigEntry])
Definitions = Mapping[str, type[Any]]


class NamespaceState(msgspec.Struct, frozen=True):
    """The values of a namespace at one moment."""

    values: list[Value]
    revision: int
    epoch: str


class Config:
    """All namespaces of a store; `definitions` gives the required type of each key of a namespace."""

    def __init__(
        self, store: Store, settings: ConfigSettings | None = None, definitions: Mapping[str, Definitions] | None = None
    ) -> None:
        self.store = store
        self.settings = settings or ConfigSettings()
        self.definitions = definitions or {}
        self.feed: Feed[Value] = Feed(store, self._snapshot, open_watches=metrics.WATCHERS, lag=metrics.WATCH_LAG)

    def space(self, namespace: str) -> Thing:
        """Give the address of a namespace in the store."""
        return self.store.thing("config", thing_name(namespace, "namespace"), "values")

    async def get(self, namespace: str, key: str) -> Value:
        """Give a key's newest version; raises UnknownKey."""
        return value_of(await self.entry(namespace, check_key(key)))

    async def entry(self, namespace: str, key: str) -> bytes:
        """Give the newest version of a validated key in its stored form; raises UnknownKey."""
        metrics.READS.inc()
        thing = self.space(namespace)
        found = cast("bytes | None", await self.store.read(thing, "HGET", thing.key("values"), key))
        if found is None:
            raise UnknownKey(f"There is no key {key} in {namespace}.")
        return found

    async def read(self, namespace: str, keys: Sequence[str] = ()) -> NamespaceState:
        """Give the named keys that exist, or all keys, at one moment."""
        metrics.READS.inc()
        return await self._state(self.space(namespace), keys)

    async def publish(
        self, namespace: str, drafts: Sequence[Draft], *, author: str, reason: str = ""
    ) -> dict[str, Published]:
        """Publish new versions, all or none; raises VersionConflict with the current version."""
        if not 1 <= len(drafts) <= MOST_AT_ONCE:
            raise InvalidRequest(f"Publish 1 to {MOST_AT_ONCE} keys at once.", field="values")
        if len({draft.key for draft in drafts}) < len(drafts):
            raise InvalidRequest("A key is named twice.", field="values")
        if reason:
            display_text(reason, "reason", 500)
        for draft in drafts:
            if draft.content is None:
                check_key(draft.key)
            else:
                check_new_key(draft.key)
        items: list[Arg] = []
        for draft in await self._with_content_types(namespace, drafts):
            expected = "" if draft.expected is None else draft.expected
            items += [draft.key, expected, *await self._item(namespace, draft)]
        settings = self.settings
        arguments = (
            settings.history, settings.history_bytes, settings.most_keys, settings.kept_versions,
            int(settings.kept_days * 86_400_000), new_ulid(), settings.namespace_bytes,
            _fields(author=author, reason=reason),
        )  # fmt: skip
        operation = DELETE if all(draft.content is None for draft in drafts) else PUBLISH
        reply = cast("list[bytes]", await self.store.run(operation, self.space(namespace), *arguments, *items))
        outcome = reply[0].decode()
        metrics.PUBLISHES.labels(outcome).inc()
        if outcome == "full":
            raise NamespaceFull(
                f"A namespace may have {settings.most_keys} keys."
                if reply[1] == b"keys"
                else f"All values of a namespace together may have {settings.namespace_bytes} bytes."
            )
        if outcome == "conflict":
            key, version = reply[1].decode(), int(reply[2])
            there = f"is at version {version}" if version else "does not exist"
            raise VersionConflict(f"{key} {there}; read it again and repeat your change.", key=key, version=version)
        revision = int(reply[1])
        log.info("config published", namespace=namespace, keys=[draft.key for draft in drafts], author=author)
        return {
            key.decode(): Published(int(version), revision)
            for key, version in zip(reply[2::2], reply[3::2], strict=True)
        }

    async def history(
        self, namespace: str, key: str, *, before: int = 0, most: int = PAGE, clear: bool = True
    ) -> list[Value]:
        """List a key's versions, newest first, with diffs; secrets are masked unless `clear`."""
        reply = await self.store.run(VERSIONS, self.space(namespace), check_key(key), before, most + 1)
        entries = [_entries.decode(each) for each in cast("list[bytes]", reply)]
        if not entries and not before:
            raise UnknownKey(f"There is no key {key} in {namespace}.")
        found = []
        for index, entry in enumerate(entries[:most]):
            older = entries[index + 1] if index + 1 < len(entries) else None
            value = entry.value() if clear else entry.value().masked()
            # The diff contains the older version too, which may have been secret.
            shown = clear or not (entry.secret or (older is not None and older.secret))
            found.append(msgspec.structs.replace(value, diff=_diff(older, entry) if shown else None))
        return found

    async def version(self, namespace: str, key: str, version: int) -> Value:
        """Give one version of a key; raises UnknownVersion."""
        reply = await self.store.run(VERSIONS, self.space(namespace), check_key(key), version + 1, 1)
        entries = [_entries.decode(each) for each in cast("list[bytes]", reply)]
        if not entries or entries[0].version != version:
            raise UnknownVersion(await self._missing(namespace, key, version))
        return entries[0].value()

    async def roll_back(
        self, namespace: str, key: str, version: int, *, author: str, reason: str = "", expected: int | None = None
    ) -> Published:
        """Publish an old version's content as a new version."""
        old = await self.version(namespace, key, version)
        content = old.content if old.kind == "put" else None
        draft = Draft(
            key, content, old.content_type, expected, old.secret or None
        )  # a key that is secret now stays secret
        words = reason or f"back to version {version}"
        return (await self.publish(namespace, [draft], author=author, reason=words))[key]

    async def _missing(self, namespace: str, key: str, version: int) -> str:
        """Explain why there is no such version: it was never made, or was trimmed."""
        newest = cast("list[bytes]", await self.store.run(VERSIONS, self.space(namespace), key, 0, 1))
        if not newest:
            return f"There is no key {key} in {namespace}."
        last = _entries.decode(newest[0]).version
        if version > last:
            return f"There is no version {version} of {key} yet; the newest is {last}."
        return f"Version {version} of {key} is not kept."

    async def _with_content_types(self, namespace: str, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """Fill in missing content types: the key's current one; for a new key text, or JSON if it has a definition."""
        untyped = [draft.key for draft in drafts if draft.content is not None and draft.content_type is None]
        if not untyped:
            return drafts
        types = {value.key: value.content_type for value in (await self._state(self.space(namespace), untyped)).values}
        usual = ContentType.JSON if namespace in self.definitions else ContentType.TEXT
        return [
            msgspec.structs.replace(draft, content_type=draft.content_type or types.get(draft.key, usual))
            for draft in drafts
        ]

    async def _item(self, namespace: str, draft: Draft) -> tuple[str, str]:
        if draft.content is None or draft.content_type is None:
            return "removed", ""
        size = len(draft.content.encode(errors="surrogatepass"))
        if size > self.settings.most_bytes:
            raise TooLarge(f"{draft.key} has {size} bytes; {self.settings.most_bytes} is the most.")
        if size > MOST_INLINE_BYTES and draft.content_type in SLOW_TO_PARSE:
            parsed = await asyncio.to_thread(parse, draft.content, draft.content_type)
        else:
            parsed = parse(draft.content, draft.content_type)
        secret = self._check_definition(namespace, draft, parsed) or draft.secret
        try:
            fields = _fields(content=draft.content, type=draft.content_type.value)
            if secret is not None:
                fields += _fields(secret=secret)
        except UnicodeEncodeError as error:
            raise ContentInvalid("The content is not Unicode text.", line=1, column=1) from error
        return "put", fields

    def _check_definition(self, namespace: str, draft: Draft, parsed: object) -> bool:
        """Refuse content that does not match its definition; return whether the definition makes it secret."""
        definitions = self.definitions.get(namespace)
        if definitions is None:
            return False
        kind = definitions.get(draft.key)
        if kind is None:
            known = ", ".join(sorted(definitions))
            raise InvalidRequest(f"{namespace} has no setting {draft.key}; it has {known}.", field="key")
        try:
            msgspec.convert(parsed, kind)
        except msgspec.ValidationError as error:
            raise ContentInvalid(f"{draft.key}: {explain(error, kind)[0]}", line=1, column=1) from error
        return bool(getattr(kind, "SECRET", False))

    async def _state(self, thing: Thing, keys: Sequence[str]) -> NamespaceState:
        for _ in range(3):
            reply = cast("list[bytes]", await self.store.run(READ, thing, *keys))
            if reply[0] != b"uncertain":
                break
            await self.feed.settle(thing)
        return NamespaceState([_entries.decode(each).value() for each in reply[3:]], int(reply[2]), reply[1].decode())

    async def _snapshot(self, thing: Thing) -> Snapshot[Value]:
        state = await self._state(thing, ())
        return Snapshot(state.values, state.revision, state.epoch)


def value_of(entry: bytes) -> Value:
    """Decode a stored version."""
    return _entries.decode(entry).value()


def decode_update(change: FeedChange) -> Update:
    """Decode the publish in a change event."""
    metrics.PUSH_SECONDS.observe(max(0.0, time() - change.revision / 1_000_000))
    return Update(change.revision, [entry.value() for entry in _updates.decode(change.value)])


def content_type_of(text: str | None) -> ContentType | None:
    """Parse a content type: json, or application/json; None stays None."""
    if text is None:
        return None
    word = text.partition(";")[0].strip().lower().rpartition("/")[2].removeprefix("x-").removeprefix("java-")
    word = {"plain": "text", "yml": "yaml"}.get(word, word)
    try:
        return ContentType(word)
    except ValueError as error:
        raise InvalidRequest(f"{text!r} is none of text, json, toml, yaml, properties.", field="contentType") from error


def _fields(**values: object) -> str:
    """Encode JSON fields to be appended to an object."""
    return "," + msgspec.json.encode(values).decode()[1:-1]


def _diff(old: ConfigEntry | None, new: ConfigEntry) -> str:
    before, after = (old.content if old else ""), new.content
    return "\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2))
