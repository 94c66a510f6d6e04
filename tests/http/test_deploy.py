"""The files of `deploy/` for Kubernetes, Prometheus and Grafana: they run as written, and speak of figures that exist."""

from __future__ import annotations

import itertools
import json
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.programs import need
from tests.topology import HOST, Topology, free_port, reaper, wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPONENTS = ("gateway", "worker", "relay")
WORDS = frozenset({"and", "or", "on", "by", "sum", "max", "vector", "unless", "offset", "absent"})
# Prometheus adds these, so no metric of ours may have them.
ADDED = frozenset({"instance", "job", "le"})
AGGREGATIONS = frozenset({"sum", "count", "min", "max", "avg", "group", "topk", "bottomk", "quantile", "stddev"})


def manifests(component: str) -> dict[str, dict[str, Any]]:
    """Read a component's manifests by kind."""
    return {
        each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes" / f"{component}.yaml").read_text())
    }


def pod(component: str) -> dict[str, Any]:
    """Give what a deployment says of its pods."""
    spec: dict[str, Any] = manifests(component)["Deployment"]["spec"]["template"]["spec"]
    return spec


def kustomization() -> dict[str, Any]:
    """Read what holds the manifests together."""
    read: dict[str, Any] = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    return read


class Process:
    """One component, started with the arguments and the environment of its manifest."""

    def __init__(self, component: str, store_url: str, prefix: str, token: Path) -> None:
        spec = pod(component)
        container = spec["containers"][0]
        self.token = token
        self.grace: float = spec["terminationGracePeriodSeconds"]
        self.probes = {
            kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")
        }
        self.port, self.ops_port = free_port(), free_port()
        environment = dict(line.split("=", 1) for line in kustomization()["configMapGenerator"][0]["literals"])
        for variable in container["env"]:
            name = variable["name"]
            environment[name] = store_url if name == "HEADGATE_STORE" else str(token)
        given = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert str(given["ops"]) == environment["HEADGATE_OPS_PORT"]
        environment |= {"HEADGATE_OPS_PORT": str(self.ops_port), "HEADGATE_STORE_PREFIX": prefix}
        if "http" in given:
            environment["HEADGATE_RELAY_PORT" if component == "relay" else "HEADGATE_PORT"] = str(self.port)
        # On a machine of one address the probes need not come from elsewhere, and a test need not wait for endpoints.
        environment |= {"HEADGATE_OPS_HOST": HOST, "HEADGATE_GATEWAY_HOST": HOST, "HEADGATE_GATEWAY_QUIET_SECONDS": "0"}
        self.directory = reaper().directory(component)
        with (self.directory / "log").open("ab") as output:
            command = [sys.executable, "-m", "headgate", *container["args"]]
            self.process: subprocess.Popen[bytes] = reaper().spawn(command, output, environment)

    def answers(self, path: str) -> bool:
        """Tell whether a probe would be content."""
        if self.process.poll() is not None:
            raise AssertionError((self.directory / "log").read_text()[-2000:])
        try:
            return httpx2.get(f"http://{HOST}:{self.ops_port}{path}", timeout=5).status_code == 200
        except httpx2.TransportError:
            return False

    def families(self) -> list[Metric]:
        """Read the metrics that it shows."""
        return list(
            text_string_to_metric_families(httpx2.get(f"http://{HOST}:{self.ops_port}/metrics", timeout=10).text)
        )

    def queue_figures(self) -> set[str]:
        """Give the numbers of the queue sale that it shows, other than what it has counted or measured itself."""
        return {
            sample.name
            for family in self.families()
            if family.type in ("gauge", "unknown")
            for sample in family.samples
            if sample.labels.get("queue") == "sale"
        }

    def figures(self) -> dict[str, set[str]]:
        """Give each metric's name and the labels that it was seen with."""
        found: dict[str, set[str]] = {}
        for family in self.families():
            names = {family.name, f"{family.name}_total" if family.type == "counter" else family.name}
            if family.type == "histogram":
                names |= {f"{family.name}_bucket", f"{family.name}_count", f"{family.name}_sum"}
            labels = {label for sample in family.samples for label in sample.labels}
            for name in names:
                found[name] = labels
        return found


