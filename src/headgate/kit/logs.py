"""Logs: a fixed phrase and keys, JSON when not on a terminal, masked secrets, and a level that can change at run time.

Modules write `log = get_logger()` and `log.info("queue opened", queue=name)`. A process of ours calls `configure` and writes to
stderr with structlog; records of libraries that use the standard library's logging have the same form. In a user's program
(the SDK), a line is a record of the standard logger `headgate`, which has no output of its own.
"""

from __future__ import annotations

import io
import logging
import re
import sys
from contextlib import suppress
from contextvars import ContextVar
from enum import StrEnum
from typing import Annotated, Any, TextIO, cast

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from headgate.kit.settings import Doc, Settings

MASK = "•••"


class Level(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Format(StrEnum):
    """The form of a log line."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"


class LogSettings(Settings, section="log"):
    """How Headgate logs."""

    level: Annotated[Level, Doc("how much is logged; SIGUSR1 switches to debug and back while running")] = Level.INFO
    format: Annotated[Format, Doc("json, text, or auto: text on a terminal, else json")] = Format.AUTO


_NUMBERS = {Level.DEBUG: 10, Level.INFO: 20, Level.WARNING: 30, Level.ERROR: 40}
_SECRET_KEYS = frozenset({"token", "ticket", "cookie", "password", "secret", "authorization", "proof", "signing_keys"})
_SECRET_ENDINGS = ("_token", "_ticket", "_cookie", "_password", "_secret")
_CREDENTIALS = re.compile(r"(://[^/\s:@\"]*:)[^@/\s\"]+@")
_QUIET_LIBRARIES = ("httpx2", "httpcore2", "asyncio", "websockets", "opentelemetry")

# The id of the request that is being served, for its log lines. Setting it costs a tenth of structlog's bind_contextvars.
request_id: ContextVar[str] = ContextVar("headgate_request_id", default="")
_threshold = 20
_usual = Level.INFO
_hidden: set[str] = set()
_ours: Any = None
"""The structlog logger of a process of ours; None in a user's program."""

_standard = logging.getLogger("headgate")
_standard.addHandler(logging.NullHandler())


class Logger:
    """A logger that checks output and level at each call, so that both can change."""

    __slots__ = ()

    def debug(self, event: str, **keys: object) -> None:
        """Log a detail that only helps to find a defect."""
        _write(logging.DEBUG, "debug", event, keys)

    def info(self, event: str, **keys: object) -> None:
        """Log an event."""
        _write(logging.INFO, "info", event, keys)

    def warning(self, event: str, **keys: object) -> None:
        """Log something that an operator should know."""
        _write(logging.WARNING, "warning", event, keys)

    def error(self, event: str, **keys: object) -> None:
        """Log something that an operator must act on."""
        _write(logging.ERROR, "error", event, keys)

    def exception(self, event: str, **keys: object) -> None:
        """Log the exception that is being handled, with its trace."""
        _write(logging.ERROR, "error", event, {"exc_info": True, **keys})


_logger = Logger()


def get_logger() -> Logger:
    """Give the logger that every module uses."""
    return _logger


def _write(level: int, method: str, event: str, keys: dict[str, Any]) -> None:
    if _ours is not None:
        if level >= _threshold:
            getattr(_ours, method)(event, **keys)
    elif _standard.isEnabledFor(level):
        trace = keys.pop("exc_info", None)
        masked = _mask_keys(None, method, keys)
        line = _mask_text(None, method, " ".join([event, *(f"{key}={_word(value)}" for key, value in masked.items())]))
        _standard.log(level, line, exc_info=trace, stacklevel=3, extra={"event": event, "keys": masked})


def _word(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(sign.isspace() for sign in text) else text


def as_library() -> None:
    """Log to the standard logger again, as before `configure`; for tests."""
    global _ours
    _ours = None


def configure(settings: LogSettings, process: str, *, stream: TextIO | None = None) -> None:
    """Set up logging to stderr; `process` is the name of this process in every line."""
    global _usual, _ours
    stream = stream or sys.stderr
    text = settings.format is Format.TEXT or (settings.format is Format.AUTO and stream.isatty())
    renderers: list[Processor] = (
        [structlog.dev.ConsoleRenderer(colors=stream.isatty(), sort_keys=False)]
        if text
        else [structlog.processors.format_exc_info, _json]
    )

    def name_process(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event.setdefault("process", process)
        return event

    _ours = structlog.wrap_logger(
        structlog.WriteLogger(cast(TextIO, _Lenient(stream))),
        processors=[
            structlog.contextvars.merge_contextvars,
            _add_request_id,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso" if not text else "%H:%M:%S", utc=not text),
            name_process,
            _mask_keys,
            *renderers,
            _mask_text,
        ],
        wrapper_class=structlog.BoundLogger,
    ).bind()
    _usual = settings.level
    set_level(settings.level)
    logging.root.handlers[:] = [_Bridge()]
    for name in _QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)


def set_level(level: Level) -> None:
    """Change the level of this process."""
    global _threshold
    _threshold = _NUMBERS[level]
    logging.root.setLevel(_threshold)


def switch_debug() -> None:
    """Switch between debug and the level of the settings."""
    set_level(_usual if _threshold <= 10 else Level.DEBUG)


def debugging() -> bool:
    """Tell whether debug lines are shown, so that hot paths need not format them in vain."""
    return _threshold <= 10 if _ours is not None else _standard.isEnabledFor(logging.DEBUG)


def hide(*secrets: str) -> None:
    """Mask these texts in all log lines."""
    for secret in secrets:
        if secret:
            _hidden.update((secret, msgspec.json.encode(secret).decode()[1:-1]))


class _Lenient(io.TextIOBase):
    """A stream that ignores write errors: a closed pipe must not fail the work that logs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        try:  # noqa: SIM105  # called once more when Python ends, and on 3.13 `suppress` may be gone by then
            self._stream.flush()
        except (OSError, ValueError):
            pass


class _Bridge(logging.Handler):
    """Writes the records of other libraries in our form."""

    def emit(self, record: logging.LogRecord) -> None:
        keys: dict[str, object] = {"logger": record.name}
        if record.exc_info:
            keys["exc_info"] = record.exc_info
        log = get_logger()
        if record.levelno >= logging.ERROR:
            log.error(record.getMessage(), **keys)
        elif record.levelno >= logging.WARNING:
            log.warning(record.getMessage(), **keys)
        elif record.levelno >= logging.INFO:
            log.info(record.getMessage(), **keys)
        else:
            log.debug(record.getMessage(), **keys)


def _add_request_id(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    if request := request_id.get():
        event.setdefault("request_id", request)
    return event


def _mask_keys(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        if (key in _SECRET_KEYS or key.endswith(_SECRET_ENDINGS)) and isinstance(value, str | bytes):
            event[key] = MASK
    return event


def _mask_text(_logger: WrappedLogger, _method: str, line: Any) -> str:
    text = str(line)
    for secret in _hidden:
        if secret in text:
            text = text.replace(secret, MASK)
    return _CREDENTIALS.sub(rf"\1{MASK}@", text) if "://" in text else text


def _json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    phrase = event.pop("event", "")
    ordered = {"time": event.pop("timestamp", None), "level": event.pop("level", None), "event": phrase, **event}
    return msgspec.json.encode(ordered, enc_hook=repr).decode()
