"""Decodes the query and the body of a request into structs, or raises a problem that names the field."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from math import isfinite
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from headgate.http.exchange import Exchange
from headgate.http.request_head import keep_table
from headgate.http.routes import ClientGone
from headgate.kit.problems import HeadgateError, InvalidRequest, Malformed, TooLarge
from headgate.kit.validation import explain, flat

NAMESPACE = "namespace"
_PLAIN_PATTERN = re.compile(r"\^(?:\(\?!\\\.\\\.\?\\Z\))?(?P<characters>\[[^\]]+\])\{1,(?P<most>\d+)\}\\Z")
_DOTS = (b".", b"..")


class MediaUnsupported(HeadgateError):
    """Send the body as application/json in UTF-8, not compressed."""

    code, status = "media_unsupported", 415


class BodyTimeout(HeadgateError):
    """The request's body did not arrive in time."""

    code, status = "body_timeout", 408


class QueryReader:
    """Decodes a query string into a struct; refuses unknown parameters if the struct does."""

    def __init__(self, kind: type[msgspec.Struct] | None, *, namespaced: bool) -> None:
        self._kind = kind
        info = msgspec.inspect.type_info(kind) if kind is not None else None
        fields = info.fields if isinstance(info, msgspec.inspect.StructType) else ()
        self._lists = frozenset(field.encode_name for field in fields if _is_list(field.type))
        self._floats = tuple(field.name for field in fields if _is_float(field.type))
        self._allows_unknown = kind is not None and not kind.__struct_config__.forbid_unknown_fields
        names = {field.encode_name for field in fields}
        self._takes_namespace = namespaced and NAMESPACE not in names
        self._names = {name.encode(): name for name in names | ({NAMESPACE} if namespaced else set())}
        self._plain_fields: dict[bytes, tuple[str, bytes, int]] = {}
        if not hasattr(kind, "__post_init__"):
            plain = (
                (field.encode_name.encode(), _plain_field(field)) for field in fields if field.encode_name != NAMESPACE
            )
            self._plain_fields = {name: field for name, field in plain if field is not None}
        # The struct of an empty query, if it can be shared: no field is required and none is a mutable list.
        self._empty: msgspec.Struct | None = None
        if kind is not None and not self._lists and not any(field.required for field in fields):
            self._empty = msgspec.convert({}, kind)

    def read(self, query: bytes) -> tuple[Any, str | None]:
        """Return the struct (None if the route has none) and the requested namespace."""
        if not query and (self._kind is None or self._empty is not None):
            return self._empty, None
        if self._plain_fields:
            made = self._read_plain(query)
            if made is not None:
                return made, None
        values: dict[str, Any] = self._values(query) if query else {}
        namespace = values.get(NAMESPACE)
        if self._takes_namespace:
            values.pop(NAMESPACE, None)
        if self._kind is None:
            return None, namespace
        try:
            made = msgspec.convert(values, self._kind, strict=False)
        except msgspec.ValidationError as error:
            raise invalid(error, self._kind) from error
        for name in self._floats:
            value = getattr(made, name)
            if isinstance(value, float) and not isfinite(value):
                raise InvalidRequest(f"{name} must be a finite number.", field=name)
        return made, namespace

    def _read_plain(self, query: bytes) -> Any:
        """Decode a query that has only names and ids, as most have, at less cost; None if it has other parameters."""
        values = {}
        for pair in query.split(b"&"):
            name, _, value = pair.partition(b"=")
            field = self._plain_fields.get(name)
            if field is None:
                return None
            attribute, allowed, most = field
            if not value or len(value) > most or value.translate(allowed) != value or attribute in values:
                return None
            if value in _DOTS:
                return None  # not allowed in some names
            values[attribute] = value.decode()
        try:
            return self._kind(**values)  # type: ignore[misc]  # a route with such fields has a struct
        except TypeError:
            return None  # a field is missing; the general decoder says which

    def _values(self, query: bytes) -> dict[str, Any]:
        values: dict[str, Any] = {}
        names = self._names
        encoded = b"%" in query or b"+" in query
        for pair in query.split(b"&"):
            raw, _, value = pair.partition(b"=")
            name = names.get(raw)
            if name is None:
                if not pair:
                    continue
                name = _text(raw, "a parameter's name", encoded)
                if name.encode() not in names:
                    if self._allows_unknown:
                        continue
                    raise _unknown(name)
            text = _text(value, name, encoded)
            if name in self._lists:
                values.setdefault(name, []).append(text)
            elif name in values:
                raise InvalidRequest(f"{name} is given twice.", field=name)
            else:
                values[name] = text
        return values


