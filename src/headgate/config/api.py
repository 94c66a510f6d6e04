"""HTTP routes of config."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from headgate.config import wire
from headgate.config.config import Config, content_type_of, value_of
from headgate.config.live_settings import definitions_of
from headgate.config.model import ANY_VERSION, VERBS, Draft, Published, Value, check_key
from headgate.config.problems import ContentInvalid, NamespaceFull, UnknownKey, UnknownVersion
from headgate.config.watch import events
from headgate.http.conditional import expected_version, holds
from headgate.http.paging import PageQuery, page_of
from headgate.http.routes import Access, Answer, Call, Operation, Stream
from headgate.kit.ids import revision_number
from headgate.kit.problems import Forbidden, NotFound, TooLarge, VersionConflict

TAG: Final = "config"
MOST_BODY: Final = 1_310_720
MOST_BATCH_BODY: Final = 8_388_608
KEPT: Final = 1024
MOST_KEPT: Final = 16_384


def operations(config: Config) -> list[Operation]:
    """List the routes of config."""
    api = ConfigRoutes(config)
    space, one = "/cfg/v1/{namespace}", "/cfg/v1/{namespace}/{key:path}"
    expecting = {
        "If-Match": 'The version that must be the newest, such as `"3"`, or `*` for any; else 412 with the one that is.'
    }
    writes = (VersionConflict, ContentInvalid, TooLarge, NamespaceFull)
    return [
        Operation(
            "GET", space, api.list_values, "List a namespace's values", name="config_list", access=Access.READ, tag=TAG,
            query=PageQuery, answer=wire.Values, namespaced=True,
        ),
        Operation(
            "POST", space, api.publish_batch, "Publish several keys, all or none", name="config_publish",
            access=Access.SERVICE, tag=TAG, body=wire.ConfigBatchRequest, body_limit=MOST_BATCH_BODY,
            answer=wire.ConfigBatchAnswer, errors=writes, namespaced=True,
        ),
        Operation(
            "GET", f"{space}/watch", api.watch, "Watch a namespace", name="config_watch", access=Access.READ, tag=TAG,
            query=wire.ConfigWatchQuery, content_type="text/event-stream", namespaced=True,
            headers={"Last-Event-ID": "The revision to go on from, as an event's id gave it; before `revision`."},
        ),
        Operation(
            "GET", one, api.get, "Read a value", name="config_get",
            access=Access.READ, tag=TAG, query=wire.GetQuery, answer=Value, errors=(UnknownKey, UnknownVersion),
            namespaced=True, other_statuses=(304,),
            headers={"If-None-Match": "The version you have: 304 if it is the newest."},
        ),
        Operation(
            "GET", f"{space}/{{key}}/history", api.history,
            "List a key's versions, newest first, each with its difference", name="config_history", access=Access.READ, tag=TAG, query=wire.VersionsQuery, answer=wire.Versions,
            errors=(UnknownKey,), namespaced=True,
        ),
        Operation(
            "POST", f"{space}/{{key}}/rollback", api.roll_back, "Publish an old version's content as a new version",
            name="config_rollback", access=Access.SERVICE, tag=TAG, body=wire.RollbackRequest, answer=Published,
            errors=(UnknownVersion, VersionConflict), namespaced=True, headers=expecting,
        ),
        Operation(
            "PUT", one, api.put, "Publish a new version", name="config_put", access=Access.SERVICE, tag=TAG,
            body=wire.PublishRequest, body_limit=MOST_BODY, answer=Published, errors=writes, namespaced=True,
            headers={**expecting, "If-None-Match": "`*`: only if there is no such key."},
        ),
        Operation(
            "DELETE", one, api.delete, "Delete a key; its history stays", name="config_delete", access=Access.SERVICE,
            tag=TAG, query=wire.DeleteQuery, answer=Published, errors=(UnknownKey, VersionConflict), namespaced=True,
            headers=expecting,
        ),
        Operation(
            "POST", one, api.roll_back_rest, "With /rollback after the key: publish an old version's content again",
            name="config_roll_back", access=Access.SERVICE, tag=TAG, body=wire.RollbackRequest, answer=Published,
            errors=(NotFound, UnknownVersion, VersionConflict), namespaced=True, headers=expecting, documented=False,
        ),
    ]  # fmt: skip


class ConfigRoutes:
    def __init__(self, config: Config) -> None:
        self._config = config

    async def list_values(self, call: Call) -> wire.Values:
        state = await self._config.read(call.namespace)
        values = state.values if _may_see_secrets(call) else [value.masked() for value in state.values]
        query: PageQuery = call.query
        ordered, next_page = page_of(values, lambda value: value.key, query.limit, query.page)
        definitions = definitions_of(self._config.definitions.get(call.namespace))
        return wire.Values(ordered, state.revision, state.epoch, definitions, next_page)

    async def get(self, call: Call) -> Value | Answer | wire.Versions:
        key, word = _split(call.path["key"])
        query: wire.GetQuery = call.query
        if word == "history":
            return await self._history(call, key, query.before, query.limit)
        if word:
            raise NotFound
        if query.version is not None:
            value = await self._config.version(call.namespace, key, query.version)
            answer = _answer(value, clear=_may_see_secrets(call))
        else:
            entry = await self._config.entry(call.namespace, key)
            read = _cached_answer if len(entry) <= MOST_KEPT else _answer_of
            answer = read(entry, clear=_may_see_secrets(call))
        if holds(call, answer.headers["ETag"]):
            return Answer(status=304, headers=answer.headers)
        return answer

    async def history(self, call: Call) -> wire.Versions:
        query: wire.VersionsQuery = call.query
        return await self._history(call, call.path["key"], query.before, query.limit)

    async def _history(self, call: Call, key: str, before: int, limit: int) -> wire.Versions:
        return wire.Versions(
            await self._config.history(call.namespace, key, before=before, most=limit, clear=_may_see_secrets(call))
        )

    async def put(self, call: Call) -> Answer:
        body: wire.PublishRequest = call.body
        key = check_key(call.path["key"])
        _may_write(call, self._config)
        draft = Draft(
            key, body.content, content_type_of(body.content_type), expected_version(call, ANY_VERSION), body.secret
        )
        made = (await self._config.publish(call.namespace, [draft], author=call.caller.name, reason=body.reason))[key]
        return Answer(made, headers={"ETag": f'"{made.version}"'})

    async def delete(self, call: Call) -> Published:
        key = check_key(call.path["key"])
        _may_write(call, self._config)
        expected = expected_version(call, ANY_VERSION)
        if expected is None:
            # Deleting a missing key must not create a version.
            expected = (await self._config.get(call.namespace, key)).version
        draft = Draft(key, None, expected=expected)
        query: wire.DeleteQuery = call.query
        return (await self._config.publish(call.namespace, [draft], author=call.caller.name, reason=query.reason))[key]

    async def publish_batch(self, call: Call) -> wire.ConfigBatchAnswer:
        body: wire.ConfigBatchRequest = call.body
        _may_write(call, self._config)
        drafts = [
            Draft(item.key, item.content, content_type_of(item.content_type), item.version, item.secret)
            for item in body.values
        ]
        made = await self._config.publish(call.namespace, drafts, author=call.caller.name, reason=body.reason)
        revision = max(each.revision for each in made.values())
        return wire.ConfigBatchAnswer({key: each.version for key, each in made.items()}, revision)

    async def roll_back(self, call: Call) -> Published:
        return await self._roll_back(call, check_key(call.path["key"]))

    async def _roll_back(self, call: Call, key: str) -> Published:
        _may_write(call, self._config)
        body: wire.RollbackRequest = call.body
        return await self._config.roll_back(
            call.namespace,
            key,
            body.version,
            author=call.caller.name,
            reason=body.reason,
            expected=expected_version(call, ANY_VERSION),
        )

    async def roll_back_rest(self, call: Call) -> Published:
        """Roll back a key that contains slashes, which the other route does not match."""
        key, word = _split(call.path["key"])
        if word != "rollback":
            raise NotFound
        return await self._roll_back(call, key)

    async def watch(self, call: Call) -> Stream:
        query: wire.ConfigWatchQuery = call.query
        position = call.header("last-event-id")
        after = revision_number(position, "Last-Event-ID") if position else query.revision
        keys = frozenset(check_key(key) for key in query.key) or None
        return Stream(events(self._config, call.namespace, after, clear=_may_see_secrets(call), keys=keys))


def _answer(value: Value, *, clear: bool) -> Answer:
    body = msgspec.json.encode(value if clear else value.masked())
    return Answer(body, headers={"ETag": f'"{value.version}"', "Cache-Control": "private, no-cache"})


def _answer_of(entry: bytes, *, clear: bool) -> Answer:
    return _answer(value_of(entry), clear=clear)


# The store is read each time; only the encoding of an unchanged entry is cached.
_cached_answer = lru_cache(maxsize=KEPT)(_answer_of)


def _split(path: str) -> tuple[str, str]:
    """Split a verb of our routes off the end of a path."""
    key, _, word = path.rpartition("/")
    return (key, word) if key and word in VERBS else (check_key(path), "")


def _may_see_secrets(call: Call) -> bool:
    """Whether the caller may see secrets."""
    return call.caller.may(Access.SERVICE)


def _may_write(call: Call, config: Config) -> None:
    """Require an admin for Headgate's own settings."""
    if call.namespace in config.definitions and not call.caller.may(Access.ADMIN):
        raise Forbidden(f"Only an admin may change {call.namespace}.")
