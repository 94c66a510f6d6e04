"""The settings of the store."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from headgate.kit.settings import Doc, Settings

EMBEDDED = "embedded"


class StoreSettings(Settings, section="store"):
    """The store's address and how long to wait for it."""

    url: Annotated[
        str,
        Doc(
            "where the store is: embedded, valkey://host:port/db, valkey+sentinel://h1,h2/name, valkey+cluster://h1,h2; "
            "valkeys:// for TLS",
            env="HEADGATE_STORE",
            secret=True,
        ),
    ] = EMBEDDED
    prefix: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,32}\Z"), Doc("what all our keys and channels begin with")
    ] = "hg"
    deadline_ms: Annotated[int, Doc("how long a call may take before its caller is told that the store is away")] = 2000
    volatile: Annotated[bool, Doc("accept a store that keeps nothing on disk")] = False