@pytest.fixture(scope="module")
def fleet(server: Topology, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Process]]:
    token = tmp_path_factory.mktemp("secrets") / "admin-token"
    token.write_text(secrets.token_urlsafe(24))
    prefix = f"t{secrets.token_hex(4)}"
    started = {component: Process(component, server.url, prefix, token) for component in COMPONENTS}
    try:
        for process in started.values():
            for path in process.probes.values():
                wait_until(lambda process=process, path=path: process.answers(path), 60, f"{path} is answered")  # type: ignore[misc]
        admin = httpx2.Client(
            base_url=f"http://{HOST}:{started['gateway'].port}", headers={"X-API-Token": token.read_text()}
        )
        with admin:
            assert admin.put("/api/admin/queues/sale", json={"capacity": 1, "paths": ["/sale"]}).status_code == 201
            assert admin.post("/api/queue/entry", json={"nickname": "ryan", "queue": "sale"}).status_code == 200
            admin.get("/api/gate/check", params={"path": "/sale", "userId": "ryan"}).raise_for_status()
            admin.post("/lock/v1/nightly/acquire", json={"ttlSeconds": 1}).raise_for_status()
        yield started
    finally:
        for process in started.values():
            process.process.terminate()
        codes = [process.process.wait(process.grace) for process in started.values()]
    assert codes == [0, 0, 0]


@pytest.fixture(scope="module")
def known(fleet: dict[str, Process]) -> dict[str, set[str]]:
    """Every metric that the three processes show, once something has happened."""

    def look() -> dict[str, set[str]]:
        seen: dict[str, set[str]] = {}
        for process in fleet.values():
            for name, labels in process.figures().items():
                seen[name] = seen.get(name, set()) | labels
        return seen

    happened = {"headgate_queue_waiting", "headgate_gate_verdicts_total", "headgate_queue_tick_seconds_count"}
    wait_until(lambda: all(look().get(name) for name in happened), 20, "what happened is shown")
    return look()


