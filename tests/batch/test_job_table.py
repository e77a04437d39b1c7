"""Job tables of the Argonne Leadership Computing Facility, as traces."""

import gzip
from pathlib import Path

import pytest

from mallob_py.batch.workload.job_table import read_job_table
from mallob_py.batch.workload.swf import SwfError, workload_of

#: some columns of the table, in the table's order, including columns that are ignored
HEAD = (
    "JOB_NAME,COBALT_JOBID,MACHINE_NAME,QUEUED_TIMESTAMP,QUEUED_DATE_ID,START_TIMESTAMP,END_TIMESTAMP,"
    "USERNAME_GENID,PROJECT_NAME_GENID,QUEUE_NAME,WALLTIME_SECONDS,RUNTIME_SECONDS,NODES_USED,"
    "NODES_REQUESTED,CORES_USED,LOCATION,EXIT_STATUS"
)
LINES = (
    "507000.theta,507000,theta,2021-01-01 00:01:00,20210101,2021-01-01 00:03:00,2021-01-01 00:04:30,u9,p1,"
    'default,600.0,90.0,128.0,128.0,8192,"1-64,70-133",0',
    "506999.theta,506999,theta,2021-01-01 00:00:30.500,20210101,2021-01-01 00:01:00.5,2021-01-01 00:01:40,u7,"
    "p2,debug,1200,39.5,,8,512,3-10,1",
    "506998.theta,506998,theta,,20210101,,,u9,p1,default,600,0,0,4,0,,271",
)


def table(folder: Path, *lines: str, name: str = "jobs.csv") -> Path:
    content = "\r\n".join([HEAD, *(lines or LINES), ""]).encode()
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@pytest.mark.parametrize("name", ["jobs.csv", "ANL-ALCF-DJC-THETA_20210101_20211231.csv.gz"])
def test_a_job_table_becomes_jobs_on_whole_nodes(tmp_path: Path, name: str) -> None:
    swf = read_job_table(table(tmp_path, name=name), strict=True)
    assert swf.rows[:, 2].tolist() == [120, 30, -1]
    workload = workload_of(swf, nodes=200)
    assert [(job.number, job.submit_s, job.nodes, job.estimate_s) for job in workload.jobs] == [
        (506999, 1, 8, 1200),
        (507000, 30.5, 128, 600),
    ]
    assert [truth.run_s for truth in workload.truths] == [39.5, 90]
    assert [(job.user, job.queue) for job in workload.jobs] == [("2", "2"), ("1", "1")]
    assert workload.left_out == (("without a time of submission", 1),)
    with pytest.raises(ValueError, match="its largest job has size 128"):
        workload_of(swf)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (LINES[0].replace("2021-01-01 00:01:00", "yesterday"), "QUEUED_TIMESTAMP is 'yesterday'"),
        (LINES[0].replace("90.0", "nan"), "RUNTIME_SECONDS is 'nan'"),
        (LINES[0].replace("128.0,128.0", "1e99,1"), "NODES_USED is '1e99'"),
        ("507000.theta,507000", "2 fields, too few for the columns"),
    ],
)
def test_damaged_lines_of_a_table_are_named_and_left_out(tmp_path: Path, line: str, problem: str) -> None:
    path = table(tmp_path, LINES[1], line)
    swf = read_job_table(path)
    assert len(swf.rows) == 1
    assert swf.damaged == (f"{path}, line 3: {problem}",)
    with pytest.raises(SwfError, match=f"line 3: {problem}"):
        read_job_table(path, strict=True)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "line 1: not a job table of ALCF: no column JOB_NAME, QUEUED_TIMESTAMP,"),
        (
            HEAD.replace("NODES_USED", "NODES"),
            "line 1: not a job table of ALCF: no column NODES_USED$",
        ),
        (f"{HEAD}\n", "no jobs in it$"),
        (f"{HEAD}\nx\n", "no jobs in it .*line 2: 1 fields"),
        (f'{HEAD}\n"{"x" * 200_000}"\n', "line 2: field larger than field limit"),
    ],
)
def test_a_file_that_is_no_job_table_is_an_error(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(content)
    with pytest.raises(SwfError, match=problem):
        read_job_table(path)
