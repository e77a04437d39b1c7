"""`status` of a service that runs, that has died, or that never existed."""

import contextlib
import json
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from unread_output import code_without_reader

from mallob_py.cli import main as main_module
from mallob_py.service.store.lock import DirectoryLock
from mallob_py.service.telemetry import status as status_module
from mallob_py.service.telemetry.status import (
    STATUS_FILE_NAME,
    EndedJob,
    HostStatus,
    JobProgress,
    JobStatus,
    ServiceStatus,
    Totals,
    UserStatus,
    read_status,
    remove_status,
    write_status,
)

JOB = JobStatus(7, "alice", "sort", "active", priority=0.5, volume=3, demand=4, elapsed_s=12.25)
OTHER = JobStatus(8, "bob", "route", "waiting", priority=2.0)


def status_of(*jobs: JobStatus, **fields: Any) -> ServiceStatus:
    states = Counter(job.state for job in jobs)
    users = {job.user: UserStatus(1, job.volume) for job in jobs}
    return ServiceStatus(time.time(), 2, 4, 3, jobs, **({"states": states, "users": users} | fields))


def run(api_dir: Path, *arguments: str) -> int:
    return main_module.main(["status", "--api-dir", str(api_dir), *arguments])


def test_live_jobs_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_status(tmp_path, status_of(JOB))
    assert run(tmp_path) == 0
    printed = capsys.readouterr().out
    assert "3 of 4 busy" in printed
    assert "alice" in printed


def test_a_service_runs_even_if_nobody_reads_that(tmp_path: Path) -> None:
    write_status(tmp_path, status_of(JOB))
    assert code_without_reader("status", "--api-dir", str(tmp_path), env={}) == 0


def test_a_status_that_is_damaged_is_none(tmp_path: Path) -> None:
    write_status(tmp_path, status_of(JOB))
    path = tmp_path / STATUS_FILE_NAME
    path.write_bytes(path.read_bytes().replace(b"alice", b"\xff"))
    assert read_status(tmp_path) is None


def test_an_idle_service_has_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_status(tmp_path, ServiceStatus(time.time(), ranks=2, pes=4, busy=0))
    assert run(tmp_path) == 0
    assert "0 of 4 busy" in (printed := capsys.readouterr().out)
    assert "NAME" not in printed