class BodyReader:
    """Reads a body up to a size limit and decodes it."""

    def __init__(self, kind: type[Any], *, limit: int, seconds: float, optional: bool) -> None:
        self._kind = kind
        self._decode: Callable[[bytes], Any] | None = None if kind is bytes else msgspec.json.Decoder(kind).decode
        self._limit = limit
        self._seconds = seconds
        self._optional = optional

    def read(self, exchange: Exchange) -> Any:
        """Return the decoded body, which has arrived; None if it is empty and optional."""
        self._check(exchange.target.headers)
        return self._decoded(exchange.body() or b"")

    async def read_later(self, exchange: Exchange) -> Any:
        """Wait for the body and return it decoded."""
        self._check(exchange.target.headers)
        body = exchange.body()
        return self._decoded(await self._receive(exchange) if body is None else body)

    def _decoded(self, body: bytes) -> Any:
        if len(body) > self._limit:
            raise self._too_large()
        if self._decode is None:
            return body
        if not body and self._optional:
            return None
        try:
            return self._decode(body)
        except msgspec.ValidationError as error:
            raise invalid(error, self._kind) from error
        except (ValueError, RecursionError) as error:
            raise malformed(error) from error

    def _check(self, headers: dict[bytes, bytes]) -> None:
        length = headers.get(b"content-length")
        if length is not None and length.isdigit() and int(length[:20]) > self._limit:
            raise self._too_large()
        if self._decode is None:
            return
        media = headers.get(b"content-type")
        if media is not None and media != b"application/json" and not _is_json(media):
            raise MediaUnsupported
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise MediaUnsupported

    async def _receive(self, exchange: Exchange) -> bytes:
        """Receive the whole body; raise BodyTimeout if it takes too long."""
        chunks, size, more = [], 0, True
        try:
            async with asyncio.timeout(self._seconds):
                while more and size <= self._limit:
                    message = await exchange.receive()
                    if message["type"] != "http.request":
                        raise ClientGone
                    chunks.append(message["body"])
                    size += len(chunks[-1])
                    more = message["more_body"]
        except TimeoutError:
            raise BodyTimeout from None
        return b"".join(chunks)

    def _too_large(self) -> TooLarge:
        return TooLarge(f"The request body is larger than {self._limit} bytes.", limit=self._limit)


def invalid(error: msgspec.ValidationError, kind: Any = None) -> InvalidRequest:
    """Make a problem that names the wrong field; `kind` is the expected type."""
    sentence, field = explain(error, kind)
    return InvalidRequest(sentence, field=field) if field else InvalidRequest(sentence)


def malformed(error: Exception) -> Malformed:
    """Make a problem that says why a body is not JSON."""
    if isinstance(error, RecursionError):
        return Malformed("The JSON is nested too deeply.")
    if isinstance(error, UnicodeError):
        return Malformed("The JSON is not UTF-8.")
    return Malformed(f"The body is not JSON: {flat(str(error)[:200])}.")


def _unknown(name: str) -> InvalidRequest:
    name = flat(name[:64])
    return InvalidRequest(f"There is no query parameter named `{name}`.", field=name)


def _text(raw: bytes, name: str, encoded: bool) -> str:
    try:
        if encoded:
            return unquote_to_bytes(raw.replace(b"+", b" ")).decode()
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name} is not UTF-8.", field=name) from error


def _is_json(media: bytes) -> bool:
    kind, _, parameters = media.lower().partition(b";")
    kind = kind.strip()
    charset = parameters.replace(b" ", b"").replace(b'"', b"").partition(b"charset=")[2]
    return (kind == b"application/json" or kind.endswith(b"+json")) and charset.partition(b";")[0] in (b"", b"utf-8")


def _plain_field(field: msgspec.inspect.Field) -> tuple[str, bytes, int] | None:
    """Return attribute, allowed characters and longest length, if the field's pattern is nothing but these; else None."""
    kind = field.type
    if not isinstance(kind, msgspec.inspect.StrType) or kind.pattern is None:
        return None
    form = _PLAIN_PATTERN.fullmatch(kind.pattern)
    if form is None or kind.min_length is not None or kind.max_length is not None:
        return None
    allowed = re.compile(form["characters"])
    if allowed.fullmatch("%") or allowed.fullmatch("+"):
        return None  # in a query these are escapes
    return field.name, keep_table(code for code in range(128) if allowed.fullmatch(chr(code))), int(form["most"])


def _is_list(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.UnionType):
        return any(_is_list(part) for part in kind.types)
    return isinstance(kind, msgspec.inspect.CollectionType)


def _is_float(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.UnionType):
        return any(_is_float(part) for part in kind.types)
    return isinstance(kind, msgspec.inspect.FloatType)
