"""The API's own documents: the OpenAPI file and the pages beside it."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import pytest

from headgate.arena.problems import Draining, OriginRefused, TicketMissing
from headgate.gateway.openapi_fields import EXAMPLES, FIELDS
from tests.processes import GatewayProcess

METHODS = {"get", "post", "put", "patch", "delete"}


@pytest.fixture
def document(anyone: httpx2.Client) -> dict[str, Any]:
    response = anyone.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    made: dict[str, Any] = response.json()
    return made


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        f"{method.upper()} {path}": operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method in METHODS
    }


def test_document_is_whole(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    assert set(re.findall(r"#/components/schemas/(\w+)", str(document))) <= set(document["components"]["schemas"])
    ids = [operation["operationId"] for operation in operations(document).values()]
    assert len(ids) == len(set(ids))


def test_parameters_bodies_and_answers_are_described(document: dict[str, Any]) -> None:
    search = operations(document)["GET /sample/search"]
    described = {parameter["name"]: parameter for parameter in search["parameters"]}
    assert set(described) == {"name", "count", "share", "deep", "tag", "namespace"}
    assert described["name"]["required"]
    assert described["count"]["schema"] == {"type": "integer", "default": 1}
    assert described["namespace"]["schema"]["default"] == "default"
    note = operations(document)["POST /sample/notes"]
    assert note["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Note"}
    assert note["responses"]["201"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Echo"}
    assert document["components"]["schemas"]["Note"]["additionalProperties"] is False


def test_every_problem_is_described_by_its_codes(document: dict[str, Any]) -> None:
    answers = operations(document)["POST /sample/notes"]["responses"]
    codes = {
        status: answer["content"]["application/problem+json"]["schema"]["properties"]["code"]["enum"]
        for status, answer in answers.items()
        if status >= "400"
    }
    assert codes == {
        "400": ["malformed"],
        "408": ["body_timeout"],
        "409": ["cupboard_bare"],
        "413": ["too_large"],
        "415": ["media_unsupported"],
        "422": ["invalid_request"],
        "503": ["store_unavailable"],
        "507": ["store_full"],
    }
    listed = {problem["code"]: problem for problem in document["x-problems"]}
    assert listed["cupboard_bare"] == {
        "code": "cupboard_bare",
        "status": 409,
        "title": "Cupboard bare",
        "detail": "There is nothing in the cupboard.",
    }
    named = set(re.findall(r"'enum': \['([a-z_]+)'\]", str(document["paths"])))
    assert named <= set(listed)


def test_who_may_call_is_described(document: dict[str, Any]) -> None:
    shown = operations(document)
    assert shown["GET /sample/search"]["security"] == []
    assert shown["GET /sample/service/{name}"]["security"] == [{"apiToken": ["service"]}, {"bearer": ["service"]}]
    assert {"401", "403"} <= set(shown["GET /sample/service/{name}"]["responses"])
    assert "GET /sample/broken" not in shown


def test_what_mounts_serve_is_described_too(gateway_process: GatewayProcess) -> None:
    document = httpx2.get(f"{gateway_process.url}/openapi.json").json()
    shown = operations(document)
    nginx = shown["GET /gate/nginx"]
    assert set(nginx["responses"]) >= {"200", "401"}
    assert nginx["security"] == []
    for path in ("/gate/forward", "/gate/envoy/{path}"):
        assert shown[f"GET {path}"]["x-any-method"]
        assert {"200", "302", "429"} <= set(shown[f"GET {path}"]["responses"])
    proxy = shown["POST /relay/{upstream}/{path}"]
    assert proxy["x-any-method"]
    assert proxy["security"] == [{"apiToken": ["service"]}], "Authorization is the upstream's"
    assert {"200", "202", "404", "502", "504"} <= set(proxy["responses"])
    assert {parameter["name"] for parameter in proxy["parameters"]} >= {"upstream", "path", "X-User-Id"}


def test_every_parameter_is_explained(gateway_process: GatewayProcess) -> None:
    document = httpx2.get(f"{gateway_process.url}/openapi.json").json()
    unexplained = {
        (name, each["name"])
        for name, operation in operations(document).items()
        for each in operation["parameters"]
        if not each.get("description")
    }
    assert unexplained == set()


def test_the_largest_page_is_told(gateway_process: GatewayProcess) -> None:
    document = httpx2.get(f"{gateway_process.url}/openapi.json").json()
    for path in ("/cfg/v1/{namespace}", "/sd/v1/instances", "/sd/v1/services"):
        parameters = {each["name"]: each for each in document["paths"][path]["get"]["parameters"]}
        assert "1,000" in parameters["limit"]["description"]


WRITTEN_FIRST = (
    "PolicyChange", "QueueView", "Auto", "Bypass", "Theme", "EntryRequest", "Entry", "Status", "Eta", "RedeemRequest",
    "Redeemed", "HeartbeatRequest", "Upstream", "Limit", "Retry", "Record", "Check", "AcquireRequest", "Acquired",
    "PublishRequest", "Published",
)  # fmt: skip


def test_fields_are_explained_and_no_explanation_is_of_a_field_that_is_gone(gateway_process: GatewayProcess) -> None:
    document = httpx2.get(f"{gateway_process.url}/openapi.json").json()
    structs = document["components"]["schemas"]
    asked = [each for operation in operations(document).values() for each in operation["parameters"]]
    parameters = {(each["name"], each.get("description")) for each in asked}
    for name in WRITTEN_FIRST:
        unexplained = [field for field, schema in structs[name]["properties"].items() if not schema.get("description")]
        assert unexplained == [], name
    for name, words in FIELDS.items():
        for field, text in words.items():
            shown = structs.get(name, {}).get("properties", {}).get(field, {}).get("description")
            assert shown == text or (field, text) in parameters, f"{name}.{field}"
    for name, example in EXAMPLES.items():
        assert structs[name]["examples"] == [example]
        assert example.keys() <= structs[name]["properties"].keys()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/api/admin/queues/example"),
        ("PUT", "/api/queue/servers/example"),
        ("POST", "/sd/v1/instances"),
        ("PUT", "/api/admin/upstreams/example"),
        ("PUT", "/cfg/v1/example/price"),
    ],
)
def test_an_example_is_accepted_as_it_stands(gateway_process: GatewayProcess, method: str, path: str) -> None:
    document = httpx2.get(f"{gateway_process.url}/openapi.json").json()
    generic = path.replace("example", "{}").replace("price", "{}")
    (operation,) = (
        found for name, found in operations(document).items() if re.sub(r"{\w+}", "{}", name) == f"{method} {generic}"
    )
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    (example,) = document["components"]["schemas"][reference.rpartition("/")[2]]["examples"]
    with httpx2.Client(base_url=gateway_process.url, headers={"X-API-Token": gateway_process.token}) as client:
        if "queue" in example:
            client.put(f"/api/admin/queues/{example['queue']}", json={})
        answer = client.request(method, path, json=example)
    assert answer.status_code in (200, 201), answer.text


@pytest.mark.parametrize("kind", [TicketMissing, OriginRefused, Draining])
def test_problems_that_an_arena_points_to_are_listed_in_its_words(
    document: dict[str, Any], kind: type[TicketMissing | OriginRefused | Draining]
) -> None:
    listed = {problem["code"]: problem for problem in document["x-problems"]}
    problem = kind()
    told = {"code": problem.code, "status": problem.status, "title": problem.title, "detail": problem.detail}
    assert listed[kind.code] == told


@pytest.mark.parametrize("path", ["/docs", "/docs/problems"])
def test_pages_run_nothing_but_our_own_files(anyone: httpx2.Client, path: str) -> None:
    response = anyone.get(path)
    policy = response.headers["content-security-policy"]
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", response.text)
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=", response.text)
    for asset in re.findall(r"/docs/assets/[\w.]+", response.text):
        assert anyone.get(asset).status_code == 200


def test_page_that_is_known_is_not_sent_again(anyone: httpx2.Client) -> None:
    first = anyone.get("/docs/assets/docs.js")
    assert first.headers["content-type"] == "text/javascript; charset=utf-8"
    again = anyone.get("/docs/assets/docs.js", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.content == b""
    assert "content-length" not in again.headers


def test_front_door_leads_to_the_console(anyone: httpx2.Client) -> None:
    response = anyone.get("/")
    assert response.status_code == 302
    assert response.headers["location"] == "/console"