def test_status_has_the_columns_of_top(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pipe, `status` prints all columns of `top`, and whole names."""
    monkeypatch.delenv("COLUMNS", raising=False)
    long = msgspec.structs.replace(OTHER, name="n" * 90, progress=JobProgress(1.5e9, 2.5e6, unit="tasks"))
    write_status(tmp_path, status_of(JOB, long))
    run(tmp_path)
    of_status = capsys.readouterr().out.splitlines()
    main_module.main(["top", "--once", "--api-dir", str(tmp_path)])
    assert capsys.readouterr().out.splitlines() == of_status


def test_progress_is_a_column_where_any_job_tells_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    far = msgspec.structs.replace(OTHER, progress=JobProgress(1.5e9, 2.5e6, unit="no\x1bdes"))
    write_status(tmp_path, status_of(JOB, far))
    run(tmp_path)
    printed = capsys.readouterr().out
    assert "PROGRESS" in printed
    assert "1.5G no\\x1bdes, 2.5M/s" in printed
    write_status(tmp_path, status_of(JOB, OTHER))
    run(tmp_path)
    assert "PROGRESS" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "first"),
    [
        ("volume", "sort"),
        ("priority", "route"),
        ("age", "sort"),
        ("name", "route"),
        ("user", "sort"),
        ("id", "route"),
    ],
)
def test_jobs_are_sorted_as_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, first: str
) -> None:
    write_status(tmp_path, status_of(JOB, OTHER))
    assert run(tmp_path, "--sort", key) == 0
    table = capsys.readouterr().out.partition("STATE")[2]
    second = {"sort": "route", "route": "sort"}[first]
    assert table.index(first) < table.index(second)


def test_the_jobs_of_one_user_are_listed_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    users = {"alice": UserStatus(1, 3), "bob": UserStatus(1000, 0)}
    write_status(tmp_path, status_of(JOB, OTHER, states={"active": 1, "waiting": 1000}, users=users))
    assert run(tmp_path, "--user", "bob") == 0
    printed = capsys.readouterr().out
    assert "route" in printed
    assert "sort" not in printed
    assert printed.endswith("... and 999 more jobs\n")


def test_hosts_are_listed_with_their_troubles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = (HostStatus("node1", (0, 1, 2, 5), 8, 3), HostStatus("node2", (3, 4), 4, 0, ("short of memory",)))
    write_status(tmp_path, status_of(JOB, hosts=hosts))
    assert run(tmp_path, "--hosts") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["node1", "0-2,5", "8", "3", "<20", "-"] in lines
    assert ["node2", "3-4", "4", "0", "<20", "short", "of", "memory"] in lines


def test_a_host_in_trouble_is_told_without_asking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_status(tmp_path, status_of(JOB, hosts=(HostStatus("node2", (3,), 4, 0, ("short of memory",)),)))
    run(tmp_path)
    assert "node2: short of memory" in capsys.readouterr().out


def test_ended_jobs_are_listed_newest_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = time.time()
    ended = (
        EndedJob(1, "alice", "one", "result", now - 9, "SAT", pe_s=4.0, cpu_s=3.5),
        EndedJob(2, "bob", "two", "failed", now - 5, error="files: gone"),
    )
    write_status(tmp_path, status_of(JOB, ended=ended))
    assert run(tmp_path, "--ended") == 0
    printed = capsys.readouterr().out
    assert printed.index("files: gone") < printed.index("SAT")
    assert "4.000    3.500" in printed
    assert "sort" not in printed


def test_the_services_numbers_are_printed_as_they_are_declared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = status_of(JOB)
    write_status(tmp_path, status)
    assert run(tmp_path, "--measures") == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert ["pes{busy}", str(status.busy)] in lines
    assert ["ranks", str(status.ranks)] in lines


def test_hosts_and_ended_jobs_are_two_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--hosts", "--ended") == 2
    assert "--hosts and --ended cannot be combined" in capsys.readouterr().err


def test_a_name_cannot_write_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_status(tmp_path, status_of(JobStatus(1, "eve", "x\x1b]0;owned\x07\ny[red]", "running", volume=1)))
    run(tmp_path)
    printed = capsys.readouterr().out
    assert "x\\x1b]0;owned\\x07\\ny[red]" in printed
    assert "\x1b" not in printed


def test_json_has_all_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_status(tmp_path, ServiceStatus(time.time(), ranks=2, pes=4, busy=3, jobs=(JOB,)))
    assert run(tmp_path, "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert status["jobs"][0]["demand"] == 4
    assert {"time", "ranks", "pes", "busy", "jobs"} <= set(status)


def test_without_a_service_the_exit_code_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 1
    assert "no service is running" in capsys.readouterr().err


def test_a_service_that_was_killed_leaves_a_stale_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_status(tmp_path, ServiceStatus(time.time() - 100, ranks=2, pes=4, busy=3))
    assert run(tmp_path) == 1
    assert "no service is running on" in (said := capsys.readouterr().err)
    assert re.search(r"last sign of life is 1\d\d s old", said)


def test_a_service_whose_rank_hangs_is_not_said_to_be_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_module, "_WATCHED_S", 0.0)
    write_status(tmp_path, ServiceStatus(time.time() - 100, ranks=2, pes=4, busy=3))
    (tmp_path / "jobs.0").mkdir()
    with contextlib.closing(DirectoryLock(tmp_path / "jobs.0", pytest.fail)):
        assert run(tmp_path) == 1
    said = capsys.readouterr().err
    assert f"does not answer (process {os.getpid()} on " in said
    assert re.search(r"last sign of life is 1\d\d s old", said)


def test_a_status_that_cannot_be_read_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / STATUS_FILE_NAME).write_text('{"time": 1')
    assert read_status(tmp_path) is None
    remove_status(tmp_path)
    remove_status(tmp_path)
    assert not (tmp_path / STATUS_FILE_NAME).exists()


def test_the_clients_of_a_service_make_one_status(tmp_path: Path) -> None:
    (tmp_path / "jobs.1").mkdir()
    other = JobStatus(8, "bob", "route", "running", volume=1, client=1)
    first, second = Totals({"result": 2}, pe_s=1.0), Totals({"result": 1, "failed": 1}, pe_s=2.0)
    early, late = EndedJob(1, "u", "n", "result", 1.0), EndedJob(2, "u", "m", "result", 2.0)
    here = {"alice": UserStatus(1, 3, at_work=5), "bob": UserStatus(2, 0, at_work=1)}
    there = {"bob": UserStatus(1, 1, at_work=3)}
    write_status(tmp_path, status_of(JOB, clients=2, totals=first, ended=(late,), users=here))
    write_status(tmp_path, status_of(other, clients=2, totals=second, ended=(early,), users=there), client=1)
    status = read_status(tmp_path)
    assert status is not None
    assert [job.identity for job in status.jobs] == ["alice.sort", "bob.route"]
    assert status.totals.replies == {"result": 3, "failed": 1}
    assert status.totals.pe_s == 3.0
    assert status.job("bob.route", client=1) == other
    assert status.job("bob.route", client=0) is None
    assert status.states == {"active": 1, "running": 1}
    assert status.ended == (early, late)
    assert status.users == {"alice": UserStatus(1, 3, at_work=5), "bob": UserStatus(3, 1, at_work=3)}


def test_what_a_client_of_an_earlier_service_left_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "jobs.1").mkdir()
    write_status(tmp_path, ServiceStatus(time.time() - 100, 2, 4, 3, (JOB,), clients=2), client=1)
    write_status(tmp_path, ServiceStatus(time.time(), 2, 4, 3, clients=2))
    status = read_status(tmp_path)
    assert status is not None
    assert status.jobs == ()