@pytest.fixture(scope="module")
def shared(fleet: dict[str, Process], known: dict[str, set[str]]) -> set[str]:
    """Gateways and workers read these figures in the store, so each exposes the whole number; a sum would count it twice."""
    gateway, worker = fleet["gateway"], fleet["worker"]
    read = "headgate_queue_waiting"
    wait_until(lambda: read in gateway.queue_figures() & worker.queue_figures(), 20, "both have read the store")
    return gateway.queue_figures() & worker.queue_figures()


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_manifest_holds_together(component: str) -> None:
    kinds, spec = manifests(component), pod(component)
    deployment, budget = kinds["Deployment"], kinds["PodDisruptionBudget"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert 0 < budget["spec"]["maxUnavailable"] < deployment["spec"]["replicas"]
    container = spec["containers"][0]
    ports = {port["name"] for port in container["ports"]}
    assert {container[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "liveness", "readiness")} == {"ops"}
    assert (component == "worker") is ("Service" not in kinds)
    if "Service" in kinds:
        assert kinds["Service"]["spec"]["selector"] == labels
        assert {port["targetPort"] for port in kinds["Service"]["spec"]["ports"]} <= ports
    # Kubernetes would set HEADGATE_GATEWAY_PORT=tcp://… for the service of that name, and that is a setting of ours.
    assert spec["enableServiceLinks"] is False
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_kustomization_names_every_manifest_and_its_readme_every_secret() -> None:
    folder = DEPLOY / "kubernetes"
    assert set(kustomization()["resources"]) == {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert {pod(component)["containers"][0]["image"] for component in COMPONENTS} == {
        kustomization()["images"][0]["name"]
    }
    wanted = set(re.findall(r"key: ([\w-]+)", "".join((folder / f"{name}.yaml").read_text() for name in COMPONENTS)))
    assert wanted == set(re.findall(r"--from-literal=([\w-]+)=", (folder / "README.md").read_text()))


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_manifest_s_process_starts_and_answers_its_probes(fleet: dict[str, Process], component: str) -> None:
    assert all(fleet[component].answers(path) for path in fleet[component].probes.values())


def rules() -> list[dict[str, Any]]:
    """Read the alerts."""
    read = yaml.safe_load((DEPLOY / "prometheus" / "headgate.rules.yml").read_text())
    return [rule for group in read["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """Read the dashboard's panels."""
    read: list[dict[str, Any]] = json.loads((DEPLOY / "grafana" / "headgate.json").read_text())["panels"]
    return read


def grouped(expression: str) -> set[str]:
    """Give the labels that an expression keeps."""
    return {label for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(", ")}


def check(expression: str, known: dict[str, set[str]]) -> None:
    """Refuse an expression that speaks of a metric or a label that is not there."""
    assert all(expression.count(opening) == expression.count(closing) for opening, closing in ("()", "[]", "{}"))
    bare = re.sub(r"by \([^)]*\)|\{[^}]*\}|\[\w+\]", " ", expression)
    names = set(re.findall(r"\b([a-z]\w+)\b(?!\s*\()", bare)) - WORDS - {"up"}
    assert names or "up{" in expression
    assert names <= known.keys(), expression
    for name, matchers in re.findall(r"(\w+)\{([^}]*)\}", expression):
        labels = set(re.findall(r"(\w+)[=!]", matchers))
        assert not known.get(name) or labels <= known[name] | ADDED, expression
    seen = [known[name] for name in names]
    if all(seen):
        assert grouped(expression) <= set().union(*seen) | ADDED, expression


def added_up(expression: str, shared: Set[str]) -> set[str]:
    """Give the shared figures that an expression adds up over processes, so that they count once for each of them."""
    bare = re.sub(r"\b(by|without|on|ignoring) ?\([^)]*\)|\{[^}]*\}|\[[^]]*\]", " ", expression)
    tokens = re.findall(r"[A-Za-z_]\w*|[()]", bare)
    found: set[str] = set()
    around: list[str] = []  # what each open parenthesis belongs to
    for before, token in itertools.pairwise(["", *tokens]):
        if token == "(":
            around.append(before)
        elif token == ")":
            around.pop()
        elif token in shared:
            innermost = next((word for word in reversed(around) if word in AGGREGATIONS), "")
            found |= {token} if innermost in ("sum", "count") else set()
    return found


@pytest.mark.parametrize(
    ("expression", "refused"),
    [
        ('sum(headgate_queue_waiting{queue=~"$queue"})', True),
        ("sum by (queue) (headgate_queue_waiting)", True),
        ("sum(headgate_queue_waiting) by (queue)", True),
        ("sum(rate(ticket_issued_count[1m])) > 3", True),
        ("max(sum by (queue) (headgate_queue_waiting + headgate_queue_sessions))", True),
        ("count(headgate_queue_waiting > 0)", True),
        ("max(headgate_queue_away) > 0 and on() sum(headgate_queue_waiting) > 0", True),
        ('sum(max by (queue) (headgate_queue_waiting{queue=~"(a|b)"}))', False),
        ("sum(max by (queue) (rate(ticket_issued_count[1m])))", False),
        ("sum(rate(headgate_queue_tick_seconds_count[2m])) == 0 and on() max(headgate_queue_waiting) > 0", False),
        ("sum by (le, queue) (rate(headgate_queue_wait_seconds_bucket[5m]))", False),
    ],
)
def test_a_sum_over_what_several_processes_show_alike_is_found(
    expression: str, refused: bool, shared: set[str]
) -> None:
    assert bool(added_up(expression, shared)) is refused


def test_gateways_and_workers_show_the_same_figures_of_a_queue(shared: set[str]) -> None:
    gauges = ("waiting", "live_waiting", "away", "holds", "sessions", "capacity")
    counts = ("entered_total", "admitted_total", "abandoned_total")
    names = {f"headgate_queue_{name}" for name in (*gauges, *counts)}
    assert shared == names | {"ticket_issued_count", "ticket_expired_count"}


def test_no_metric_has_a_label_that_prometheus_sets_itself(known: dict[str, set[str]]) -> None:
    assert {name for name, labels in known.items() if labels & {"job", "instance"}} == set()


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_speaks_of_what_is_exported(
    rule: dict[str, Any], known: dict[str, set[str]], shared: set[str]
) -> None:
    check(rule["expr"], known)
    assert added_up(rule["expr"], shared) == set(), "each gateway and worker would count"
    words = rule["annotations"]["summary"] + rule["annotations"]["description"]
    kept = grouped(rule["expr"]) or {"instance"}
    assert set(re.findall(r"\$labels\.(\w+)", words)) <= kept
    assert rule["labels"]["severity"] in {"page", "warn"}
    assert rule["annotations"]["description"].endswith((".", "?", "which."))


def test_prometheus_reads_the_rules_and_finds_the_pods() -> None:
    read = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert read["rule_files"] == ["headgate.rules.yml"]
    jobs = {job["job_name"]: job for job in read["scrape_configs"]}
    watched = re.search(r'job=~"([^"]*)"', next(rule["expr"] for rule in rules() if rule["alert"] == "HeadgateDown"))
    assert watched is not None
    assert [name for name in jobs if re.fullmatch(watched[1], name)] == ["headgate", "headgate-pods"]
    keep = next(rule for rule in jobs["headgate-pods"]["relabel_configs"] if rule.get("action") == "keep")
    for component in COMPONENTS:
        labels = manifests(component)["Deployment"]["spec"]["template"]["metadata"]["labels"]
        for port in pod(component)["containers"][0]["ports"]:
            kept = re.fullmatch(keep["regex"], f"{labels['app.kubernetes.io/name']};{port['name']}")
            assert bool(kept) is (port["name"] == "ops")
    assert jobs["headgate-pods"]["kubernetes_sd_configs"][0]["namespaces"]["names"] == [kustomization()["namespace"]]


def test_what_prometheus_discovers_is_served(fleet: dict[str, Process]) -> None:
    read = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    registered = next(job for job in read["scrape_configs"] if job["job_name"] == "registered")
    path = httpx2.URL(registered["http_sd_configs"][0]["url"]).path
    gateway = fleet["gateway"]
    headers = {"Authorization": f"Bearer {gateway.token.read_text()}"}
    answer = httpx2.get(f"http://{HOST}:{gateway.port}{path}", headers=headers)
    assert {target["labels"]["__meta_headgate_type"] for target in answer.json()} >= {
        "headgate-gateway",
        "headgate-relay",
    }


def test_a_real_prometheus_scrapes_what_is_shipped_and_every_panel_can_be_asked_for(
    fleet: dict[str, Process], known: dict[str, set[str]], tmp_path: Path
) -> None:
    program, port = need("prometheus"), free_port()
    read = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job for job in read["scrape_configs"]}
    del jobs["headgate-pods"]  # Debian builds Prometheus without Kubernetes
    jobs["headgate"] |= {
        "scrape_interval": "1s",
        "static_configs": [{"targets": [f"{HOST}:{each.ops_port}" for each in fleet.values()]}],
    }
    discovery = jobs["registered"]["http_sd_configs"][0]
    discovery["url"] = discovery["url"].replace("gateway-1:8080", f"{HOST}:{fleet['gateway'].port}")
    discovery["authorization"]["credentials_file"] = str(fleet["gateway"].token)
    discovery["refresh_interval"] = "1s"
    rules_file = str(DEPLOY / "prometheus" / "headgate.rules.yml")
    (tmp_path / "prometheus.yml").write_text(
        yaml.safe_dump({"rule_files": [rules_file], "scrape_configs": [*jobs.values()]})
    )
    with (tmp_path / "log").open("wb") as output:
        process = reaper().spawn(
            [
                program,
                f"--config.file={tmp_path}/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/data",
                f"--web.listen-address={HOST}:{port}",
            ],
            output,
        )

    def ask(path: str, **query: str) -> Any:
        try:
            answer = httpx2.get(f"http://{HOST}:{port}/api/v1/{path}", params=query, timeout=5)
        except httpx2.TransportError:
            return {}
        return answer.json()["data"] if answer.status_code == 200 else {}

    def health() -> list[str]:
        return [target["health"] for target in ask("targets").get("activeTargets", [])]

    try:
        wait_until(lambda: health() == ["up"] * len(fleet), 30, "all processes are scraped")
        # Our own processes are discovered too, and dropped, since they are scraped already.
        wait_until(lambda: bool(ask("targets")["droppedTargets"]), 30, "the registry is asked")
        loaded = {rule["name"] for group in ask("rules")["groups"] for rule in group["rules"]}
        assert loaded == {rule["alert"] for rule in rules()}
        for panel in panels():
            for target in panel.get("targets", ()):
                told = ask("query", query=target["expr"].replace("$queue", ".*"))
                assert told.get("resultType") == "vector", target["expr"]
        waiting = ask("query", query='count(headgate_queue_waiting{queue="sale"})')["result"]
        assert waiting[0]["value"][1] == "2", "a gateway and a worker show it"
    finally:
        process.terminate()
        process.wait(20)
    assert "level=error" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    "panel", [panel for panel in panels() if panel["type"] != "row"], ids=lambda panel: panel["title"]
)
def test_a_panel_draws_what_is_exported(panel: dict[str, Any], known: dict[str, set[str]], shared: set[str]) -> None:
    assert panel["datasource"]["uid"] == "${datasource}"
    for target in panel["targets"]:
        check(target["expr"].replace("$queue", "sale"), known)
        assert added_up(target["expr"], shared) == set(), "each gateway and worker would count"
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= grouped(target["expr"])


def test_panels_lie_side_by_side() -> None:
    assert len({panel["id"] for panel in panels()}) == len(panels())
    places = [panel["gridPos"] for panel in panels()]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in itertools.combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below
