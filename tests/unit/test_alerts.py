"""The alerts of deploy/prometheus, run by promtool on series as they would be scraped."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.programs import need

CASES = Path(__file__).parent / "alerts.yml"
PROMETHEUS = Path(__file__).parents[2] / "deploy" / "prometheus"


def promtool(*arguments: str | Path) -> None:
    """Run promtool, and show what it says if it is not content."""
    ran = subprocess.run([need("promtool"), *map(str, arguments)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    read: dict[str, Any] = yaml.safe_load(CASES.read_text())
    read["rule_files"] = [str((CASES.parent / name).resolve()) for name in read["rule_files"]]
    for case in read["tests"]:
        for wanted in case["alert_rule_test"]:
            for alert in wanted["exp_alerts"]:
                alert["exp_annotations"] = words_of(wanted["alertname"], alert["exp_labels"])
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(read))
    promtool("test", "rules", tmp_path / "alerts.yml")


def rules() -> list[dict[str, Any]]:
    read = yaml.safe_load((PROMETHEUS / "headgate.rules.yml").read_text())
    return [rule for group in read["groups"] for rule in group["rules"]]


def words_of(alert: str, labels: dict[str, str]) -> dict[str, str]:
    """Give the words of an alert as they are sent; promtool compares them too."""
    (words,) = (dict(rule["annotations"]) for rule in rules() if rule["alert"] == alert)
    for label, text in labels.items():
        words = {name: told.replace(f"{{{{ $labels.{label} }}}}", text) for name, told in words.items()}
    return words


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = [case for each in yaml.safe_load(CASES.read_text())["tests"] for case in each["alert_rule_test"]]
    alerts = {rule["alert"] for rule in rules()}
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == alerts
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == alerts


def test_prometheus_takes_the_rules_and_the_configuration(tmp_path: Path) -> None:
    shutil.copytree(PROMETHEUS, tmp_path, dirs_exist_ok=True)
    read = yaml.safe_load((tmp_path / "prometheus.yml").read_text())
    # Debian builds Prometheus without Kubernetes.
    read["scrape_configs"] = [job for job in read["scrape_configs"] if "kubernetes_sd_configs" not in job]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(read))
    promtool("check", "rules", tmp_path / "headgate.rules.yml")
    promtool("check", "config", "--syntax-only", tmp_path / "prometheus.yml")
