"""The reader of the Eurora logs."""

import io
import tarfile
from pathlib import Path

import pytest

from mallob_py.batch.workload.eurora import CLUSTER, EuroraError, instances_of, joined, read_eurora

_LOG = (
    "7;xxx;yyy;parallel;2014-04-03 02:05:08__33;2;0;1;4096#41;2;0;1;4096#"
    "__2014-04-03 02:12:19;2014-04-03 02:42:13;2;4;4;00:30;NA;NA;COMPLETED;1\n"
    "6;xxx;yyy;R99;2014-04-03 02:05:06__47;1;2;0;2048#"
    "__2014-04-03 02:11:40;2014-04-03 02:20:43;1;1;4;04:00;NA;NA;COMPLETED;1\n"
)


def _archive(path: Path, **logs: str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in logs.items():
            member = tarfile.TarInfo(f"eurora/job_instances/{name}.log_crypt")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def test_a_log_becomes_jobs_with_demands(tmp_path: Path) -> None:
    path = tmp_path / "one.log_crypt"
    path.write_text(_LOG)
    (workload,) = read_eurora(path)
    first, second = workload.jobs
    assert (first.number, first.queue, first.submit_s, first.nodes) == (6, "reservation", 0.0, 1)
    assert (first.demand, first.estimate_s) == ((1.0, 2.0, 0.0, 2048.0), 14400.0)
    assert (second.number, second.submit_s, second.nodes) == (7, 2.0, 2)
    assert [truth.run_s for truth in workload.truths] == [543.0, 1794.0]
    assert (workload.nodes, workload.name, workload.cluster) == (64, "one", CLUSTER)


def test_instances_are_read_by_name_and_repeated_lines_once(tmp_path: Path) -> None:
    path = _archive(tmp_path / "logs.tar.gz", first=_LOG, second=_LOG + _LOG)
    (workload,) = read_eurora(path, ["second"])
    assert (workload.name, len(workload.jobs)) == ("second", 2)
    assert len(read_eurora(path)) == 2
    with pytest.raises(EuroraError, match="no instance 'third'"):
        read_eurora(path, ["third"])


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "damaged.log_crypt"
    path.write_text(f"{_LOG}8;xxx;yyy;debug;2014\n")
    with pytest.raises(EuroraError, match=r"damaged\.log_crypt, line 3: no job"):
        read_eurora(path)
    for amount in ("nan", "inf"):
        path.write_text(_LOG.replace("__33;2;", f"__33;{amount};"))
        with pytest.raises(EuroraError, match=r"line \d: no job \(an amount is not finite\)"):
            read_eurora(path)
    path.write_text("")
    with pytest.raises(EuroraError, match="no jobs in it"):
        read_eurora(path)


def test_logs_are_put_together_with_each_job_once_and_at_its_time(tmp_path: Path) -> None:
    later = _LOG.splitlines()[0].replace("7;xxx", "9;xxx").replace("02:05:08", "03:05:08")
    path = _archive(tmp_path / "logs.tar.gz", second=later + "\n" + _LOG.splitlines()[0] + "\n", first=_LOG)
    assert instances_of(path) == ["first", "second"]
    whole = joined(read_eurora(path), "whole")
    assert [(job.id, job.number, job.submit_s) for job in whole.jobs] == [(0, 6, 0), (1, 7, 2), (2, 9, 3602)]
    assert [truth.run_s for truth in whole.truths] == [543.0, 1794.0, 1794.0]
    assert (whole.name, whole.nodes, whole.cluster) == ("whole", 64, CLUSTER)
