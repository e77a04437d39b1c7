"""The policy that docs/batch-policies.md shows: it is found by its entry point, and works as stated."""

import re
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from workloads import rigid, rigid_workloads

from mallob_py.batch import registry
from mallob_py.batch.job import Workload
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import simulate

_DOCUMENT = Path(__file__).parents[2] / "docs/batch-policies.md"
_BLOCK = re.compile(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the document's package, with the effect of `pip install`."""
    files = dict(_BLOCK.findall(_DOCUMENT.read_text()))
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    ((name, place),) = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"][
        registry.ENTRY_POINT_GROUP
    ].items()
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [EntryPoint(name, place, group)], raising=True
    )


def test_the_shortest_job_starts_first_or_the_longest_if_that_is_wished() -> None:
    workload = rigid((0, 4, 5), (1, 4, 9), (1, 4, 3), (1, 4, 6), nodes=4)
    assert simulate(workload, policy_of("shortest")).starts_s == [0, 14, 5, 8]
    assert simulate(workload, policy_of("shortest:longest_first=yes")).starts_s == [0, 5, 20, 14]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rigid_workloads())
def test_everybody_ends_under_the_policy(workload: Workload) -> None:
    schedule = simulate(workload, policy_of("shortest"))
    assert all(end_s > start_s for start_s, end_s in zip(schedule.starts_s, schedule.ends_s, strict=True))
