"""Settings of config."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from headgate.kit.settings import Doc, Settings


class ConfigSettings(Settings, section="config"):
    """Sizes and retention."""

    most_bytes: Annotated[int, Meta(ge=1, le=1_048_576), Doc("largest content of one key")] = 65_536
    most_keys: Annotated[int, Meta(ge=1), Doc("most keys in one namespace; the longest deleted make room")] = 10_000
    namespace_bytes: Annotated[int, Meta(ge=1024), Doc("most bytes of all values of a namespace together, about")] = (
        67_108_864
    )
    kept_versions: Annotated[int, Meta(ge=2), Doc("versions of a key that are kept")] = 100
    kept_days: Annotated[float, Meta(gt=0), Doc("older versions than this are dropped, except the newest")] = 90.0
    history: Annotated[int, Meta(ge=100), Doc("changes kept for watchers who come back, per namespace, at least")] = (
        10_000
    )
    history_bytes: Annotated[
        int, Meta(ge=65_536), Doc("most bytes of changes kept for watchers who come back, per namespace, about")
    ] = 67_108_864
