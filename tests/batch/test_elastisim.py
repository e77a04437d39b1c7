import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mallob_py.batch.job import Kind
from mallob_py.batch.workload.elastisim import ElastiSimError, read_elastisim, write_elastisim
from mallob_py.batch.workload.glb_batch import glb_batch


def described(**changes: Any) -> dict[str, Any]:
    arguments = {"flops": 8e12, "parallel_percentage": 0.5, "divide": 5.0, "num_nodes_pref": 2}
    job = {"type": "MALLEABLE", "submit_time": 3, "num_nodes_min": 1, "num_nodes_max": 4}
    arguments.update({key: changes.pop(key) for key in list(changes) if key in arguments})
    return {**job, "arguments": arguments, **changes}


def written(folder: Path, *jobs: dict[str, Any]) -> Path:
    path = folder / "jobs.json"
    path.write_text(json.dumps({"jobs": jobs}))
    return path


def test_run_times_follow_amdahls_law(tmp_path: Path) -> None:
    rigid = described(type="RIGID", submit_time=0, num_nodes=4, divide=1)
    workload = read_elastisim(written(tmp_path, described(), rigid), nodes=8)
    first, second = workload.jobs
    assert (first.kind, first.low, first.high, workload.truths[0].run_s) == (Kind.RIGID, 4, 4, 8 * 0.625)
    assert (second.kind, second.low, second.nodes, second.high) == (Kind.MALLEABLE, 1, 2, 4)
    assert (workload.truths[1].run_s, workload.truths[1].iterations) == (8 * 0.75, 5)
    assert second.estimate_on(4) == pytest.approx(8 * 0.625)


def test_a_compressed_file_is_the_same(tmp_path: Path) -> None:
    path = written(tmp_path, described(walltime=100))
    packed = tmp_path / "jobs.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_elastisim(packed).jobs == read_elastisim(path).jobs
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + path.read_bytes()))
    assert read_elastisim(packed).jobs == read_elastisim(path).jobs
    assert read_elastisim(path).jobs[0].estimate_s == 100


def test_the_machine_is_as_large_as_the_file_says_if_nothing_else_is_said(tmp_path: Path) -> None:
    path = tmp_path / "batch.json"
    write_elastisim(glb_batch(1, 1.0), path)
    assert read_elastisim(path).nodes == 32
    assert read_elastisim(path, 40).nodes == 40
    assert read_elastisim(written(tmp_path, described())).nodes == 128


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "SOFT"}, r"jobs\[1\]: type is 'SOFT', not one of RIGID, MOLDABLE, MALLEABLE"),
        ({"num_nodes_min": 3}, r"jobs\[1\]: the numbers of nodes are not 1 <= 3 <= 2 <= 4"),
        ({"flops": 0}, r"jobs\[1\]: flops is not above 0"),
        ({"flops": 1e-300}, r"jobs\[1\]: it runs for .* s, less than 1e-06"),
        ({"divide": 0}, r"jobs\[1\]: submit_time is below 0, or divide below 1"),
        ({"flops": "many"}, r"Expected `float`, got `str` - at `\$.jobs\[1\].arguments.flops`"),
    ],
)
def test_a_wrong_job_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ElastiSimError, match=f"jobs.json: {message}"):
        read_elastisim(written(tmp_path, described(), described(**changes)))


def test_what_is_no_such_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    damaged = tmp_path / "jobs.json.gz"
    damaged.write_bytes(gzip.compress(b"{}" * 99)[:20])
    with pytest.raises(ElastiSimError, match=r"jobs.json.gz: damaged archive"):
        read_elastisim(damaged)
    with pytest.raises(ElastiSimError, match=r"jobs.json: no jobs in it"):
        read_elastisim(written(tmp_path))
