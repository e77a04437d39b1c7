"""A report shows what a run's event log contains; of a damaged log, it shows the readable events."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mallob_py.cli import main as main_module
from mallob_py.cli.report import describe
from mallob_py.service.telemetry.event_log import Event, EventLog, LogFiles, read_events, run_name
from mallob_py.service.telemetry.report import CREATION_RATIO_MEANS, VOLUME_INSTANTS, make_report, percentile


def story() -> list[tuple[float, int, str, dict[str, Any]]]:
    """Return events of two ranks over 10 s: job 1 has one worker from 1 s, two from 5 s, and ends at 9 s."""
    accepted = {"job": 1, "user": "alice", "name": "sort", "application": "SAT", "priority": 2.0}
    ended = {"job": 1, "outcome": "result", "response_s": 8.5, "wallclock_s": 8.0}
    ended |= {"pe_s": 12.0, "cpu_s": 11.5}
    return [
        (0.0, 0, "start", {"ranks": 2, "clients": 1, "version": "0", "mode": "simulated"}),
        (0.25, 0, "refused", {"file": "x.json", "field": "user", "message": "missing"}),
        (0.5, 0, "accepted", accepted),
        (0.5, 0, "submitted", {"job": 1, "priority": 2.0, "demand": 1, "client": 0}),
        (0.9, 0, "balanced", {"job": 1, "latency_s": 0.002}),
        (1.0, 0, "busy", {}),
        (1.0, 0, "volume", {"job": 1, "volume": 1, "epoch": 1}),
        (1.0, 0, "scheduled", {"job": 1, "root": 0, "latency_s": 0.004}),
        (1.0, 0, "adopted", {"job": 1, "index": 0, "latency_s": 0.001, "created": True}),
        (5.0, 1, "busy", {}),
        (5.0, 0, "volume", {"job": 1, "volume": 2, "epoch": 2}),
        (5.0, 1, "adopted", {"job": 1, "index": 1, "latency_s": 0.003, "created": False}),
        (9.0, 0, "ended", {**ended, "max_volume": 2, "peak_memory_bytes": 345_000_000}),
        (9.0, 0, "answered", {"job": 1, "code": 10, "result": "SAT"}),
        (9.0, 0, "idle", {}),
        (9.0, 1, "idle", {}),
        (10.0, 1, "stop", {}),
    ]


def events() -> list[Event]:
    return [Event(t, rank, event, fields) for t, rank, event, fields in story()]


def write_logs(folder: Path) -> None:
    for rank in (0, 1):
        log = EventLog(LogFiles(folder, rank), rank, epoch_start=100.0)
        for t, author, event, fields in story():
            if author == rank:
                log.write(100.0 + t, event, fields)
        log.close()


def test_a_job_row_has_what_the_client_said_and_how_it_ended() -> None:
    (job,) = make_report(events()).jobs
    assert (job.name, job.priority, job.outcome, job.code) == ("alice.sort", 2.0, "result", 10)
    assert job.result == "SAT"
    assert (job.response_s, job.wallclock_s, job.max_volume) == (8.5, 8.0, 2)
    assert (job.pe_s, job.cpu_s) == (12.0, 11.5)
    assert job.peak_memory_mb == 345.0
    assert job.mean_volume == pytest.approx(1.5)


def test_utilisation_counts_busy_ranks_over_all_ranks() -> None:
    utilisation = make_report(events()).utilisation
    assert utilisation.mean == pytest.approx(12 / 20)
    assert utilisation.bins == pytest.approx([0, 0.5, 0.5, 0.5, 0.5, 1, 1, 1, 1, 0])


def test_utilisation_counts_the_pes_of_ranks_that_host_several() -> None:
    """The two PEs of the log belong to one rank, which also hosts a third PE without work."""
    told = {"ranks": 1, "pes": 3, "capacity": 3}
    report = make_report(
        [Event(one.t, one.rank, one.event, told if one.event == "start" else one.fields) for one in events()]
    )
    assert (report.ranks, report.pes) == (1, 3)
    assert report.utilisation.mean == pytest.approx(12 / 30)
    assert "1 ranks with 3 PEs" in describe(report)


def test_in_logs_that_do_not_tell_of_pes_each_rank_is_one() -> None:
    report = make_report(events())
    assert (report.ranks, report.pes) == (2, 2)
    assert "2 ranks (simulated)" in describe(report)


def test_latencies_are_in_milliseconds_and_name_every_kind() -> None:
    rows = {row.kind: row for row in make_report(events()).latencies}
    assert rows["scheduled"].median_ms == pytest.approx(4.0)
    assert (rows["adopted"].median_ms, rows["adopted"].max_ms) == pytest.approx((3.0, 3.0))
    assert (rows["started"].count, rows["started"].p99_ms) == (0, None)


def test_volumes_are_sampled_over_the_run() -> None:
    volumes = make_report(events()).volumes
    assert len(volumes.instants_s) == VOLUME_INSTANTS
    ((job, samples),) = volumes.jobs
    assert job == 1
    assert samples == (None, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, None)


def test_a_root_is_scheduled_and_no_further_worker() -> None:
    rows = {row.kind: row for row in make_report(events()).latencies}
    assert (rows["scheduled"].count, rows["adopted"].count) == (1, 1)


def test_reuse_tells_created_from_continued_workers() -> None:
    reuse = make_report(events()).reuse
    assert (reuse.created, reuse.reused) == (1, 1)
    assert reuse.creation_ratio_total == pytest.approx(0.5)


@pytest.mark.parametrize("lost", ["submitted", "ended"])
def test_a_job_of_which_the_log_does_not_hold_both_ends_has_no_creation_ratio(lost: str) -> None:
    reuse = make_report([event for event in events() if event.event != lost]).reuse
    assert (reuse.created, reuse.reused) == (1, 1)
    assert reuse.creation_ratio_total is None


def test_a_worker_adopted_after_the_end_of_its_job_does_not_count_as_created() -> None:
    late = Event(9.5, 1, "adopted", {"job": 1, "index": 1, "latency_s": 0.001, "created": True})
    report = make_report(sorted([*events(), late], key=lambda event: event.t))
    assert report.jobs[0].created_workers == 1
    assert report.reuse.creation_ratio_total == pytest.approx(0.5)


def test_the_report_says_what_its_latencies_and_ratios_are() -> None:
    text = describe(make_report(events()))
    assert "a further worker is placed" in text
    assert CREATION_RATIO_MEANS in text


def test_a_job_without_an_end_is_unfinished_and_a_busy_rank_is_busy_until_the_end() -> None:
    report = make_report(events()[:10])
    assert report.jobs[0].outcome == "unfinished"
    assert report.jobs[0].mean_volume == pytest.approx(1.0)
    assert report.utilisation.mean == pytest.approx(4 / 10)


@pytest.mark.parametrize("length", range(len(story()) + 1))
def test_a_log_cut_off_anywhere_gives_a_report(length: int) -> None:
    assert "Latencies" in describe(make_report(events()[:length]))


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([row[2] for row in story()]), st.booleans())))
def test_events_in_any_order_give_a_report(choices: list[tuple[int, str, bool]]) -> None:
    fields_of = {event: fields for _, _, event, fields in story()}
    chosen = [
        Event(0.5 * t, rank, event, fields_of[event] if with_fields else {"job": "one", "volume": None})
        for t, (rank, event, with_fields) in enumerate(choices)
    ]
    report = make_report(chosen)
    assert all(0 <= share <= 1 + 1e-9 for share in report.utilisation.bins)
    assert describe(report)


@given(st.lists(st.integers(0, 1000), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_the_smallest_value_that_covers_its_share(values: list[int], share: float) -> None:
    ordered = sorted(values)
    chosen = percentile(ordered, share)
    assert sum(value <= chosen for value in ordered) >= share * len(ordered)
    assert sum(value < chosen for value in ordered) < share * len(ordered)


def test_the_command_reads_all_ranks_and_prints_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_logs(tmp_path)
    assert main_module.main(["report", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("2 ranks (simulated), 10.00 s, 1 jobs (1 SAT), 1 refused, 0 workers crashed")
    assert "alice.sort" in printed


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_logs(tmp_path)
    assert main_module.main(["report", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["utilisation"]["mean"] == pytest.approx(0.6)


@pytest.mark.parametrize("name", ["empty", "missing", "empty.jsonl"])
def test_what_holds_no_logs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.jsonl").touch()
    assert main_module.main(["report", str(tmp_path / name)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert str(tmp_path / name) in captured.err


def test_logs_without_an_event_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "0.jsonl").write_text("{")
    assert main_module.main(["report", str(tmp_path)]) == 2
    assert "no event" in capsys.readouterr().err


def test_sat_is_told_from_unsat() -> None:
    second = [
        Event(9.5, 0, "ended", {"job": 2, "outcome": "result"}),
        Event(9.5, 0, "answered", {"job": 2, "code": 20, "result": "UNSAT"}),
        Event(9.6, 0, "ended", {"job": 3, "outcome": "wallclock-limit"}),
    ]
    text = describe(make_report([*events(), *second]))
    assert "3 jobs (1 SAT, 1 UNSAT, 1 wallclock-limit)" in text
    table = text.partition("Jobs\n")[2].splitlines()[2:5]
    assert [line.split()[3:5] for line in table] == [
        ["result", "SAT"],
        ["result", "UNSAT"],
        ["wallclock-limit", "-"],
    ]


def test_what_an_application_tells_of_its_workers_is_a_table_of_its_job() -> None:
    rows = [{"worker": 0, "solver": "one", "used": 5}, {"worker": 1, "solver": "other", "wait [ms]": 30}]
    answer = Event(9.5, 0, "answered", {"job": 1, "code": 10, "result": "SAT", "figures": rows})
    text = describe(make_report([*events(), answer]))
    table = text.partition("Workers of job 1\n")[2].splitlines()
    assert [line.split() for line in table[::2]] == [
        ["worker", "solver", "used", "wait", "[ms]"],
        ["0", "one", "5", "-"],
    ]
    assert table[3].split() == ["1", "other", "-", "30"]
    assert "Workers of job" not in describe(make_report(events()))


def test_a_simulated_run_in_the_same_folder_is_named_and_can_be_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_logs(tmp_path / run_name(1.0))
    simulated = tmp_path / "simulated.jsonl"
    lines = (b"".join(path.read_bytes() for path in (tmp_path / run_name(1.0)).iterdir())).splitlines()
    simulated.write_bytes(b"\n".join(lines[:3]) + b"\n")
    assert main_module.main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().err == (
        f"mallob-py report: this is {tmp_path / run_name(1.0)}; {tmp_path} holds another run, too, such as "
        f"of a simulation: {simulated}\n"
    )
    assert main_module.main(["report", str(simulated)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "unfinished" in captured.out


def test_of_several_runs_the_newest_is_reported_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, newest = (tmp_path / run_name(second) for second in (1.0, 2.5))
    write_logs(newest)
    (tmp_path / run_name(9.0)).mkdir()  # the log folder of a service that could not start
    assert main_module.main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""
    log = EventLog(LogFiles(before, 0), 0, 0.0)
    log.write(0.0, "start", {"ranks": 7, "unix_s": 1.0})
    log.close()
    assert main_module.main(["report", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == (
        f"mallob-py report: {tmp_path} holds 2 runs, this is the newest: {newest}. The one before: {before}\n"
    )
    assert captured.out.startswith("2 ranks")
    assert main_module.main(["report", str(before)]) == 0
    assert capsys.readouterr() == (describe(make_report(read_events(before))) + "\n", "")


def test_a_report_says_when_the_run_started_and_where_its_log_begins() -> None:
    told = {"ranks": 2, "mode": "real", "unix_s": 86400.0}
    whole = [Event(0.0, 0, "start", told), Event(90.0, 0, "continued", told), Event(100.0, 1, "stop", {})]
    assert describe(make_report(whole)).startswith("2 ranks (real), started 1970-01-02 00:00:00 UTC, 100")
    head = describe(make_report(whole[1:])).split("\n", 1)[0]
    assert "started 1970-01-02 00:00:00 UTC, from 90" in head
    assert "see --log-size), 10" in head


def test_a_torn_last_line_is_passed_over_in_silence(tmp_path: Path) -> None:
    write_logs(tmp_path)
    complete = len(read_events(tmp_path))
    with (tmp_path / "1.jsonl").open("ab") as file:
        file.write(b'{"t": 11.0, "rank": 1, "ev')
    complaints: list[int] = []
    assert len(read_events(tmp_path, lambda _, line: complaints.append(line))) == complete
    assert complaints == []


def test_a_bad_line_in_the_middle_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "0.jsonl").write_bytes(b'{"t": 1, "rank": 0, "event": "busy"}\n[]\n{"t": 1}\n\xff\n')
    assert main_module.main(["report", str(tmp_path)]) == 0
    assert [
        f"0.jsonl:{line}" in capsys_line
        for line, capsys_line in zip((2, 3, 4), capsys.readouterr().err.splitlines(), strict=True)
    ] == [True, True, True]
