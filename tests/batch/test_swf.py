import bz2
import gzip
import itertools
import lzma
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_processors_are_those_that_a_job_had_and_else_those_that_it_asked_for(tmp_path: Path) -> None:
    had = "1 0 5 10 2 -1 -1 4 20 -1 1 7 1 1 3 1 -1 -1\n"
    workload = workload_of(read_swf(trace(tmp_path, HEAD + had + had.replace(" 2 ", " -1 ", 1))))
    assert [job.nodes for job in workload.jobs] == [2, 4]


def test_partial_executions_are_no_jobs_beside_the_line_of_their_whole_job(tmp_path: Path) -> None:
    whole = "1 0 0 30 4 -1 -1 4 60 -1 1 1 1 1 1 1 -1 -1\n"
    parts = "1 0 0 10 4 -1 -1 4 60 -1 2 1 1 1 1 1 -1 -1\n1 50 -1 20 4 -1 -1 4 60 -1 3 1 1 1 1 1 -1 -1\n"
    workload = workload_of(read_swf(trace(tmp_path, HEAD + whole + parts)))
    assert [(job.number, truth.run_s) for job, truth in zip(workload.jobs, workload.truths, strict=True)] == [
        (1, 30)
    ]
    assert workload.left_out == (("partial executions (status 2 to 4) of whole jobs", 2),)
    assert workload.rejected == ()
    assert workload.remarks == ()
    alone = workload_of(read_swf(trace(tmp_path, HEAD + parts)))
    assert [truth.run_s for truth in alone.truths] == [10, 20]
    assert alone.left_out == ()
    assert [remark.partition(",")[0] for remark in alone.remarks] == ["2 partial executions (status 2 to 4)"]


def submitted(*times_s: float) -> str:
    rows = [f"{number} {time_s} -1 100 2" + " -1" * 13 for number, time_s in enumerate(times_s, 1)]
    return "\n".join([*rows, ""])


def test_a_time_of_submission_that_is_not_known_is_left_out_and_counted(tmp_path: Path) -> None:
    rows = submitted(9e8, -1, 9e8 + 10)
    workload = workload_of(read_swf(trace(tmp_path, HEAD + rows)))
    assert [(job.number, job.submit_s) for job in workload.jobs] == [(1, 1), (3, 11)]
    assert workload.left_out == (("without a time of submission", 1),)
    assert [(job.number, job.submit_s, job.nodes) for job in workload.rejected] == [(2, -1, 2)]
    assert workload.remarks == ()
    with pytest.raises(ValueError, match="its largest job has size 2, and 4 would be busy on average"):
        workload_of(read_swf(trace(tmp_path, rows)))


@pytest.mark.parametrize(
    ("times_s", "is_told"), [((0, 12e8, 12e8), True), ((0, 5, 12e8), False), ((3, 12e8), False)]
)
def test_a_second_0_among_seconds_since_1970_is_told(
    times_s: tuple[float, ...], is_told: bool, tmp_path: Path
) -> None:
    workload = workload_of(read_swf(trace(tmp_path, HEAD + submitted(*times_s))))
    assert len(workload.jobs) == len(times_s)
    said = "1 of 3 jobs, such as job 1, are submitted at second 0, all others from second 1200000000 on"
    assert any(said in remark for remark in workload.remarks) == is_told
    assert any("submitted at second 0" in remark for remark in workload.remarks) == is_told


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
        ("4 1" + " 1" * 15 + f" {10**30}\n", "line 7: a field is too large, or nan"),
        ("4 1e400" + " 1" * 16 + "\n", "line 7: a field is too large, or nan"),
        ("4 nan" + " 1" * 16 + "\n", "line 7: a field is too large, or nan"),
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


def sized(folder: Path, header: str, *sizes: int, run_s: int = 90) -> Path:
    """Write a trace of 200 jobs, one every 100 s, with these sizes in turn."""
    lines = [
        f"{number} {100 * number} -1 {run_s} {size} -1 -1 -1 {run_s} -1 1 1 1 1 1 1 -1 -1\n"
        for number, size in zip(range(200), itertools.cycle(sizes), strict=False)
    ]
    return trace(folder, header + "".join(lines))


BOTH = "; MaxNodes: 16\n; MaxProcs: 128\n"


