from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from mallob_py.batch.workload.swf import SwfError, read_swf, workload_of

HEAD = "; Version: 2.2\n; MaxNodes: 8\n; Note: made for a test\n"
LINES = (
    "1 0 5 10 2 -1 -1 2 20 -1 1 7 1 1 3 1 -1 -1\n"
    "2 5 0 0 1 -1 -1 1 20 -1 0 7 1 1 3 1 -1 -1\n"
    "3 4 0 6 -1 -1 -1 3 2 -1 1 8 1 1 4 2 -1 -1\n"
)


def trace(folder: Path, content: str = HEAD + LINES) -> Path:
    path = folder / "trace.swf"
    path.write_text(content)
    return path


def test_a_trace_becomes_rigid_jobs_in_the_order_of_their_submission(tmp_path: Path) -> None:
    workload = workload_of(read_swf(trace(tmp_path)), name="t")
    assert workload.nodes == 8
    assert [(job.number, job.submit_s, job.nodes, job.estimate_s) for job in workload.jobs] == [
        (1, 1, 2, 20),
        (3, 5, 3, 6),
    ]
    assert [truth.run_s for truth in workload.truths] == [10, 6]
    assert [(job.user, job.queue) for job in workload.jobs] == [("7", "3"), ("8", "4")]


def test_jobs_without_run_time_can_be_given_one(tmp_path: Path) -> None:
    workload = workload_of(read_swf(trace(tmp_path)), minimal_run_s=1)
    assert [(job.number, truth.run_s) for job, truth in zip(workload.jobs, workload.truths, strict=True)] == [
        (1, 10),
        (3, 6),
        (2, 1),
    ]


def test_partition_rows_and_cores_per_node_are_as_wished(tmp_path: Path) -> None:
    swf = read_swf(trace(tmp_path))
    assert [job.number for job in workload_of(swf, partition=2).jobs] == [3]
    assert [job.number for job in workload_of(swf, rows=slice(1, None)).jobs] == [3]
    assert [job.nodes for job in workload_of(swf, processors_per_node=2).jobs] == [1, 2]


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)]
)
def test_compressed_traces_are_read(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / f"trace.swf{suffix}"
    path.write_bytes(pack((HEAD + LINES).encode()))
    assert len(read_swf(path).rows) == 3
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(SwfError, match="damaged archive"):
        read_swf(path)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1 2 3\n", "line 7: 3 fields instead of 18"),
        ("4 x" + " 1" * 16 + "\n", "line 7: a field is no number"),
    ],
)
def test_damaged_lines_are_named_and_left_out(tmp_path: Path, line: str, problem: str) -> None:
    path = trace(tmp_path, HEAD + LINES + line + LINES)
    swf = read_swf(path)
    assert swf.damaged == (f"{path}, {problem}",)
    assert len(swf.rows) == 6
    with pytest.raises(SwfError, match=problem):
        read_swf(path, strict=True)


def test_a_trace_that_hides_the_machine_s_size_needs_to_be_told(tmp_path: Path) -> None:
    swf = read_swf(trace(tmp_path, LINES))
    with pytest.raises(ValueError, match="how many nodes"):
        workload_of(swf)
    assert workload_of(swf, nodes=4).nodes == 4


def test_a_file_without_jobs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SwfError, match="no jobs"):
        read_swf(trace(tmp_path, HEAD))


@pytest.mark.parametrize("words", [["1"] * 18, ["1.5"] * 18, ["1e3", *["-1"] * 17]])
def test_a_field_that_is_missing_here_and_too_much_there_is_noticed(tmp_path: Path, words: list[str]) -> None:
    path = tmp_path / "shifted.swf"
    good = " ".join(words)
    path.write_text("\n".join([good, " ".join(words[1:]), f"{good} 7", good]) + "\n")
    swf = read_swf(path)
    assert swf.damaged == (
        f"{path}, line 2: 17 fields instead of 18",
        f"{path}, line 3: 19 fields instead of 18",
    )
    assert swf.rows.tolist() == [[float(word) for word in words]] * 2
