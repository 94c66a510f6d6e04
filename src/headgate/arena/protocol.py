"""Messages of the arena: UTF-8 JSON in an envelope of `type` and `payload`, in both directions.

A message to many players is encoded once, down to the bytes of its WebSocket frame: a server's frames are not masked,
so they are the same for everybody.
"""

from __future__ import annotations

import datetime
from enum import StrEnum
from typing import Final

import msgspec
from websockets.frames import Frame, Opcode

from headgate.kit.ids import display_text
from headgate.kit.problems import InvalidRequest
from headgate.kit.validation import explain
from headgate.kit.wire import Wire

MOST_CHARACTERS: Final = 500
FLOODED: Final = "too many messages"


class MessageType(StrEnum):
    """All message types."""

    MESSAGE_SEND = "MESSAGE_SEND"
    MESSAGE_RECEIVE = "MESSAGE_RECEIVE"
    SYSTEM_MESSAGE_RECEIVE = "SYSTEM_MESSAGE_RECEIVE"
    SERVERSTATUS_REQUEST = "SERVERSTATUS_REQUEST"
    SERVERSTATUS_RESPONSE = "SERVERSTATUS_RESPONSE"


class Say(Wire, frozen=True):
    """A message that a player sends."""

    message: str


class Said(Wire, frozen=True):
    """A message of another player."""

    timestamp: str
    nickname: str
    message: str


class Notice(Wire, frozen=True):
    """A message of the server: a player came or left, or a frame was wrong."""

    timestamp: str
    message: str


class Ask(Wire, frozen=True):
    """A request for the number of players."""


class PlayerCount(Wire, frozen=True):
    """The number of players."""

    client_count: int


Message = Say | Said | Notice | Ask | PlayerCount

_TYPES: Final[dict[type[Message], MessageType]] = {
    Say: MessageType.MESSAGE_SEND,
    Said: MessageType.MESSAGE_RECEIVE,
    Notice: MessageType.SYSTEM_MESSAGE_RECEIVE,
    Ask: MessageType.SERVERSTATUS_REQUEST,
    PlayerCount: MessageType.SERVERSTATUS_RESPONSE,
}


class BadFrame(Exception):
    """A frame is not a valid message; the text is for its sender."""


class _Envelope(msgspec.Struct):
    type: str
    payload: msgspec.Raw = msgspec.Raw(b"{}")


_encode = msgspec.json.Encoder().encode
_open = msgspec.json.Decoder(_Envelope).decode
_payloads = {str(name): msgspec.json.Decoder(kind).decode for kind, name in _TYPES.items()}
_FROM_PLAYERS: Final = frozenset({MessageType.MESSAGE_SEND, MessageType.SERVERSTATUS_REQUEST})
_FROM_SERVER: Final = frozenset(MessageType) - _FROM_PLAYERS


def encoded(message: Message) -> bytes:
    """Encode a message as JSON."""
    return _encode({"type": _TYPES[type(message)], "payload": message})


def framed(message: Message) -> bytes:
    """Encode a message as a complete WebSocket frame of the server."""
    return Frame(Opcode.TEXT, encoded(message)).serialize(mask=False)


def from_player(frame: str | bytes) -> Say | Ask:
    """Decode a player's frame; raises BadFrame with a text for the player."""
    message = _read(frame, _FROM_PLAYERS)
    if isinstance(message, Say):
        try:
            display_text(message.message, "message", MOST_CHARACTERS)
        except InvalidRequest as error:
            raise BadFrame(error.detail) from error
        return message
    assert isinstance(message, Ask)
    return message


def from_server(frame: str | bytes) -> Said | Notice | PlayerCount:
    """Decode a server's frame; raises BadFrame."""
    message = _read(frame, _FROM_SERVER)
    assert isinstance(message, Said | Notice | PlayerCount)
    return message


def timestamp() -> str:
    """Format the current time for messages: ISO-8601 in UTC with milliseconds."""
    now = datetime.datetime.now(datetime.UTC)
    return f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond // 1000:03d}Z"


def _read(frame: str | bytes, allowed: frozenset[MessageType]) -> Message:
    if isinstance(frame, bytes):
        raise BadFrame("Send text frames; this one was binary.")
    try:
        envelope = _open(frame)
        if envelope.type not in allowed:
            raise BadFrame(f"There is no message type of this name to send; send {_listed(allowed)}.")
        message: Message = _payloads[envelope.type](envelope.payload)
    except msgspec.ValidationError as error:
        raise BadFrame(f"This message does not have the right shape: {explain(error)[0]}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadFrame('This is not JSON like {"type": …, "payload": {…}}.') from error
    return message


def _listed(allowed: frozenset[MessageType]) -> str:
    return " or ".join(sorted(allowed))