def test_the_machine_is_its_processors_in_nodes_where_all_jobs_had_whole_ones(tmp_path: Path) -> None:
    swf = read_swf(sized(tmp_path, BOTH, 8, 128, 64))
    workload = workload_of(swf)
    assert (workload.nodes, [job.nodes for job in workload.jobs[:3]]) == (16, [1, 16, 8])
    assert workload.left_out == ()
    (remark,) = workload.remarks
    assert remark == "a node has 8 processors (MaxProcs 128, MaxNodes 16): taken as --cores-per-node 8"
    # The result also holds for a part of the trace, and for a machine of another size.
    assert workload_of(swf, rows=slice(1), nodes=32).jobs[0].nodes == 1
    # If the number of processors per node is given, there is no remark.
    told = workload_of(swf, processors_per_node=4)
    assert (told.nodes, told.jobs[0].nodes, told.remarks) == (32, 2, ())
    assert workload_of(swf, processors_per_node=1).nodes == 128


def test_where_jobs_had_parts_of_nodes_each_processor_is_a_node(tmp_path: Path) -> None:
    workload = workload_of(read_swf(sized(tmp_path, BOTH, 8, 128, 63)))
    assert (workload.nodes, [job.nodes for job in workload.jobs[:3]]) == (128, [8, 128, 63])
    assert workload.remarks == (
        "jobs had parts of its 16 nodes (MaxNodes): each of its 128 processors (MaxProcs) is a node here",
    )
    uneven = "; MaxNodes: 16\n; MaxProcs: 130\n"
    assert workload_of(read_swf(sized(tmp_path, uneven, 8, 128))).nodes == 130


@pytest.mark.parametrize(
    "header",
    ["; MaxProcs: 128\n", "; MaxNodes: 128\n", "; MaxNodes: 128\n; MaxProcs: 128\n"],
    ids=["MaxProcs", "MaxNodes", "equal"],
)
def test_one_number_in_the_header_is_the_machine(tmp_path: Path, header: str) -> None:
    workload = workload_of(read_swf(sized(tmp_path, header, 8, 128, 64)))
    assert (workload.nodes, workload.jobs[1].nodes, workload.remarks) == (128, 128, ())


def test_more_load_than_a_machine_can_have_is_said_with_the_likely_cause(tmp_path: Path) -> None:
    def remark(header: str, *sizes: int, **asked: int) -> str:
        (found,) = workload_of(read_swf(sized(tmp_path, header, *sizes)), **asked).remarks  # type: ignore[arg-type]
        return found

    # On average, 60 nodes would be busy for 90 of 100 s, but there are 16; jobs above 16 nodes count, too.
    alone = remark("; MaxNodes: 16\n", 8, 128, 44)
    assert alone.startswith("the offered load is 3.38 times the machine's capacity (16 nodes): ")
    assert "only MaxNodes" in alone
    assert "such as 128)" in alone
    # The load is possible, but one job is too large.
    large = remark("; MaxNodes: 16\n", 1, 1, 1, 24)
    assert large.startswith("the largest job has size 24, more than the machine (16 nodes): its header")
    smaller = remark("; MaxProcs: 128\n", 60, nodes=32)
    assert smaller.endswith("--nodes 32 is a smaller machine than the trace's, which has 128")
    assert "is --nodes 32 right? On 60 nodes, the load would be usual" in remark("", 60, nodes=32)
    assert "come faster than they can run" in remark("; MaxProcs: 40\n", 60)


def test_a_load_that_a_machine_can_have_is_not_remarked_upon(tmp_path: Path) -> None:
    swf = read_swf(sized(tmp_path, "; MaxProcs: 50\n", 60))
    assert workload_of(swf, nodes=45).remarks == (
        "the offered load is 1.20 times the machine's capacity (45 nodes): "
        "--nodes 45 is a smaller machine than the trace's, which has 50",
    )
    assert workload_of(swf, nodes=46).remarks == workload_of(swf).remarks == ()
    # Jobs that run one after the other or all at once do not show how large the machine was.
    assert workload_of(swf, nodes=6, rows=slice(1)).remarks == ()
    assert workload_of(read_swf(trace(tmp_path, HEAD + LINES)), nodes=3).remarks == ()


def test_without_any_number_the_largest_job_or_the_load_decides_what_is_suggested(tmp_path: Path) -> None:
    large = read_swf(sized(tmp_path, "", 1, 128))
    with pytest.raises(ValueError, match=r"job has size 128, and 58 would be busy .* --nodes 128 is a load"):
        workload_of(large)
    many = read_swf(sized(tmp_path, "", 8, run_s=10_000))
    with pytest.raises(ValueError, match=r"has size 8, and 535 .* --nodes 669 is a load of 0.80; .* of 8:"):
        workload_of(many)
    with pytest.raises(ValueError, match=r"has size 1, and 67 .* --nodes 84 is a load of 0.80$"):
        workload_of(many, processors_per_node=8)
    assert workload_of(many, nodes=669).remarks == ()


