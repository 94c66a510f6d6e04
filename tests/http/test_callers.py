"""Tokens: who may do what, in which namespace, and how fast that changes on every process."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator

import httpx2
import pytest

from headgate.gateway.settings import RateLimit
from headgate.gateway.tokens import Tokens
from headgate.http.routes import Access
from headgate.store import open_store
from tests.http.sample_process import TIGHT, SampleProcess, SampleStarter
from tests.http.test_requests import problem
from tests.topology import Standalone, Stopwatch, Topology, eventually, wait_until

ROUTES = {"read": "/sample/read/a", "service": "/sample/service/a", "admin": "/sample/default/admin/a"}


@pytest.fixture
def name() -> str:
    return f"token-{secrets.token_hex(4)}"


def make(admin: httpx2.Client, name: str, role: str, namespace: str | None = None) -> str:
    """Make a token and give its secret."""
    request = {"name": name, "role": role} | ({"namespace": namespace} if namespace else {})
    response = admin.post("/api/admin/tokens", json=request)
    assert response.status_code == 201, response.text
    return str(response.json()["token"])


def in_force(client: httpx2.Client, token: str, path: str = ROUTES["read"]) -> bool:
    return client.get(path, headers={"X-API-Token": token}).status_code == 200


@pytest.mark.parametrize("path", [*ROUTES.values(), "/api/system", "/api/admin/tokens", "/metrics"])
def test_without_a_valid_token_nobody_gets_in(anyone: httpx2.Client, sample: SampleProcess, path: str) -> None:
    response = anyone.get(path)
    problem(response, 401, "unauthorized")
    assert response.headers["www-authenticate"].startswith("Bearer")
    for wrong in ("", "x", sample.token[:-1], sample.token + "x", sample.token.upper(), "hg_000000000000_" + "x" * 43):
        problem(anyone.get(path, headers={"X-API-Token": wrong}), 401, "unauthorized")
    problem(anyone.get(path, headers={"Authorization": f"Basic {sample.token}"}), 401, "unauthorized")
    problem(anyone.get(f"{path}?token={sample.token}"), 401, "unauthorized")


@pytest.mark.parametrize("role", ["read", "service", "admin"])
def test_a_role_may_do_what_lesser_roles_may(anyone: httpx2.Client, admin: httpx2.Client, name: str, role: str) -> None:
    token = make(admin, name, role)
    wait_until(lambda: in_force(anyone, token), 2)
    allowed = {"read": ["read"], "service": ["read", "service"], "admin": ["read", "service", "admin"]}[role]
    for needed, path in ROUTES.items():
        for headers in (
            {"X-API-Token": token},
            {"Authorization": f"Bearer {token}"},
            {"Authorization": f"bearer {token}"},
        ):
            response = anyone.get(path, headers=headers)
            if needed in allowed:
                assert response.json()["caller"] == name
            else:
                problem(response, 403, "forbidden")
    assert admin.delete(f"/api/admin/tokens/{name}").status_code == 204


def test_only_an_admin_makes_and_revokes_tokens(anyone: httpx2.Client, admin: httpx2.Client, name: str) -> None:
    headers = {"X-API-Token": make(admin, name, "service")}
    wait_until(lambda: in_force(anyone, headers["X-API-Token"]), 2)
    problem(anyone.get("/api/admin/tokens", headers=headers), 403, "forbidden")
    request = {"name": "mine", "role": "admin"}
    problem(anyone.post("/api/admin/tokens", json=request, headers=headers), 403, "forbidden")
    problem(anyone.delete(f"/api/admin/tokens/{name}", headers=headers), 403, "forbidden")
    assert "mine" not in admin.get("/api/admin/tokens").text


def test_token_is_shown_once_and_kept_hashed(
    admin: httpx2.Client, sample: SampleProcess, server: Topology, name: str
) -> None:
    token = make(admin, name, "service", "eu")
    assert re.fullmatch(r"hg_[0-9a-f]{12}_[\w-]{43}", token)
    listed = admin.get("/api/admin/tokens")
    mine = next(each for each in listed.json()["tokens"] if each["name"] == name)
    assert {key: mine[key] for key in ("role", "namespace", "createdBy")} == {
        "role": "service", "namespace": "eu", "createdBy": "admin",
    }  # fmt: skip
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:.]+Z", mine["createdAt"])
    assert token not in listed.text
    key = f"{sample.prefix}:token:{{default/tokens}}:tokens"
    stored = str(server.primary_of(key).command("HGETALL", key))
    assert name in stored
    assert token not in stored
    assert token.rpartition("_")[2] not in stored
    assert token not in sample.log


@pytest.mark.parametrize(
    ("request_body", "field"),
    [
        ({"name": "a"}, "role"),
        ({"name": "a", "role": "root"}, "role"),
        ({"name": "a", "role": "public"}, "role"),
        ({"name": "{a}", "role": "read"}, "name"),
        ({"name": "", "role": "read"}, "name"),
        ({"name": "a b", "role": "read"}, "name"),
        ({"name": "x" * 129, "role": "read"}, "name"),
        ({"name": "a", "role": "read", "namespace": "*"}, "namespace"),
        ({"name": "a", "role": "read", "expires": 1}, "expires"),
    ],
)
def test_bad_token_requests_write_nothing(admin: httpx2.Client, request_body: dict[str, object], field: str) -> None:
    before = admin.get("/api/admin/tokens").text
    document = problem(admin.post("/api/admin/tokens", json=request_body), 422, "invalid_request")
    assert document["field"] == field
    assert admin.get("/api/admin/tokens").text == before


def test_name_belongs_to_one_token_at_a_time(admin: httpx2.Client, name: str) -> None:
    first = make(admin, name, "read")
    problem(admin.post("/api/admin/tokens", json={"name": name, "role": "read"}), 409, "token_exists")
    assert admin.delete(f"/api/admin/tokens/{name}").status_code == 204
    assert admin.delete(f"/api/admin/tokens/{name}").status_code == 204
    problem(admin.delete(f"/api/admin/tokens/{name}-never"), 404, "token_unknown")
    assert make(admin, name, "read") != first


@pytest.fixture
def limited(admin: httpx2.Client, anyone: httpx2.Client, name: str) -> Iterator[dict[str, str]]:
    """The headers of a token that may only be used in the namespace `eu`."""
    token = make(admin, name, "admin", "eu")
    wait_until(lambda: in_force(anyone, token), 2)
    yield {"X-API-Token": token}
    admin.delete(f"/api/admin/tokens/{name}")


def test_limited_token_works_in_its_namespace_only(anyone: httpx2.Client, limited: dict[str, str]) -> None:
    assert anyone.get(ROUTES["read"], headers=limited).json()["namespace"] == "eu"
    assert anyone.get(f"{ROUTES['read']}?namespace=eu", headers=limited).json()["namespace"] == "eu"
    assert anyone.get("/sample/eu/admin/a", headers=limited).json()["namespace"] == "eu"
    problem(anyone.get(f"{ROUTES['read']}?namespace=default", headers=limited), 403, "forbidden")
    problem(anyone.get("/sample/default/admin/a", headers=limited), 403, "forbidden")
    problem(anyone.get("/sample/search?name=a&namespace=us", headers=limited), 403, "forbidden")


@pytest.mark.parametrize("path", ["/api/system", "/metrics", "/api/admin/tokens", "/sample/mounted/x"])
def test_limited_token_sees_nothing_that_belongs_to_all(
    anyone: httpx2.Client, limited: dict[str, str], path: str
) -> None:
    problem(anyone.get(path, headers=limited), 403, "forbidden")


def test_public_routes_know_a_caller_but_need_none(anyone: httpx2.Client, sample: SampleProcess) -> None:
    search = "/sample/search?name=a"
    assert anyone.get(search, headers={"X-API-Token": sample.token}).json()["caller"] == "admin"
    assert anyone.get(search, headers={"X-API-Token": "unknown"}).json()["caller"] == "anonymous"
    assert anyone.get(search, headers={"Authorization": "Bearer of-the-site"}).json()["caller"] == "anonymous"


def test_authorization_belongs_to_the_application_where_it_says_so(
    anyone: httpx2.Client, sample: SampleProcess
) -> None:
    problem(anyone.get("/sample/mounted/a", headers={"Authorization": f"Bearer {sample.token}"}), 401, "unauthorized")
    both = {"Authorization": "Bearer of-the-upstream", "X-API-Token": sample.token}
    assert anyone.get("/sample/mounted/a", headers=both).status_code == 200


def test_guessing_tokens_is_slowed_down(fresh_sample: SampleStarter) -> None:
    sample = fresh_sample(limits={"tight": TIGHT, "unauthorized": RateLimit(per_second=0.1, burst=5)})
    with sample.client() as client:
        guesses = [client.get("/api/system", headers={"X-API-Token": f"guess{i}"}) for i in range(7)]
        assert [guess.status_code for guess in guesses[:5]] == [401] * 5
        problem(guesses[-1], 429, "rate_limited")
        assert client.get("/api/system", headers={"X-API-Token": sample.token}).status_code == 200


@pytest.mark.alone
def test_token_is_known_and_revoked_within_a_second_on_every_process(fresh_sample: SampleStarter, name: str) -> None:
    first = fresh_sample(workers=2)
    second = fresh_sample(prefix=first.prefix)
    clients = [second.client()]
    reached: set[int] = set()
    while len(reached) < 2 and len(clients) < 100:  # a connection stays with the process that took it
        clients.append(first.client())
        reached.add(clients[-1].get("/sample/search?name=a").json()["pid"])

    def answers(token: str) -> list[httpx2.Response]:
        return [client.get(ROUTES["read"], headers={"X-API-Token": token}) for client in clients]

    with first.admin() as admin:
        token = make(admin, name, "read")
        watch = Stopwatch()
        wait_until(lambda: all(each.status_code == 200 for each in answers(token)), 5)
        assert watch.seconds < 1.0
        assert len({each.json()["pid"] for each in answers(token)}) == 3
        assert admin.delete(f"/api/admin/tokens/{name}").status_code == 204
        watch = Stopwatch()
        wait_until(lambda: all(each.status_code == 401 for each in answers(token)), 5)
        assert watch.seconds < 1.0
    for client in clients:
        client.close()


@pytest.mark.alone
async def test_revocation_is_in_force_within_a_second_without_a_hint(
    fresh_sample: SampleStarter, server: Topology, name: str
) -> None:
    sample = fresh_sample()
    silent = server.add_user(name, f"~{sample.prefix}:* &{sample.prefix}:* +@all -publish")
    with sample.client() as client:
        async with open_store(sample.store_settings(silent)) as store:
            tokens = Tokens(store)
            text, _ = await tokens.create(name, Access.READ, by="test")
            await eventually(lambda: in_force(client, text), 5)
            assert await tokens.revoke(name) == 1
            watch = Stopwatch()
            await eventually(lambda: not in_force(client, text), 5)
            assert watch.seconds < 1.0
            assert await tokens.revoke(name) == 0


@pytest.mark.topology("standalone")
def test_what_a_loss_of_the_store_took_is_written_back(
    fresh_server: Callable[..., Standalone], fresh_sample: SampleStarter
) -> None:
    node = fresh_server().node
    sample = fresh_sample(node.url, workers=2)
    with sample.admin() as admin, sample.client() as client:
        kept, gone = make(admin, "kept", "read"), make(admin, "gone", "read")
        assert admin.delete("/api/admin/tokens/gone").status_code == 204
        wait_until(lambda: in_force(client, kept) and not in_force(client, gone))
        node.command("FLUSHALL")
        key = f"{sample.prefix}:token:{{default/tokens}}"
        wait_until(lambda: node.command("HLEN", f"{key}:tokens") == 1, 5, "the token is back")
        wait_until(lambda: node.command("ZCARD", f"{key}:revoked") == 1, 5, "the revocation is back")
        assert in_force(client, kept)
        assert [each["name"] for each in admin.get("/api/admin/tokens").json()["tokens"]] == ["kept"]
        newcomer = fresh_sample(node.url, prefix=sample.prefix)
        with newcomer.client() as other:
            assert in_force(other, kept)
            assert not in_force(other, gone)


@pytest.mark.topology("standalone")
def test_old_backup_does_not_bring_a_revoked_token_back(
    fresh_server: Callable[..., Standalone], fresh_sample: SampleStarter
) -> None:
    node = fresh_server().node
    sample = fresh_sample(node.url)
    key = f"{sample.prefix}:token:{{default/tokens}}"
    with sample.admin() as admin, sample.client() as client:
        token = make(admin, "stolen", "admin")
        wait_until(lambda: in_force(client, token))
        node.command("COPY", f"{key}:tokens", f"{key}:backup-tokens")
        node.command("COPY", f"{key}:meta", f"{key}:backup-meta")
        assert admin.delete("/api/admin/tokens/stolen").status_code == 204
        wait_until(lambda: not in_force(client, token))
        for part in ("tokens", "meta"):
            node.command("COPY", f"{key}:backup-{part}", f"{key}:{part}", "REPLACE")
        node.command("DEL", f"{key}:revoked")
        wait_until(lambda: node.command("ZCARD", f"{key}:revoked") == 1, 5, "the revocation is back")
        assert node.command("HLEN", f"{key}:tokens") == 0
        assert not in_force(client, token)
