"""Commands as a shell sees them: what is on stdout, what on stderr, and the exit code."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import msgspec
import pytest

from headgate import __version__
from headgate.cli.app import run
from headgate.store import StoreSettings, acl, open_store
from headgate.waiting_room.signing import SigningKeys
from tests.processes import GatewayProcess
from tests.topology import Standalone, Topology, free_port, wait_until

_WAIT = """
import sys
from headgate.cli.app import app, run
app.command(lambda: (print("waiting", flush=True), sys.stdin.read()), name="wait")
sys.exit(run(["wait"]))
"""


def headgate(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    ours = {key: value for key, value in os.environ.items() if not key.startswith("HEADGATE_")}
    return subprocess.run(
        [sys.executable, "-m", "headgate", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=ours | environment,
    )


def test_misuse_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    for arguments in (["nonsense"], ["settings", "--jsn"], ["token", "create", "x"], ["up", "--port", "many"]):
        misused = headgate(*arguments, cwd=tmp_path)
        assert misused.returncode == 2, arguments
        assert misused.stdout == ""
        assert misused.stderr.startswith("headgate: ")
        assert misused.stderr.count("\n") == 1
    assert "`headgate token create --help` shows what there is" in headgate("token", "create", cwd=tmp_path).stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("queue create", "QUEUE is missing: headgate queue create QUEUE [POLICY …]."),
        ("config diff shop limits", "OLD is missing: headgate config diff NAMESPACE KEY OLD [NEW]."),
        ("lock run", "NAME is missing: headgate lock run NAME -- COMMAND …"),
        ("token create x", "--role is missing: headgate token create NAME --role ROLE."),
        ("up --port", "--port needs a value."),
    ],
)
def test_what_is_missing_is_named_as_help_names_it(command: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.split()) == 2
    assert capsys.readouterr().err.startswith(f"headgate: {said} `headgate ")


def test_an_address_without_a_scheme_is_told_both_kinds(tmp_path: Path) -> None:
    for flags, environment in ((["--url", "localhost:8080"], {}), ([], {"HEADGATE_URL": "localhost:8080"})):
        refused = headgate("queue", "list", *flags, cwd=tmp_path, **environment)
        assert refused.returncode == 1
        assert (
            f"{'--url' if flags else 'HEADGATE_URL'} must begin with http:// or https:// (a gateway)" in refused.stderr
        )
        assert "valkey://" in refused.stderr


def test_a_wrong_or_missing_token_says_where_one_comes_from(tmp_path: Path, gateway_process: GatewayProcess) -> None:
    for token in ({}, {"HEADGATE_TOKEN": "wrong"}):
        refused = headgate("queue", "list", cwd=tmp_path, HEADGATE_URL=gateway_process.url, **token)
        assert refused.returncode == 1
        assert "HEADGATE_TOKEN" in refused.stderr
        assert refused.stderr.count("\n") == 1


def test_a_failure_is_one_sentence_and_exit_code_1_and_debug_shows_all(tmp_path: Path) -> None:
    failed = headgate("token", "list", cwd=tmp_path)
    assert failed.returncode == 1
    assert failed.stderr == (
        "headgate: Nothing says which Headgate is meant; give --url or HEADGATE_URL, "
        "or run `headgate up` in this directory.\n"
    )
    assert "Traceback" in headgate("token", "list", "--debug", cwd=tmp_path).stderr


def test_a_name_that_cannot_be_one_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    refused = headgate("token", "create", "a b", "--role", "read", "--url", "http://127.0.0.1:1", cwd=tmp_path)
    assert refused.returncode == 1
    assert "name must be" in refused.stderr


def test_ctrl_c_is_exit_code_130(tmp_path: Path) -> None:
    waiting = subprocess.Popen([sys.executable, "-c", _WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "waiting\n"
    waiting.send_signal(signal.SIGINT)
    waiting.communicate(timeout=20)
    assert waiting.returncode == 130


def test_settings_show_values_and_origins_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "headgate.toml").write_text('[log]\nlevel = "debug"\n')
    shown = headgate(
        "settings",
        "--json",
        cwd=tmp_path,
        HEADGATE_ADMIN_TOKEN="very-secret-admin-token-of-tests",
        HEADGATE_STORE="valkey://me:hush@lake:1/0",
        HEADGATE_PORT="9000",
    )
    assert shown.returncode == 0, shown.stderr
    values = {value["name"]: value for value in msgspec.json.decode(shown.stdout)}
    assert (values["gateway.port"]["value"], values["gateway.port"]["origin"]) == ("9000", "HEADGATE_PORT")
    assert (values["log.level"]["value"], values["log.level"]["origin"]) == ("debug", "headgate.toml [log]")
    assert values["store.prefix"]["origin"] == "default"
    assert "very-secret" not in shown.stdout
    assert "hush" not in shown.stdout
    assert "lake" in shown.stdout


def test_a_misspelt_setting_is_named_with_the_one_that_was_meant(tmp_path: Path) -> None:
    refused = headgate("settings", cwd=tmp_path, HEADGATE_STROE="x")
    assert refused.returncode == 1
    assert (
        refused.stderr == "headgate: HEADGATE_STROE in the environment is not a setting. Did you mean HEADGATE_STORE?\n"
    )


def test_serve_without_an_admin_token_says_how_to_set_one(tmp_path: Path, server: Topology) -> None:
    refused = headgate("serve", "gateway", "--store", server.url, "--port", str(free_port()), cwd=tmp_path)
    assert refused.returncode == 1
    assert "HEADGATE_ADMIN_TOKEN" in refused.stderr
    assert refused.stderr.count("\n") == 1, "nothing was started that could have told of itself"


@pytest.mark.parametrize("process", ["gateway", "relay"])
def test_serve_with_a_short_admin_token_is_refused(tmp_path: Path, server: Topology, process: str) -> None:
    words = ("serve", process, "--store", server.url, "--port", str(free_port()))
    refused = headgate(*words, cwd=tmp_path, HEADGATE_ADMIN_TOKEN="a" * 23)
    assert refused.returncode == 1
    assert "24 random characters" in refused.stderr
    assert refused.stderr.count("\n") == 1, "nothing was started that could have told of itself"


def test_up_with_a_short_admin_token_is_refused(tmp_path: Path) -> None:
    refused = headgate("up", "--port", str(free_port()), cwd=tmp_path, HEADGATE_ADMIN_TOKEN="a" * 23)
    assert refused.returncode == 1
    assert "24 random characters" in refused.stderr


def test_serve_with_an_unreachable_store_or_a_wrong_password_says_so(tmp_path: Path) -> None:
    away = headgate("serve", "worker", "--store", f"valkey://127.0.0.1:{free_port()}", cwd=tmp_path)
    assert away.returncode == 1
    assert "cannot be reached" in away.stderr.splitlines()[-1]
    assert "headgate doctor" in away.stderr.splitlines()[-1]
    with Standalone(password="right-password") as guarded:
        wrong = headgate("serve", "worker", "--store", f"valkey://:wrong@127.0.0.1:{guarded.node.port}", cwd=tmp_path)
    assert wrong.returncode == 1
    assert "password" in wrong.stderr.splitlines()[-1].lower()
    assert "wrong@" not in wrong.stderr


@pytest.mark.parametrize("process", ["worker", "relay", "arena"])
def test_what_works_only_together_with_others_starts_no_store_of_its_own(tmp_path: Path, process: str) -> None:
    refused = headgate("serve", process, cwd=tmp_path, HEADGATE_ADMIN_TOKEN="long-enough-to-be-a-token")
    assert refused.returncode == 1
    assert refused.stderr.startswith("headgate: No store is named and no `up` runs here; ")
    assert list(tmp_path.iterdir()) == []


def test_an_arena_that_is_refused_does_not_say_that_it_started(tmp_path: Path, gateway_process: GatewayProcess) -> None:
    admin = {"X-API-Token": gateway_process.token}
    queue = f"q{free_port()}"
    httpx2.put(f"{gateway_process.url}/api/admin/queues/{queue}", json={}, headers=admin).raise_for_status()
    where = ("--url", gateway_process.url, "--port", str(free_port()), "--queue", queue)
    refused = headgate("serve", "arena", *where, cwd=tmp_path)
    assert refused.returncode == 1
    assert "HEADGATE_TOKEN" in refused.stderr
    assert "arena started" not in refused.stderr


def test_a_new_signing_key_is_one_that_the_settings_take(tmp_path: Path) -> None:
    made = headgate("keys", "create", cwd=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    (_, secret), *_ = SigningKeys.read(made.stdout).secrets()
    assert secret
    assert headgate("keys", "create", cwd=tmp_path).stdout != made.stdout


def test_a_worker_tells_when_it_is_ready_and_ends_with_0(tmp_path: Path, server: Topology, prefix: str) -> None:
    port = free_port()
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "headgate", "serve", "worker", "--store", server.url, "--ops-port", str(port)],
            cwd=tmp_path,
            stderr=log,
            env={**os.environ, "HEADGATE_STORE_PREFIX": prefix},
        )
    try:
        wait_until(lambda: _status(port, "/readyz") == 200, 30, "the worker is ready")
        named = next(line for line in (tmp_path / "log").read_text().splitlines() if "using the store" in line)
        assert msgspec.json.decode(named)["origin"] == "--store"
        assert "headgate_job" in httpx2.get(f"http://127.0.0.1:{port}/metrics").text
        worker.terminate()
        assert worker.wait(15) == 0
    finally:
        worker.kill()
        worker.wait()


def _status(port: int, path: str) -> int:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}{path}").status_code
    except httpx2.TransportError:
        return 0


@pytest.mark.topology("standalone")
def test_doctor_has_an_advice_for_every_finding(tmp_path: Path) -> None:
    lossy: dict[str, str | int] = {
        "appendonly": "no",
        "save": "",
        "maxmemory": "100mb",
        "maxmemory-policy": "allkeys-lru",
    }
    with Standalone(options=lossy) as server:
        found = headgate("doctor", "--store", server.url, "--json", cwd=tmp_path)
    assert found.returncode == 1
    findings = {finding["check"]: finding for finding in msgspec.json.decode(found.stdout)}
    assert findings["memory policy"]["level"] == "problem"
    assert findings["persistence"]["level"] == "problem"
    assert findings["version"]["level"] == "ok"
    assert findings["scripts"]["level"] == "ok"
    assert all(finding["advice"] for finding in findings.values() if finding["level"] != "ok")


def test_doctor_finds_nothing_wrong_with_a_good_store(tmp_path: Path, server: Topology) -> None:
    found = headgate("doctor", "--store", server.url, "--json", cwd=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    assert {finding["level"] for finding in msgspec.json.decode(found.stdout)} <= {"ok", "warning"}


def test_doctor_tells_of_a_queue_that_contradicts_itself_and_what_to_do(
    tmp_path: Path, server: Topology, gateway_process: GatewayProcess
) -> None:
    token, prefix = {"X-API-Token": gateway_process.token}, gateway_process.prefix
    name = f"q{secrets.token_hex(4)}"
    with httpx2.Client(base_url=gateway_process.url, headers=token) as client:
        client.put(f"/api/admin/queues/{name}", json={"capacity": 0}).raise_for_status()
        entry = client.post("/api/queue/entry", json={"nickname": "Ryan", "queue": name}).json()

        def looked() -> list[dict[str, str]]:
            done = headgate("doctor", "--store", server.url, "--json", cwd=tmp_path, HEADGATE_STORE_PREFIX=prefix)
            found: list[dict[str, str]] = msgspec.json.decode(done.stdout)
            return [finding for finding in found if finding["check"] == "queues"]

        (well,) = looked()
        assert (well["level"], "no contradiction" in well["found"]) == ("ok", True)
        asyncio.run(forget_place(server.url, prefix, name, entry["userId"]))
        (broken,) = looked()
        assert broken["level"] == "problem"
        assert f"default/{name} contradicts itself: user {entry['userId']}" in broken["found"]
        assert "headgate queue reset" in broken["advice"]
        client.delete(f"/api/admin/queues/{name}").raise_for_status()


async def forget_place(url: str, prefix: str, queue: str, user: str) -> None:
    """Take somebody out of the line and leave their record, as nothing of ours does."""
    async with open_store(StoreSettings(url=url, prefix=prefix), any_store=True) as store:
        thing = store.thing("queue", "default", queue)
        await store.write(thing, "ZREM", thing.key("waiting"), user)


def test_doctor_looks_at_a_gateway(tmp_path: Path, gateway_process: GatewayProcess) -> None:
    def found(url: str, **environment: str) -> tuple[int, dict[str, tuple[str, str]]]:
        looked = headgate("doctor", "--url", url, "--json", cwd=tmp_path, **environment)
        findings = msgspec.json.decode(looked.stdout)
        assert all(finding["advice"] for finding in findings if finding["level"] != "ok")
        return looked.returncode, {each["check"]: (each["level"], each["found"]) for each in findings}

    code, findings = found(gateway_process.url, HEADGATE_TOKEN=gateway_process.token)
    assert code == 0, findings
    assert {level for level, _ in findings.values()} == {"ok"}
    assert findings["token"][1] == "admin, with the role admin"
    assert findings["version"][1] == f"Headgate {__version__}"
    assert set(findings) - {"clocks of processes"} == {"connection", "version", "token", "store"}
    for token in ({}, {"HEADGATE_TOKEN": "wrong"}):
        code, findings = found(gateway_process.url, **token)
        assert (code, findings["token"][0]) == (1, "problem")
    code, findings = found(f"http://127.0.0.1:{free_port()}")
    assert (code, list(findings)) == (1, ["connection"])
    refused = headgate("doctor", "--url", "localhost:8080", cwd=tmp_path)
    assert "must begin with http:// or https://" in refused.stderr


def test_doctor_reports_a_remote_store_without_a_password(tmp_path: Path) -> None:
    found = headgate("doctor", "--store", "valkey://192.0.2.1:6379", "--json", cwd=tmp_path)
    assert found.returncode == 1
    findings = {finding["check"]: finding for finding in msgspec.json.decode(found.stdout)}
    assert findings["password"]["level"] == "problem"
    assert "doctor --acl" in findings["password"]["advice"]
    assert findings["connection"]["level"] == "problem"


def test_doctor_prints_rights_for_each_process(tmp_path: Path) -> None:
    printed = headgate("doctor", "--acl", cwd=tmp_path, HEADGATE_STORE_PREFIX="mine")
    users = {line.split()[1]: line for line in printed.stdout.splitlines()}
    assert set(users) == {f"headgate-{process}" for process in acl.PACKAGES}
    assert users["headgate-gateway"].endswith(acl.rules("gateway", "mine"))
    assert "~mine:*" in users["headgate-gateway"]
    assert "config" not in users["headgate-gateway"]
