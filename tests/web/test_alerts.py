"""The alerts of docs/alerts.yml fire, and the compose file lets nobody in but by the proxy."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from mallob_py.service.telemetry.status import Counters, ServiceStatus
from mallob_py.web.metrics import metrics

DOCS = Path(__file__).parents[2] / "docs"
#: plan of samples by the minute: no faults, then failing jobs, then no service
_PLAN = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: '{away}'
        values: '1x20 0x10'
      - series: '{age}'
        values: '1x30'
      - series: '{good}'
        values: '0+10x30'
      - series: '{bad}'
        values: '0+1x8 9+5x8 49x14'
    alert_rule_test:
      - {{eval_time: 8m, alertname: MallobPyJobsFail, exp_alerts: []}}
      - eval_time: 17m
        alertname: MallobPyJobsFail
        exp_alerts: [{{exp_labels: {{severity: warning, job: m}}}}]
      - {{eval_time: 20m, alertname: MallobPyAway, exp_alerts: []}}
      - {{eval_time: 22m, alertname: MallobPyAway, exp_alerts: []}}
      - eval_time: 25m
        alertname: MallobPyAway
        exp_alerts: [{{exp_labels: {{severity: critical, job: m}}}}]
  - interval: 1m
    input_series: []
    alert_rule_test:
      - {{eval_time: 5m, alertname: MallobPyAway, exp_alerts: [{{exp_labels: {{severity: critical}}}}]}}
"""


def told() -> dict[str, set[str]]:
    """Return name -> labels of each number at /metrics, as Prometheus parses the page."""
    counters = Counters()
    for outcome in ("result", "failed", "refused"):
        counters.replied(outcome)
    status = ServiceStatus(time=0.0, ranks=1, pes=1, busy=0, jobs=(), totals=counters.totals())
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics(status, 0, 0).decode()):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DOCS / "alerts.yml").read_text())["groups"]
    return list(group["rules"])


def test_alerts_ask_for_numbers_and_labels_that_there_are() -> None:
    there = told()
    assert [rule["alert"] for rule in rules()] == ["MallobPyAway", "MallobPyJobsFail"]
    for rule in rules():
        asked = re.findall(r"(mallob_py_\w+)(?:\{([^}]*)\})?", rule["expr"])
        assert asked
        for name, selector in asked:
            assert set(re.findall(r"(\w+)[!=~]+", selector)) <= there[name], rule


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_alerts_fire_when_jobs_fail_and_when_the_service_is_away(tmp_path: Path) -> None:
    series = {
        "away": 'mallob_py_up{job="m"}',
        "age": 'mallob_py_status_age_seconds{job="m"}',
        "good": 'mallob_py_replies_total{job="m",outcome="result"}',
        "bad": 'mallob_py_replies_total{job="m",outcome="failed"}',
    }
    (tmp_path / "alerts.yml").write_text(
        re.sub(r"(?m)^ +(annotations|summary|action):.*\n", "", (DOCS / "alerts.yml").read_text())
    )
    (tmp_path / "plan.yml").write_text(_PLAN.format(rules="alerts.yml", **series))
    done = subprocess.run(
        ["promtool", "test", "rules", "plan.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_the_proxy_of_the_compose_file_can_be_reached() -> None:
    whole = yaml.safe_load((DOCS / "compose/compose.yml").read_text())
    parts = whole["services"]
    assert [name for name, part in parts.items() if "ports" in part] == ["proxy"]
    assert [name for name, part in parts.items() if part["networks"] != ["inside"]] == ["proxy"]
    assert whole["networks"]["inside"]["internal"] is True
    mounts = [mount.split(":")[0] for part in parts.values() for mount in part.get("volumes", [])]
    made = {"./api", "./api/web", "./prometheus", "./caddy"}
    assert all((DOCS / "compose" / mount).exists() for mount in mounts if mount not in made)
