"""Structs of config's requests, answers and events, shared by the server and the SDK."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from headgate.config.model import Value
from headgate.kit.wire import Wire


class Definition(msgspec.Struct, frozen=True, rename="camel"):
    """A live setting: its description and its default."""

    key: str
    text: str
    default: str


class PublishRequest(Wire, frozen=True):
    """A new version of a key."""

    content: str
    content_type: str | None = None
    reason: str = ""
    secret: bool | None = None


class BatchItem(Wire, frozen=True):
    """One key of a batch; without content it is deleted. `version` is the one it replaces (0: there must be none)."""

    key: str
    content: str | None = None
    content_type: str | None = None
    secret: bool | None = None
    version: Annotated[int, Meta(ge=0)] | None = None


class ConfigBatchRequest(Wire, frozen=True):
    """Several keys at once, all or none."""

    values: list[BatchItem]
    reason: str = ""


class ConfigBatchAnswer(Wire, frozen=True):
    """The versions that were made, all at one revision."""

    versions: dict[str, int]
    revision: int


class RollbackRequest(Wire, frozen=True):
    """The version to go back to."""

    version: Annotated[int, Meta(ge=1)]
    reason: str = ""


class Versions(Wire, frozen=True):
    """A key's history, newest first."""

    versions: list[Value]


class Values(Wire, frozen=True):
    """All values of a namespace; for Headgate's own namespace also the settings that exist."""

    values: list[Value]
    revision: int
    epoch: str
    definitions: list[Definition] = []
    next_page: str | None = None


class VersionsQuery(Wire, frozen=True):
    """Versions before this one, and a limit."""

    before: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=1, le=200)] = 50


class GetQuery(VersionsQuery, frozen=True):
    """For a history: versions before this one, and a limit. `version` reads one old version."""

    version: Annotated[int, Meta(ge=1)] | None = None


class DeleteQuery(Wire, frozen=True):
    """The reason of a deletion."""

    reason: str = ""


class ConfigWatchQuery(Wire, frozen=True):
    """The revision to resume from, and the keys to watch."""

    revision: Annotated[int, Meta(ge=0)] | None = None
    key: list[str] = []


class ConfigBookmark(msgspec.Struct, frozen=True, omit_defaults=True):
    """A position: of a bookmark, of a compaction, or of a new epoch."""

    revision: int
    epoch: str | None = None


class ValueEvent(msgspec.Struct, frozen=True, rename="camel"):
    """A key's new version, or its deletion."""

    revision: int
    key: str
    version: int
    value: Value | None = None
