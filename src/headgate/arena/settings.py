"""Settings of the arena."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from headgate.kit.settings import Doc, Settings
from headgate.waiting_room.model import MOST_SESSIONS

Seconds = Annotated[float, Meta(gt=0)]


class ArenaSettings(Settings, section="arena"):
    """The game server."""

    host: Annotated[str, Doc("address to listen on; 0.0.0.0 is every address of this machine")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535), Doc("port to listen on; 0 takes a free one")] = 8081
    address: Annotated[
        str, Doc("where players reach it, such as wss://arena.example/gameserver; empty: made from host and port")
    ] = ""
    namespace: Annotated[str, Doc("the queue's namespace")] = "default"
    queue: Annotated[str, Doc("the queue whose players it seats")] = "main"
    capacity: Annotated[
        int, Meta(ge=0, le=MOST_SESSIONS), Doc("seats that promotion fills (soft_cap), at most 10,000")
    ] = 100
    max_capacity: Annotated[
        int | None,
        Meta(ge=0, le=MOST_SESSIONS),
        Doc("seats at the very most, with those who come back (max_cap); unset: the same"),
    ] = None
    origins: Annotated[
        list[str],
        Doc("sites whose pages may enter, such as https://game.example; its own origin always may; * is every site"),
    ] = []
    trusted_proxies: Annotated[
        list[str], Doc("addresses and networks of proxies whose X-Forwarded-For is believed")
    ] = []
    idle_seconds: Annotated[Seconds, Doc("a connection without a message either way for so long is closed")] = 120.0
    message_bytes: Annotated[int, Meta(ge=256), Doc("largest frame that a player may send")] = 8192
    messages_per_second: Annotated[Seconds, Doc("messages that one player may send steadily")] = 5.0
    message_burst: Annotated[int, Meta(ge=1), Doc("messages that one player may send at once")] = 20
    backlog_bytes: Annotated[
        int, Meta(ge=1024), Doc("unread bytes at which a player who reads too slowly is dropped")
    ] = 262_144
    handshake_failures: Annotated[int, Meta(ge=1), Doc("refused handshakes that one client address has at once")] = 60
    drain_seconds: Annotated[
        float, Meta(ge=0), Doc("after a stop signal, how long players may stay before they are sent away")
    ] = 3.0
