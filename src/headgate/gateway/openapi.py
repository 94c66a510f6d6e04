"""Generates the OpenAPI 3.1 document from the operations and their structs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

import headgate
from headgate.gateway.decoding import BodyTimeout, MediaUnsupported
from headgate.gateway.openapi_extras import ARENA
from headgate.gateway.openapi_fields import IN_PATHS, describe
from headgate.http.responses import PROBLEM
from headgate.http.routes import EVENTS, JSON, Access, ClientGone, Operation
from headgate.kit.ids import CONFIG_KEY_PATTERN, MEMBER_PATTERN, THING_PATTERN
from headgate.kit.problems import (
    BY_CODE,
    Forbidden,
    HeadgateError,
    InvalidRequest,
    Malformed,
    RateLimited,
    StoreFull,
    StoreUnavailable,
    TooLarge,
    Unauthorized,
)

Schema = dict[str, Any]
_REF = "#/components/schemas/{name}"
# Structs that were renamed after publication; generated clients use the first names.
_PUBLISHED = {
    "BatchRequest": "headgate.registry.api.BatchRequest",
    "BatchAnswer": "headgate.registry.api.BatchAnswer",
    "ConfigBatchRequest": "headgate.config.api.BatchRequest",
    "ConfigBatchAnswer": "headgate.config.api.BatchAnswer",
}
_PARAMETER = re.compile(r"\{(\w+)(:path)?\}")
_DESCRIPTION = """\
Traffic control for stateful backends. Errors are problem documents (RFC 9457) whose `code` is stable; `/docs/problems` lists \
them. Requests may carry `X-Request-Id` and `traceparent`; both come back. Unknown fields and parameters are refused."""

_PROBLEM_SCHEMA: Schema = {
    "title": "Problem",
    "description": "What went wrong, as RFC 9457 has it.",
    "type": "object",
    "properties": {
        "type": {"type": "string", "description": "where this problem is explained"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "the stable name of the problem"},
        "detail": {"type": "string", "description": "what happened, for people"},
        "requestId": {"type": "string", "description": "finds this request in the log"},
        "retryAfter": {"type": "number", "description": "seconds to wait before asking again"},
        "field": {"type": "string", "description": "the field or parameter that was wrong"},
    },
    "required": ["type", "title", "status", "code", "detail", "requestId"],
}


def document(operations: Sequence[Operation]) -> bytes:
    """Return the document of all documented operations, as JSON."""
    duplicates = [name for name, number in Counter(operation.id for operation in operations).items() if number > 1]
    if duplicates:
        raise ValueError(f"these operations need names of their own: {', '.join(duplicates)}")
    shown = [operation for operation in operations if operation.documented]
    types = [kind for each in shown for kind in (each.body, each.answer) if kind is not None and kind is not bytes]
    schemas, components = msgspec.json.schema_components(types, schema_hook=_any, ref_template=_REF)
    schema_of = dict(zip(types, schemas, strict=True))
    for name, schema in components.items():
        describe(name, schema)
        if name in _PUBLISHED:
            schema["title"] = _PUBLISHED[name].rpartition(".")[2]
    components["Problem"] = _PROBLEM_SCHEMA
    paths: dict[str, dict[str, Any]] = {}
    for operation in shown:
        path = _PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _described(operation, schema_of, components)
    whole = {
        "openapi": "3.1.0",
        "info": {
            "title": "Headgate",
            "version": headgate.__version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in shown)],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "apiToken": {"type": "apiKey", "in": "header", "name": "X-API-Token"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
        "x-problems": problems(),
    }
    return msgspec.json.encode(_published(_with_json_patterns(whole)))


def _published(value: Any) -> Any:
    """Replace the names of renamed schemas by those under which they were first published."""
    if isinstance(value, list):
        return [_published(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        return {**value, "$ref": _REF.format(name=_PUBLISHED.get(name := value["$ref"].rpartition("/")[2], name))}
    return {_PUBLISHED.get(key, key): _published(each) for key, each in value.items()}


def problems() -> list[dict[str, object]]:
    """Return every problem that can occur over HTTP, sorted by code; other errors belong to commands and scripts."""
    listed = {problem["code"]: problem for problem in ARENA} | {
        code: {"code": code, "status": kind.status, "title": kind.title, "detail": kind().detail}
        for code, kind in BY_CODE.items()
        if code == "internal" or kind.status not in (HeadgateError.status, ClientGone.status)
    }
    return [problem for _, problem in sorted(listed.items())]


def _described(operation: Operation, schema_of: dict[type[Any], Schema], components: dict[str, Schema]) -> Schema:
    access = [operation.access.value]
    schemes = [] if operation.access is Access.PUBLIC else ["apiToken", "bearer"] if operation.bearer else ["apiToken"]
    described: Schema = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [
            *_path_parameters(operation),
            *_query_parameters(operation, components),
            *(_parameter("header", name, {"type": "string"}, text) for name, text in operation.headers.items()),
        ],
        "responses": {**_success(operation, schema_of), **_failures(operation)},
        "security": [{scheme: access} for scheme in schemes],
        "x-access": operation.access.value,
    }
    if operation.any_method:
        described["x-any-method"] = True
    if operation.description:
        described["description"] = operation.description
    if operation.body is not None:
        raw = operation.body is bytes
        content = {"*/*" if raw else JSON: {"schema": {} if raw else schema_of[operation.body]}}
        described["requestBody"] = {"required": not operation.body_optional, "content": content}
    return described


def _path_parameters(operation: Operation) -> Iterable[Schema]:
    for name, rest in _PARAMETER.findall(operation.path):
        pattern = MEMBER_PATTERN if name == "id" or name.endswith("Id") else THING_PATTERN
        if rest:
            pattern = CONFIG_KEY_PATTERN if name == "key" else ""
        schema = {"type": "string", "pattern": rf"^{pattern}\Z"} if pattern else {"type": "string"}
        yield {**_parameter("path", name, schema, IN_PATHS.get(name, "")), "required": True}


def _query_parameters(operation: Operation, components: dict[str, Schema]) -> Iterable[Schema]:
    if operation.query is not None:
        (_,), found = msgspec.json.schema_components([operation.query], schema_hook=_any, ref_template=_REF)
        own = found.pop(operation.query.__name__)
        describe(operation.query.__name__, own)
        components.update(found)
        for name, schema in own["properties"].items():
            described = _parameter("query", name, schema, schema.get("description", ""))
            yield {**described, "required": name in own.get("required", ())}
    if operation.namespaced and "{namespace}" not in operation.path:
        schema = {"type": "string", "pattern": rf"^{THING_PATTERN}\Z", "default": "default"}
        yield _parameter("query", "namespace", schema, "a token that is limited to a namespace needs none here")


def _with_json_patterns(part: Any) -> Any:
    """Translate every pattern for JSON Schema, where `$` means the very end, as `\\Z` does in Python."""
    if isinstance(part, dict):
        return {
            name: value.replace(r"\Z", "$")
            if name == "pattern" and isinstance(value, str)
            else _with_json_patterns(value)
            for name, value in part.items()
        }
    if isinstance(part, list):
        return [_with_json_patterns(value) for value in part]
    return part


def _any(kind: type[Any]) -> Schema:
    """Describe the type `object`, which msgspec does not know, as any JSON value."""
    if kind is object:
        return {"description": "any JSON value"}
    raise NotImplementedError


def _parameter(where: str, name: str, schema: Schema, text: str = "") -> Schema:
    made: Schema = {"name": name, "in": where, "schema": schema}
    return {**made, "description": text} if text else made


def _success(operation: Operation, schema_of: dict[type[Any], Schema]) -> Schema:
    if operation.answers:
        return {str(status): {"description": text} for status, text in operation.answers.items()}
    if operation.answer is None and operation.content_type == JSON:
        return {str(status): {"description": "Done."} for status in (204, *operation.other_statuses)}
    content: Schema = {}
    if operation.answer is not None:
        content["schema"] = schema_of[operation.answer]
    elif operation.content_type != EVENTS:
        content["schema"] = {"type": "string"}
    done = {"description": "Done.", "content": {operation.content_type: content}}
    without = {"description": "Done; the answer has no body."}
    return {
        str(status): without if status in (204, 304) or 300 <= status < 400 else done
        for status in (operation.status, *operation.other_statuses)
    }


def _failures(operation: Operation) -> Schema:
    """Describe one response for each status, with its possible codes."""
    kinds: set[type[HeadgateError]] = {InvalidRequest, StoreUnavailable, *operation.errors}
    if operation.method != "GET":
        kinds.add(StoreFull)
    if operation.access is not Access.PUBLIC:
        kinds |= {Unauthorized, Forbidden, RateLimited}
    if operation.namespaced:
        kinds.add(Forbidden)
    if operation.limit:
        kinds.add(RateLimited)
    if operation.body is not None:
        kinds |= {Malformed, TooLarge, BodyTimeout}
    if operation.body is not None and operation.body is not bytes:
        kinds.add(MediaUnsupported)
    by_status: dict[int, list[type[HeadgateError]]] = {}
    for kind in sorted(kinds, key=lambda kind: (kind.status, kind.code)):
        by_status.setdefault(kind.status, []).append(kind)
    return {str(status): _failure(found) for status, found in by_status.items()}


def _failure(kinds: list[type[HeadgateError]]) -> Schema:
    codes = [kind.code for kind in kinds]
    schema = {"$ref": _REF.format(name="Problem"), "properties": {"code": {"enum": codes}}}
    described: Schema = {"description": ", ".join(codes), "content": {PROBLEM: {"schema": schema}}}
    if kinds[0].status in (429, 503, 507):
        described["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "seconds to wait"}}
    return described
