"""Decodes a gateway's responses; fields that a later version has added are ignored."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")

_LISTS = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)


def decode_response(content: bytes | str, kind: type[T]) -> T:
    """Decode JSON as this type and ignore fields that it does not have; raises msgspec.DecodeError."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError:
        described: Any = kind
        known = _known(msgspec.json.decode(content), _described(described))
        return msgspec.json.decode(msgspec.json.encode(known), type=kind)


@lru_cache(maxsize=256)
def _described(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _known(value: Any, kind: inspect.Type) -> Any:
    if isinstance(kind, inspect.UnionType):
        fitting = (one for one in kind.types if _fits(value, one))
        kind = next(fitting, kind)
    if isinstance(value, dict) and isinstance(kind, inspect.StructType):
        fields = {field.encode_name: field.type for field in kind.fields}
        return {name: _known(one, fields[name]) for name, one in value.items() if name in fields}
    if isinstance(value, dict) and isinstance(kind, inspect.DictType):
        return {name: _known(one, kind.value_type) for name, one in value.items()}
    if isinstance(value, list) and isinstance(kind, _LISTS):
        return [_known(one, kind.item_type) for one in value]
    return value


def _fits(value: Any, kind: inspect.Type) -> bool:
    if isinstance(value, dict):
        return isinstance(kind, (inspect.StructType, inspect.DictType))
    return isinstance(value, list) and isinstance(kind, _LISTS)
