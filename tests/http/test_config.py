"""Config over HTTP, in the SDK's two modes, and from the command line."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from headgate.config.live_settings import EdgeLimits
from headgate.gateway.settings import LIMITS
from headgate.kit.problems import StoreUnavailable, VersionConflict
from headgate.sdk import Changed, ConfigMarked, ContentType, Draft, Headgate, Present, Update
from tests.processes import Gateway, GatewayProcess
from tests.topology import FaultyProxy, Topology, eventually

pytestmark = pytest.mark.anyio


class Limits(msgspec.Struct, frozen=True):
    players: int
    motd: str = ""


@pytest.fixture
def namespace() -> str:
    return f"n{secrets.token_hex(4)}"


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=gateway.url, headers={"X-API-Token": gateway.token}, timeout=20) as made:
        yield made


@pytest.fixture(params=["store", "http"])
async def hg(
    request: pytest.FixtureRequest, server: Topology, gateway_process: GatewayProcess, tmp_path: Path
) -> AsyncIterator[Headgate]:
    url = gateway_process.url if request.param == "http" else server.url
    async with Headgate(url, token=gateway_process.token, prefix=gateway_process.prefix, snapshot_dir=tmp_path) as made:
        yield made


async def test_the_life_of_a_value(client: httpx2.AsyncClient, namespace: str) -> None:
    path = f"/cfg/v1/{namespace}/limits/eu"
    made = await client.put(path, json={"content": '{"a": 1}', "contentType": "application/json", "reason": "first"})
    assert (made.status_code, made.json()["version"], made.headers["etag"]) == (200, 1, '"1"')
    got = await client.get(path)
    assert got.json()["content"] == '{"a": 1}'
    assert {"contentType", "version", "updatedAt", "updatedBy"} <= set(got.json())
    assert (await client.get(path, headers={"If-None-Match": '"1"'})).status_code == 304
    second = await client.put(path, json={"content": '{"a": 2}'}, headers={"If-Match": '"1"'})
    assert second.json()["version"] == 2
    lost = await client.put(path, json={"content": '{"a": 3}'}, headers={"If-Match": '"1"'})
    assert (lost.status_code, lost.json()["code"], lost.json()["version"]) == (412, "version_conflict", 2)
    assert (await client.put(path, json={"content": "{}"}, headers={"If-None-Match": "*"})).status_code == 412
    for junk in ('"1"', "junk", '"a", "b"'):
        refused = await client.put(path, json={"content": "{}"}, headers={"If-None-Match": junk})
        assert (refused.status_code, refused.json()["field"]) == (422, "If-None-Match"), junk
    bad = await client.put(path, json={"content": "{", "contentType": "json"})
    assert (bad.status_code, bad.json()["code"], bad.json()["line"]) == (422, "content_invalid", 1)
    back = await client.post(f"{path}/rollback", json={"version": 1})
    assert back.json()["version"] == 3
    gone = await client.delete(path, headers={"If-Match": '"3"'})
    assert gone.json()["version"] == 4
    assert (await client.get(path)).status_code == 404
    assert (await client.delete(path)).status_code == 404
    versions = (await client.get(f"{path}/history")).json()["versions"]
    assert [(each["version"], each["kind"]) for each in versions] == [
        (4, "removed"),
        (3, "put"),
        (2, "put"),
        (1, "put"),
    ]
    assert versions[3]["reason"] == "first"


async def test_a_batch_is_all_or_none(client: httpx2.AsyncClient, namespace: str) -> None:
    values: list[dict[str, Any]] = [{"key": "a", "content": "1"}, {"key": "b", "content": "2", "version": 5}]
    assert (await client.post(f"/cfg/v1/{namespace}", json={"values": values})).status_code == 412
    values[1]["version"] = 0
    made = await client.post(f"/cfg/v1/{namespace}", json={"values": values, "reason": "both"})
    assert made.json()["versions"] == {"a": 1, "b": 1}
    listed = (await client.get(f"/cfg/v1/{namespace}")).json()
    assert [each["key"] for each in listed["values"]] == ["a", "b"]


@pytest.mark.parametrize("key", ["watch", "a/history", "a%20b", "a//b", "x" * 129, "%2e%2e/a"])
async def test_keys_that_cannot_be_are_refused(client: httpx2.AsyncClient, namespace: str, key: str) -> None:
    response = await client.put(f"/cfg/v1/{namespace}/{key}", json={"content": "x"})
    assert response.status_code in (405, 422), response.text


async def test_secrets_are_masked_for_readers_and_tokens_keep_to_their_namespace(
    client: httpx2.AsyncClient, gateway: Gateway, namespace: str
) -> None:
    await client.put(f"/cfg/v1/{namespace}/password", json={"content": "hush", "secret": True})
    await client.delete(f"/cfg/v1/{namespace}/password")
    await client.put(f"/cfg/v1/{namespace}/password", json={"content": "hush2"})
    await client.put(f"/cfg/v1/{namespace}/opened", json={"content": "hush3", "secret": True})
    await client.put(f"/cfg/v1/{namespace}/opened", json={"content": "open", "secret": False})

    async def token(role: str) -> httpx2.AsyncClient:
        body = {"name": f"t{secrets.token_hex(4)}", "role": role, "namespace": namespace}
        made = await client.post("/api/admin/tokens", json=body)
        assert made.status_code in (200, 201), made.text
        return httpx2.AsyncClient(base_url=gateway.url, headers={"X-API-Token": made.json()["token"]})

    async with await token("read") as reader, await token("service") as service:

        async def accepted() -> bool:
            answers = [await one.get(f"/cfg/v1/{namespace}/password") for one in (reader, service)]
            return all(answer.status_code == 200 for answer in answers)

        await eventually(accepted)
        for path in (f"/cfg/v1/{namespace}/password", f"/cfg/v1/{namespace}", f"/cfg/v1/{namespace}/password/history"):
            assert "hush" not in (await reader.get(path)).text, path
            assert "hush" in (await service.get(path)).text
        opened = f"/cfg/v1/{namespace}/opened/history"
        assert "hush" not in (await reader.get(opened)).text, "what was secret once is in the difference"
        assert "hush3" in (await service.get(opened)).text
        async with reader.stream("GET", f"/cfg/v1/{namespace}/watch") as stream:
            told = b""
            async for chunk in stream.aiter_bytes():
                told += chunk
                if b"event: bookmark" in told:
                    break
        assert b"password" in told
        assert b"hush" not in told
        assert (await reader.put(f"/cfg/v1/{namespace}/a", json={"content": "x"})).status_code == 403
        assert (await service.put(f"/cfg/v1/{namespace}/a", json={"content": "x"})).status_code == 200
        assert (await service.get("/cfg/v1/other/a")).status_code == 403
        assert (await service.get("/cfg/v1/other/watch")).status_code == 403
    assert "hush" not in gateway.process.log


async def test_whoever_has_the_version_is_not_sent_it_again(client: httpx2.AsyncClient, namespace: str) -> None:
    path = f"/cfg/v1/{namespace}/a"
    await client.put(path, json={"content": "x"})
    found = await client.get(path)
    assert found.headers["cache-control"] == "private, no-cache", "a secret is not for a cache that others share"
    for given, status in (('"1"', 304), ('W/"1"', 304), ('"0", "1"', 304), ("*", 304), ('"2"', 200), ("1", 200)):
        assert (await client.get(path, headers={"If-None-Match": given})).status_code == status, given


async def test_the_document_names_the_conditions(client: httpx2.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]

    def headers(path: str, method: str) -> set[str]:
        return {each["name"] for each in paths[path][method].get("parameters", ()) if each["in"] == "header"}

    key, watch = "/cfg/v1/{namespace}/{key}", "/cfg/v1/{namespace}/watch"
    assert headers(key, "put") == {"If-Match", "If-None-Match"}
    assert headers(key, "delete") == headers(f"{key}/rollback", "post") == {"If-Match"}
    assert "get" in paths[f"{key}/history"]
    assert headers(key, "get") == headers("/sd/v1/instances", "get") == {"If-None-Match"}
    assert headers(watch, "get") == headers("/sd/v1/watch", "get") == {"Last-Event-ID"}
    assert "304" in paths[key]["get"]["responses"]
    assert "304" in paths["/sd/v1/instances"]["get"]["responses"]


async def test_a_batch_keeps_content_types_and_checks_by_them(client: httpx2.AsyncClient, namespace: str) -> None:
    space = f"/cfg/v1/{namespace}"
    await client.put(f"{space}/a", json={"content": "{}", "contentType": "json"})
    bad = await client.post(space, json={"values": [{"key": "a", "content": "not json"}]})
    assert (bad.status_code, bad.json()["code"]) == (422, "content_invalid")
    good = await client.post(space, json={"values": [{"key": "a", "content": "[1]"}]})
    assert good.json()["versions"] == {"a": 2}
    assert (await client.get(f"{space}/a")).json()["contentType"] == "json"


async def test_a_position_that_is_none_is_refused(client: httpx2.AsyncClient, namespace: str) -> None:
    refused = await client.get(f"/cfg/v1/{namespace}/watch", headers={"Last-Event-ID": "yesterday"})
    assert (refused.status_code, refused.json()["field"]) == (422, "Last-Event-ID")


async def test_own_settings_show_their_defaults_and_come_into_force(
    client: httpx2.AsyncClient, gateway: Gateway
) -> None:
    shown = (await client.get("/cfg/v1/headgate")).json()["definitions"]
    assert {each["key"] for each in shown} == {"log/level", "edge/limits", "alerts/target"}
    refused = await client.put(
        "/cfg/v1/headgate/log/level", json={"content": '{"level": "loud"}', "contentType": "json"}
    )
    assert refused.status_code == 422
    made = await client.put("/cfg/v1/headgate/log/level", json={"content": '{"level": "debug"}', "contentType": "json"})
    assert made.status_code == 200
    await eventually(lambda: "live setting in force" in gateway.process.log, 5)
    await client.delete("/cfg/v1/headgate/log/level")


async def test_both_modes_publish_and_read(hg: Headgate, namespace: str) -> None:
    made = await hg.config.set(namespace, "a", "one", reason="why")
    assert made.version == 1
    with pytest.raises(VersionConflict):
        await hg.config.set(namespace, "a", "two", version=7)
    await hg.config.publish(namespace, [Draft("a", "two", expected=1), Draft("b", "x")])
    assert sorted(value.key for value in await hg.config.list(namespace)) == ["a", "b"]
    await hg.config.roll_back(namespace, "a", 1)
    assert [each.content for each in await hg.config.history(namespace, "a")] == ["one", "two", "one"]
    await hg.config.delete(namespace, "b")
    assert (await hg.config.get(namespace, "a", version=2)).content == "two"


async def test_a_live_value_is_typed_and_always_current(hg: Headgate, namespace: str) -> None:
    await hg.config.set(namespace, "limits", '{"players": 10}', content_type=ContentType.JSON)
    live = await hg.config.live(namespace, "limits", Limits)
    assert (live.value, live.players, live.stale) == (Limits(10), 10, False)
    heard: list[Changed] = []

    async def listen(changed: Changed) -> None:
        heard.append(changed)

    def raising(changed: Changed) -> None:
        raise RuntimeError("a listener's own mistake")

    live.listen(raising)
    live.listen(listen)
    await eventually(lambda: len(heard) == 1)
    await hg.config.set(namespace, "limits", "players: 20", content_type=ContentType.YAML)
    await eventually(lambda: live.players == 20)
    await hg.config.set(namespace, "limits", '{"players": "many"}', content_type=ContentType.JSON)
    await eventually(lambda: live.error is not None)
    assert live.players == 20, "what does not fit is not taken"
    await hg.config.set(namespace, "limits", "players = 30", content_type=ContentType.TOML)
    await eventually(lambda: live.players == 30)
    await hg.config.delete(namespace, "limits")
    await eventually(lambda: live.removed)
    assert live.players == 30, "never empty"
    await eventually(lambda: [changed.version for changed in heard] == [1, 2, 4, 5])


async def test_a_watch_by_hand_resumes(hg: Headgate, namespace: str) -> None:
    await hg.config.set(namespace, "a", "one")
    position = 0
    async for happening in hg.config.watch(namespace):
        if isinstance(happening, Present):
            assert [value.content for value in happening.values] == ["one"]
        if isinstance(happening, ConfigMarked):
            position = happening.position
            break
    for text in ("two", "three"):
        await hg.config.publish(namespace, [Draft("a", text), Draft("b", text)])
    async for happening in hg.config.watch(namespace, position=position):
        if isinstance(happening, Update):
            assert [(value.key, value.content) for value in happening.values] == [("a", "three"), ("b", "three")]
            break


@pytest.mark.topology("standalone")
@pytest.mark.parametrize("mode", ["store", "http"])
async def test_an_outage_leaves_the_last_value_and_it_converges_afterwards(
    mode: str, server: Topology, gateway: Gateway, namespace: str, tmp_path: Path
) -> None:
    port = gateway.process.port if mode == "http" else server.primaries()[0].port
    async with FaultyProxy(port) as proxy:
        url = f"http://127.0.0.1:{proxy.port}" if mode == "http" else proxy.url

        def client() -> Headgate:
            return Headgate(url, token=gateway.token, prefix=gateway.process.prefix, snapshot_dir=tmp_path)

        async with client() as hg, Headgate(gateway.url, token=gateway.token) as other:
            await other.config.set(namespace, "limits", '{"players": 1}', content_type=ContentType.JSON)
            live = await hg.config.live(namespace, "limits", Limits)
            await proxy.refuse()
            await eventually(lambda: live.stale)
            assert live.players == 1
            for players in (2, 3, 4):
                text = f'{{"players": {players}}}'
                await other.config.set(namespace, "limits", text, content_type=ContentType.JSON)
            with pytest.raises(StoreUnavailable):
                await hg.config.set(namespace, "limits", "x")
            await proxy.accept()
            await eventually(lambda: live.players == 4 and not live.stale, 15)
        async with client() as hg:
            await proxy.refuse()
            live = await hg.config.live(namespace, "limits", Limits)
            assert (live.players, live.stale) == (4, True), "from the disk"
            await proxy.accept()
        for file in tmp_path.rglob("*.json"):
            file.write_bytes(b"rubbish")
        async with client() as hg:
            await proxy.refuse()
            with pytest.raises(StoreUnavailable):
                await hg.config.live(namespace, "limits", Limits)
            await proxy.accept()


async def test_closing_leaves_no_task(
    server: Topology, gateway_process: GatewayProcess, namespace: str, tmp_path: Path
) -> None:
    before = asyncio.all_tasks()
    async with Headgate(server.url, prefix=gateway_process.prefix, snapshot_dir=tmp_path) as hg:
        await hg.config.set(namespace, "a", "x")
        live = await hg.config.live(namespace, "a", str)
        live.listen(lambda changed: None)
    await eventually(lambda: asyncio.all_tasks() <= before)


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(gateway_process: GatewayProcess, tmp_path: Path) -> Run:
    def made(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ, "HEADGATE_URL": gateway_process.url, "HEADGATE_TOKEN": gateway_process.token, **more,
        }  # fmt: skip
        command = [sys.executable, "-m", "headgate", "config", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    return made


def test_the_commands(run: Run, namespace: str, tmp_path: Path) -> None:
    assert run("set", namespace, "a", "players = 1", "--type", "toml").returncode == 0
    assert run("get", namespace, "a").stdout == "players = 1\n"
    editor = tmp_path / "editor.sh"
    editor.write_text("#!/bin/sh\nsed -i s/1/2/ $1\n")
    editor.chmod(0o755)
    assert run("edit", namespace, "a", EDITOR=str(editor), VISUAL="").returncode == 0
    difference = run("diff", namespace, "a", "1")
    assert difference.returncode == 1
    assert "+players = 2" in difference.stdout
    assert run("rollback", namespace, "a", "1").returncode == 0
    rows = run("history", namespace, "a").stdout.splitlines()
    assert [row.split("\t")[0] for row in rows] == ["3", "2", "1"]
    refused = run("set", namespace, "a", "players = ")
    assert refused.returncode == 1
    assert "Line 1" in refused.stderr


def test_a_text_that_is_refused_is_kept(run: Run, namespace: str, tmp_path: Path) -> None:
    run("set", namespace, "a", "players = 1", "--type", "toml")
    drafts = tmp_path / "drafts"
    drafts.mkdir()
    editor = tmp_path / "editor.sh"
    editor.write_text("#!/bin/sh\necho 'players = ' > $1\n")
    editor.chmod(0o755)
    said = {"EDITOR": str(editor), "VISUAL": "", "TMPDIR": str(drafts)}
    refused = run("edit", namespace, "a", **said)
    assert refused.returncode == 1
    (kept,) = drafts.rglob("*.toml")
    assert kept.read_text() == "players = \n"
    again = f"headgate config set {namespace} a --file {kept} --type toml"
    assert again in refused.stderr
    kept.write_text("players = 3")
    assert run(*again.split()[2:]).returncode == 0
    other = [sys.executable, "-m", "headgate", "config", "set", namespace, "a", "players = 7"]
    editor.write_text(f"#!/bin/sh\n{' '.join(map(repr, other))} && sed -i s/3/4/ $1\n")
    overtaken = run("edit", namespace, "a", **said)
    assert overtaken.returncode == 1
    assert f"`headgate config get {namespace} a` shows what is there now" in overtaken.stderr
    assert "players = 4" in {path.read_text() for path in drafts.rglob("*.toml")}


def test_own_settings_are_json_and_listed_with_their_meaning(run: Run) -> None:
    listed = {row.split("\t")[0]: row for row in run("get", "headgate").stdout.splitlines()}
    assert set(listed) == {"log/level", "edge/limits", "alerts/target"}
    assert '{"perSecond":{}}\tRequests a second' in listed["edge/limits"]
    assert run("set", "headgate", "edge/limits", '{"perSecond": {"gate": 600}}').returncode == 0
    assert '{"perSecond": {"gate": 600}}' in run("get", "headgate").stdout
    assert run("set", "headgate", "edge/limits", "--delete").returncode == 0


def test_the_classes_that_may_be_named_are_the_edges() -> None:
    assert set(EdgeLimits.CLASSES) == set(LIMITS)


def test_a_version_that_was_never_made_is_told_the_newest(run: Run, namespace: str) -> None:
    run("set", namespace, "a", "x")
    refused = run("rollback", namespace, "a", "3")
    assert refused.returncode == 1
    assert refused.stderr == "headgate: There is no version 3 of a yet; the newest is 1.\n"


def test_export_and_import_as_files(run: Run, namespace: str, tmp_path: Path) -> None:
    run("set", namespace, "a/b.json", '{"x": 1}', "--type", "json")
    run("set", namespace, "old", "text")
    folder = tmp_path / "files"
    assert run("export", namespace, str(folder)).returncode == 0
    assert (folder / "a" / "b.json").read_text() == '{"x": 1}'
    (folder / "a" / "b.json").write_text('{"x": 2}')
    (folder / "new.toml").write_text("y = 1\n")
    (folder / "old").unlink()
    planned = run("import", namespace, str(folder), "--prune", "--dry-run").stdout.splitlines()
    assert sorted(planned) == ["change\ta/b.json", "create\tnew.toml", "delete\told"]
    assert run("import", namespace, str(folder), "--prune").returncode == 0
    assert run("get", namespace, "a/b.json").stdout == '{"x": 2}\n'
    assert run("get", namespace, "old").returncode == 1
    assert run("import", namespace, str(folder), "--prune").stdout == ""


def test_an_import_of_hundreds_of_keys_goes_in_steps_and_says_how_far_it_came(
    run: Run, namespace: str, tmp_path: Path
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(230):
        (folder / f"k{number:03}").write_text(str(number))
    (folder / "k150").write_text("x" * 2_000_000)  # too large: the second step is refused
    stopped = run("import", namespace, str(folder))
    assert stopped.returncode == 1
    assert stopped.stdout.splitlines() == [f"create\tk{number:03}" for number in range(100)], "only what was done"
    assert "100 of 230 keys changed; import again" in stopped.stderr
    (folder / "k150").write_text("150")
    done = run("import", namespace, str(folder))
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 130
    assert len(run("get", namespace, "--json").stdout.split('"key"')) == 231


def test_an_import_names_the_file_that_cannot_be_read_and_changes_nothing(
    run: Run, namespace: str, tmp_path: Path
) -> None:
    folder = tmp_path / "bad"
    folder.mkdir()
    (folder / "good").write_text("1")
    (folder / "wrong.json").write_text('{"x": 1,}')
    refused = run("import", namespace, str(folder))
    assert refused.returncode == 1
    assert str(folder / "wrong.json") in refused.stderr
    assert refused.stdout == ""
    (folder / "wrong.json").write_bytes(b"\xff\xfe")
    assert str(folder / "wrong.json") in run("import", namespace, str(folder)).stderr
    (folder / "wrong.json").unlink()
    for name in ("watch", "a b", "gray"):
        (folder / name).write_text("x")
        assert str(folder / name) in run("import", namespace, str(folder)).stderr
        (folder / name).unlink()
    assert run("get", namespace, "good").returncode == 1


async def test_history_and_rollback_are_in_the_document_and_work_for_any_key(
    client: httpx2.AsyncClient, namespace: str
) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    assert "get" in paths["/cfg/v1/{namespace}/{key}/history"]
    assert "post" in paths["/cfg/v1/{namespace}/{key}/rollback"]
    for key in ("plain", "with/slash/es"):
        path = f"/cfg/v1/{namespace}/{key}"
        for content in ("one", "two"):
            await client.put(path, json={"content": content})
        versions = (await client.get(f"{path}/history", params={"limit": 1})).json()["versions"]
        assert [each["content"] for each in versions] == ["two"]
        assert (await client.post(f"{path}/rollback", json={"version": 1})).json()["version"] == 3
        assert (await client.get(path)).json()["content"] == "one"


async def test_a_secret_is_not_in_a_snapshot_unless_asked_for(hg: Headgate, namespace: str, tmp_path: Path) -> None:
    def on_disk() -> str:
        return "".join(path.read_text() for path in tmp_path.rglob("*.json"))

    await hg.config.set(namespace, "key", "hunter2")
    live = await hg.config.live(namespace, "key", str)
    assert "hunter2" in on_disk()
    await hg.config.set(namespace, "key", "hunter3", secret=True)
    await eventually(lambda: live.value == "hunter3" and "hunter" not in on_disk())
    keeping = Headgate(
        hg.url, token=hg.token, prefix=hg._prefix, snapshot_dir=str(tmp_path / "kept"), snapshot_secrets=True
    )
    async with keeping:
        await keeping.config.live(namespace, "key", str)
    assert "hunter3" in on_disk()


async def test_a_list_of_values_has_pages(client: httpx2.AsyncClient, namespace: str) -> None:
    keys = [f"k{number}/x" for number in range(7)]
    body = {"values": [{"key": key, "content": "1"} for key in keys]}
    assert (await client.post(f"/cfg/v1/{namespace}", json=body)).status_code == 200
    seen: list[str] = []
    page: str | None = None
    while True:
        query = {"limit": "3"} | ({"page": page} if page else {})
        answer = (await client.get(f"/cfg/v1/{namespace}", params=query)).json()
        seen += [value["key"] for value in answer["values"]]
        page = answer["nextPage"]
        if page is None:
            break
        assert len(answer["values"]) == 3
    assert seen == keys
    assert (await client.get(f"/cfg/v1/{namespace}")).json()["nextPage"] is None
    assert (await client.get(f"/cfg/v1/{namespace}?limit=0")).status_code == 422


async def test_if_match_star_publishes_only_what_is_there(client: httpx2.AsyncClient, namespace: str) -> None:
    path, star = f"/cfg/v1/{namespace}/a", {"If-Match": "*"}
    for call in (client.put(path, json={"content": "1"}, headers=star), client.delete(path, headers=star)):
        refused = await call
        assert (refused.status_code, refused.json()["code"]) == (412, "version_conflict"), refused.text
    await client.put(path, json={"content": "1"})
    assert (await client.put(path, json={"content": "2"}, headers=star)).json()["version"] == 2
    back = await client.post(f"{path}/rollback", json={"version": 1}, headers=star)
    assert back.json()["version"] == 3, back.text
    assert (await client.delete(path, headers=star)).status_code == 200
    refused = await client.put(path, json={"content": "3"}, headers=star)
    assert (refused.status_code, refused.json()["version"]) == (412, 0)


async def test_the_edges_limits_change_while_it_runs(
    fresh_gateway: Callable[..., GatewayProcess], server: Topology
) -> None:
    process = fresh_gateway(server.url)
    async with httpx2.AsyncClient(base_url=process.url, timeout=20) as visitor:
        admin = {"X-API-Token": process.token}

        async def refused() -> int:
            codes = []
            for number in range(30):
                answer = await visitor.get("/api/queue/status", params={"userId": f"u{number}"})
                codes.append(answer.status_code)
            return codes.count(429)

        before = await refused()
        body = {"content": '{"perSecond": {"status": 0.1}}', "contentType": "json"}
        made = await visitor.put("/cfg/v1/headgate/edge/limits", json=body, headers=admin)
        assert made.status_code == 200, made.text
        await eventually(lambda: '"key":"edge/limits"' in process.log, 5)
        assert before == 0
        assert await refused() > 0
