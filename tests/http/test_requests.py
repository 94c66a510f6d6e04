"""The shapes of requests, and which problem each bad one gets: never a 500."""

from __future__ import annotations

import json
import socket
from urllib.parse import quote

import httpx2
import pytest

from tests.http.sample_process import SampleProcess, SampleStarter

BAD_NAMES = [
    "{a}", "{}", "}{", "a}:{b", "*", "?", "[x]", "a b", "x" * 129, "\x00", "\r\nX-A: b", '\n{"level":"error"}', "\x1b[31m",
    "\u202e", "\u200b", "é", "👩‍👩‍👧", "<img src=x onerror=alert(1)>", "' OR 1=1", "return redis.call('FLUSHALL')", "１０", "../..",
]  # fmt: skip


def problem(response: httpx2.Response, status: int, code: str) -> dict[str, object]:
    """Check that an answer is a whole problem document of this kind."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, object] = response.json()
    assert document["code"] == code
    assert document["status"] == status
    assert document["type"] == f"/docs/problems#{code}"
    assert document["title"]
    assert document["detail"]
    assert document["requestId"] == response.headers["x-request-id"]
    return document


def test_query_becomes_a_struct(anyone: httpx2.Client) -> None:
    query = "name=a%20b%2B&count=7&share=1e-2&deep=true&tag=x&tag=y+z&namespace=other"
    found = anyone.get(f"/sample/search?{query}").json()
    assert found | {"pid": 0, "client": ""} == {
        "name": "a b+", "count": 7, "share": 0.01, "deep": True, "tag": ["x", "y z"], "namespace": "other",
        "caller": "anonymous", "client": "", "pid": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("name=a&nme=b", "nme"),
        ("count=1", "name"),
        ("name=a&count=x", "count"),
        ("name=a&count=1.5", "count"),
        ("name=a&count=", "count"),
        ("name=a&count=１０", "count"),
        ("name=a&name=b", "name"),
        ("name=a&share=nan", "share"),
        ("name=a&share=Infinity", "share"),
        ("name=a&share=1e400", "share"),
        ("name=a&deep=maybe", "deep"),
        ("name=%ff", "name"),
        ("%ff=a", "a parameter's name"),
        ("name=a&namespace={x}", "namespace"),
        ("name=a&" + "x" * 3000 + "=1", "x" * 64),
        ("name=a&%00%1b%5b=1", "  ["),
    ],
)
def test_bad_query_names_its_field(anyone: httpx2.Client, query: str, field: str) -> None:
    document = problem(anyone.get(f"/sample/search?{query}"), 422, "invalid_request")
    assert document["field"] == field


def test_empty_parts_of_a_query_are_passed_over(anyone: httpx2.Client) -> None:
    assert anyone.get("/sample/search?&name=a&&").status_code == 200


def test_body_becomes_a_struct(anyone: httpx2.Client) -> None:
    note = {"title": "a", "lines": ["b"], "inner": {"weight": 5}, "extra": {"x": [None, 1.5, {"y": True}]}}
    response = anyone.post("/sample/notes", json=note)
    assert response.status_code == 201
    assert response.json() == {"note": note, "bytes": 0}
    assert response.headers["etag"] == '"1"'


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "title"),
        ([], None),
        (None, None),
        ("x", None),
        ({"title": 1}, "title"),
        ({"title": None}, "title"),
        ({"title": "a", "titel": "b"}, "titel"),
        ({"title": "a", "lines": ["b", 3]}, "lines[1]"),
        ({"title": "a", "inner": {"weight": 101}}, "inner.weight"),
        ({"title": "a", "inner": {"weight": -1}}, "inner.weight"),
        ({"title": "a", "inner": {"weight": "10"}}, "inner.weight"),
        ({"title": "a", "inner": {"weight": 0.5}}, "inner.weight"),
        ({"title": "a", "inner": {"weight": True}}, "inner.weight"),
        ({"title": "a", "inner": {"weight": 2**70}}, "inner.weight"),
        ({"title": "a", "inner": {"wait": 1}}, "inner.wait"),
        ({"title": "a", "\n\x00{": 1}, "  {"),
        ({"title": ""}, "title"),
        ({"title": "x" * 65}, "title"),
        ({"title": "a\u0000b"}, "title"),
        ({"title": "a\u202eb"}, "title"),
    ],
)
def test_body_that_does_not_fit_names_its_field(anyone: httpx2.Client, body: object, field: str | None) -> None:
    document = problem(anyone.post("/sample/notes", content=json.dumps(body)), 422, "invalid_request")
    assert document.get("field") == field


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"title": "a"} trailing',
        b'\xef\xbb\xbf{"title": "a"}',
        b'{"title": "\xff"}',
        b'{"\xed\xa0\x80": 1}',
        b'{"title": "\\ud800"}',
        b'{"title": "a\nb"}',
        b'{"title": "a", "inner": {"weight": NaN}}',
        b'{"title": "a", "extra": {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        b'{"title": "a", "extra": ' + b'{"x":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        b'{"title": "a", ' + "title".encode("utf-16"),
    ],
)
def test_body_that_is_not_json_is_malformed(anyone: httpx2.Client, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    problem(anyone.post("/sample/notes", content=body, headers=headers), 400, "malformed")


def test_numbers_out_of_range_are_refused(anyone: httpx2.Client) -> None:
    for number in (b"1e400", b"9" * 5000):
        body = b'{"title": "a", "extra": {"x": ' + number + b"}}"
        problem(anyone.post("/sample/notes", content=body), 422, "invalid_request")


def test_of_repeated_keys_the_last_counts(anyone: httpx2.Client) -> None:
    response = anyone.post("/sample/notes", content=b'{"title": "a", "title": "b"}')
    assert response.json()["note"]["title"] == "b"


def test_body_too_large_is_refused_before_it_is_read(sample: SampleProcess) -> None:
    head = b"POST /sample/notes HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000000\r\nConnection: close\r\n\r\n"
    assert b" 413 " in sample.exchange(head).split(b"\r\n")[0]


def test_body_too_large_is_refused_while_it_is_read(anyone: httpx2.Client) -> None:
    def endless() -> list[bytes]:
        return [b" " * 65_536] * 40

    document = problem(anyone.post("/sample/notes", content=iter(endless())), 413, "too_large")
    assert document["limit"] == 1_048_576
    problem(anyone.post("/sample/notes", json={"title": "x" * 2_000_000}), 413, "too_large")


def test_route_may_have_a_limit_of_its_own(anyone: httpx2.Client) -> None:
    assert anyone.put("/sample/raw", content=b"\xff" * 1000).json()["bytes"] == 1000
    problem(anyone.put("/sample/raw", content=b"\xff" * 1001), 413, "too_large")


def test_optional_body_may_be_left_out(anyone: httpx2.Client) -> None:
    assert anyone.put("/sample/maybe").json()["note"] is None
    assert anyone.put("/sample/maybe", json={"title": "a"}).json()["note"]["title"] == "a"
    problem(anyone.put("/sample/maybe", json={"titel": "a"}), 422, "invalid_request")


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/json; charset=utf-16"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
def test_other_media_are_refused(anyone: httpx2.Client, headers: dict[str, str]) -> None:
    problem(anyone.post("/sample/notes", content=b'{"title": "a"}', headers=headers), 415, "media_unsupported")


@pytest.mark.parametrize(
    "kind", ["application/json; charset=UTF-8", "application/merge-patch+json", "Application/JSON"]
)
def test_every_spelling_of_json_is_taken(anyone: httpx2.Client, kind: str) -> None:
    assert anyone.post("/sample/notes", content=b'{"title": "a"}', headers={"content-type": kind}).status_code == 201


def test_client_that_does_not_send_its_body_is_told(fresh_sample: SampleStarter) -> None:
    sample = fresh_sample(body_seconds=0.3)
    head = b"POST /sample/notes HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\nConnection: close\r\n\r\n{"
    assert b'"code":"body_timeout"' in sample.exchange(head)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused(anyone: httpx2.Client, name: str) -> None:
    response = anyone.get(f"/sample/things/{quote(name, safe='')}")
    problem(response, 422, "invalid_request")


def test_names_in_a_path_are_decoded_once(anyone: httpx2.Client) -> None:
    assert anyone.get("/sample/things/a%3Ab").json()["name"] == "a:b"
    document = problem(anyone.get("/sample/things/a%2Fb"), 422, "invalid_request")
    assert document["field"] == "name"
    problem(anyone.get("/sample/things/%2561"), 422, "invalid_request")
    problem(anyone.get("/sample/things/%ff"), 422, "invalid_request")


@pytest.mark.parametrize(
    "path", ["/nope", "/sample", "/sample/search/", "//sample/search", "/sample//search", "/sample/./search", "/sample/things/", "/SAMPLE/search", "/%73ample/search", "/sample/things/a/b", "/docs/assets/../index.html", "/docs/assets/..%2f..%2fpyproject.toml"],
)  # fmt: skip
def test_other_paths_are_not_found(sample: SampleProcess, path: str) -> None:
    answer = sample.exchange(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b'"code":"not_found"' in answer


def test_wrong_method_says_which_are_right(anyone: httpx2.Client) -> None:
    response = anyone.delete("/sample/notes")
    problem(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "OPTIONS, POST"
    assert anyone.post("/sample/search").headers["allow"] == "GET, HEAD, OPTIONS"
    problem(anyone.request("BREW", "/sample/search"), 405, "method_not_allowed")


def test_head_is_get_without_a_body(anyone: httpx2.Client) -> None:
    response = anyone.head("/sample/search?name=a")
    assert response.status_code == 200
    assert response.content == b""
    assert int(response.headers["content-length"]) == len(anyone.get("/sample/search?name=a").content)
    assert anyone.head("/sample/search").status_code == 422
    assert anyone.head("/sample/count?name=a&count=9").headers["content-type"] == "text/event-stream"


def test_options_says_what_there_is(anyone: httpx2.Client) -> None:
    response = anyone.options("/sample/search")
    assert response.status_code == 204
    assert response.headers["allow"] == "GET, HEAD, OPTIONS"


def test_nothing_is_204(anyone: httpx2.Client) -> None:
    response = anyone.delete("/sample/nothing")
    assert response.status_code == 204
    assert "content-length" not in response.headers
    assert "content-type" not in response.headers


def test_problem_carries_what_the_handler_said(anyone: httpx2.Client) -> None:
    response = anyone.get("/sample/bare")
    document = problem(response, 409, "cupboard_bare")
    assert document["detail"] == "Nothing here."
    assert document["shelf"] == "upper"
    assert document["retryAfter"] == 2.2
    assert response.headers["retry-after"] == "3"


@pytest.mark.parametrize("way", ["", "prompt/"])
@pytest.mark.parametrize("name", ["broken", "unencodable"])
def test_what_goes_wrong_inside_stays_inside(anyone: httpx2.Client, sample: SampleProcess, way: str, name: str) -> None:
    response = anyone.get(f"/sample/{way}{name}")
    document = problem(response, 500, "internal")
    assert "secret" not in response.text
    errors = [json.loads(line) for line in sample.log.splitlines() if '"level":"error"' in line]
    assert next(line for line in errors if line["request_id"] == document["requestId"])["exception"]


@pytest.mark.parametrize("way", ["", "prompt/"])
def test_a_header_cannot_be_split_by_its_value(anyone: httpx2.Client, way: str) -> None:
    response = anyone.get(f"/sample/{way}split-header")
    assert response.headers["location"] == "/a%0D%0ASet-Cookie: b=c"
    assert "set-cookie" not in response.headers


def test_only_what_waits_gets_a_task(anyone: httpx2.Client) -> None:
    assert anyone.get("/sample/prompt/paused").json() == {"task": False}
    assert anyone.get("/sample/plain").json() == {"task": False}


def test_what_is_cut_off_is_no_answer(anyone: httpx2.Client) -> None:
    with pytest.raises(httpx2.TransportError):
        anyone.get("/sample/prompt/cut-off")
    assert anyone.get("/sample/plain").status_code == 200


def test_every_answer_is_safe_to_show_in_a_browser(anyone: httpx2.Client) -> None:
    for path in ("/sample/search?name=a", "/nope", "/sample/broken", "/sample/count?name=a&count=2"):
        headers = anyone.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"


def test_request_id_is_taken_or_made(anyone: httpx2.Client) -> None:
    taken = anyone.get("/sample/search?name=a", headers={"x-request-id": "Abc-1_2.3:4"})
    assert taken.headers["x-request-id"] == "Abc-1_2.3:4"
    made = {anyone.get("/nope").headers["x-request-id"] for _ in range(20)}
    assert len(made) == 20
    for bad in ("a b", "x" * 129, '"', "{"):
        response = anyone.get("/nope", headers={"x-request-id": bad})
        assert response.headers["x-request-id"] != bad
        assert response.json()["requestId"] == response.headers["x-request-id"]


def test_trace_is_continued_and_logged(anyone: httpx2.Client, sample: SampleProcess) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    parent = f"00-{trace}-00f067aa0ba902b7-01"
    response = anyone.get("/sample/search?name=a", headers={"traceparent": parent})
    assert response.headers["traceparent"] == parent
    line = next(line for line in sample.log.splitlines() if trace in line)
    assert json.loads(line)["request_id"] == response.headers["x-request-id"]
    other = anyone.get("/sample/search?name=b").headers["x-request-id"]
    assert not any(trace in line for line in sample.log.splitlines() if other in line)
    assert "traceparent" not in anyone.get("/sample/search?name=a", headers={"traceparent": "00-x-y-01"}).headers


def test_log_has_neither_queries_nor_tokens(anyone: httpx2.Client, sample: SampleProcess) -> None:
    anyone.get("/sample/search?name=hidden-in-query", headers={"X-API-Token": "hidden-in-header"})
    anyone.get("/sample/things/hidden-in-path", headers={"Authorization": "Bearer hidden-in-bearer"})
    assert '"operation":"GET /sample/things/{name}"' in sample.log
    assert "hidden-in" not in sample.log
    assert sample.token not in sample.log


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET http://elsewhere.example/sample/search?name=a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"POST /sample/notes HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /sample/notes HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST /sample/notes HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /sample/notes HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n",
        b"GET /sample/search HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET /sample/search HTTP/1.1\r\nHost: x\r\n" + b"X-A: a\r\n" * 10_000 + b"\r\n",
        b"GET /sample/search?" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /sample/se\x00arch HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /sample/search HTTP/1.1\r\nHost: x\r\n folded: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense",
    ],
)
def test_bad_http_never_is_a_500(sample: SampleProcess, anyone: httpx2.Client, request_bytes: bytes) -> None:
    with sample.connect() as connection:
        connection.settimeout(3)
        answer = b""
        try:
            connection.sendall(request_bytes)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(65_536)
        except OSError:
            pass  # closing on nonsense is as good an answer
    assert not answer.startswith(b"HTTP/1.1 5"), answer[:200]
    assert anyone.get("/sample/search?name=a").status_code == 200


def test_answers_of_mounted_applications_pass_through(admin: httpx2.Client, anyone: httpx2.Client) -> None:
    response = admin.get("/sample/mounted/a/b")
    assert response.text == "admin /sample/mounted/a/b"
    assert response.headers["x-request-id"]
    problem(admin.get("/sample/mounted/bare"), 409, "cupboard_bare")
    problem(anyone.get("/sample/mounted/a"), 401, "unauthorized")
    problem(anyone.get("/sample/mountedother"), 404, "not_found")