def test_a_file_without_jobs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SwfError, match=r"no jobs in it$"):
        read_swf(trace(tmp_path, HEAD))
    with pytest.raises(SwfError, match=r"no jobs in it \(.*line 4: a field is no number\)$"):
        read_swf(trace(tmp_path, HEAD + "these are no numbers\n"))


def test_a_byte_order_mark_hides_no_header(tmp_path: Path) -> None:
    swf = read_swf(trace(tmp_path, "\ufeff; MaxProcs: 9\n" + LINES))
    assert (swf.header_number("MaxProcs"), len(swf.rows), swf.damaged) == (9, 3, ())


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


#: forms of the archive's headers that the format's definition does not permit
_NOISE = st.sampled_from(
    [
        b";",
        b"; ",
        b";   --- SWF file converted from SACCT ---",
        b"; Note: hybrid nodes are not taken into account in the MaxNodes",
        b";\tand MaxProcs: fields, see: http://www.example.org/",
        b"; Note: MaxNodes: 7 until 2009",
        b"; Installation: Universit\xe9 de Li\xe8ge",
        b"; Queue: 1 interactive, MaxProcs: 16",
        b"; Partition:  1  test",
        b"; StartTime: Tue Feb 01 15:38:44 CET 2011",
        b"",
    ]
)


@given(
    st.data(),
    st.sampled_from([(144, 1152), (1152, 9216), (2388, 152832), (14, 806), (0, 2048), (219, 0)]),
    st.sampled_from([b"\n", b"\r\n"]),
)
def test_headers_as_archives_have_them_are_read(
    data: st.DataObject, machine: tuple[int, int], line_end: bytes
) -> None:
    def entry(name: str, value: int) -> bytes:
        before = data.draw(st.sampled_from(["; ", ";", ";\t", ";    "]))
        colon = data.draw(st.sampled_from([": ", ":", ":\t", ":   "]))
        text = data.draw(st.sampled_from([f"{value}", f"{value:,}"]))
        return f"{before}{name}{colon}{text}{data.draw(st.sampled_from(['', ' ', ' (it varied)']))}".encode()

    told = [
        entry(name, value) for name, value in zip(("MaxNodes", "MaxProcs"), machine, strict=True) if value
    ]
    header = [line for one in told for line in [*data.draw(st.lists(_NOISE, max_size=3)), one]]
    jobs = b"1 0 -1 10 8 -1 -1 8 20 -1 1 7 1 -1 1 1 -1 -1"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.swf"
        path.write_bytes(line_end.join([*header, *data.draw(st.lists(_NOISE, max_size=3)), jobs, b""]))
        swf = read_swf(path, strict=True)
    assert (swf.header_number("MaxNodes"), swf.header_number("MaxProcs")) == machine
    per_node = 8 if machine[1] == 8 * machine[0] else 1
    workload = workload_of(swf)
    assert [job.nodes for job in workload.jobs] == [8 // per_node]
    assert workload.nodes == (machine[0] if per_node == 8 or not machine[1] else machine[1])


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,152", 1152),
        ("144, later 159", 144),
        ("1,15", 1),
        ("~806", 0),
        ("-1", 0),
        ("", 0),
        ("93312;", 93312),
    ],
)
def test_a_number_of_a_header_ends_where_its_digits_end(tmp_path: Path, text: str, number: int) -> None:
    swf = read_swf(trace(tmp_path, f"; MaxProcs: {text}\n{LINES}"))
    assert swf.header_number("MaxProcs") == number


def test_users_and_queues_with_long_numbers_are_told_apart(tmp_path: Path) -> None:
    line = "1 0 -1 5 1 -1 -1 1 9 -1 1 {} -1 -1 {} -1 -1 -1\n"
    numbers = [("1234567", "1000000"), ("1234568", "999999999999999"), ("7.25", "-1")]
    workload = workload_of(read_swf(trace(tmp_path, HEAD + "".join(line.format(*one) for one in numbers))))
    assert [(job.user, job.queue) for job in workload.jobs] == [*numbers[:2], ("7.25", "")]
