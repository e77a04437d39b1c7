"""Groups as read from a service's files: the last end of each job counts, and the numbers are right."""

from pathlib import Path

import pytest

from mallob_py.service import client
from mallob_py.service.jobs.reply import Reply
from mallob_py.service.store.directory import JobDirectory
from mallob_py.service.telemetry import groups as groups_module
from mallob_py.service.telemetry.groups import (
    Group,
    GroupWatch,
    cutoff_of,
    groups_of,
    kind_of,
    live_groups,
    par2,
)
from mallob_py.service.telemetry.history import HistoryWriter, read_history
from mallob_py.service.telemetry.status import EndedJob, GroupStatus, JobStatus, ServiceStatus


def ended(number: int, outcome: str = "result", **fields: object) -> EndedJob:
    known = {"user": "u", "name": f"j{number}", "group": "g", "code": 10 if outcome == "result" else 0}
    return EndedJob(id=number, outcome=outcome, ended=1000.0 + number, **(known | fields))  # type: ignore[arg-type]


def test_a_group_is_a_name_of_one_user_at_all_clients() -> None:
    jobs = [
        ended(1),
        ended(2, user="v"),
        ended(3, group=""),
        ended(4, client=1, name="j1"),
        ended(5, group="h"),
    ]
    groups = groups_of(jobs)
    assert list(groups) == [("v", "g"), ("u", "g"), ("u", "h")]
    assert [job.id for job in groups["u", "g"].results()] == [1, 4]


def test_the_last_ending_of_a_job_counts_and_a_refusal_hides_none() -> None:
    (group,) = groups_of(
        [
            *(ended(1, "failed"), ended(2), ended(3, "refused"), ended(4, "refused", name="j2")),
            *(ended(5, name="j1"), ended(6, name="j3")),
        ]
    ).values()
    assert [(job.id, kind_of(job)) for job in group.results()] == [
        (2, "solved"),
        (5, "solved"),
        (6, "solved"),
    ]


def test_a_job_that_is_live_again_has_no_result_and_counts_once() -> None:
    groups = groups_of(
        [ended(1, "failed"), ended(2)], {("u", "g"): [(0, "j1"), (0, "j3")], ("u", "h"): [(0, "x")]}
    )
    state = groups["u", "g"].state(GroupStatus("u", "g", 2, running=1))
    assert (state.solved, state.failed, state.running, state.waiting, state.jobs) == (1, 0, 1, 1, 3)
    assert groups["u", "h"].state().waiting == 1


def test_a_result_that_says_nothing_solves_nothing() -> None:
    outcomes = ("result", "time-limit", "wallclock-limit", "cpu-limit", "interrupted", "failed", "refused")
    kinds = ["solved", *["unsolved"] * 4, *["failed"] * 2]
    assert [kind_of(ended(1, outcome)) for outcome in outcomes] == kinds
    assert kind_of(ended(1, code=0, result="UNKNOWN")) == "unsolved"
    assert kind_of(ended(1, code=None, result="SAT")) == "solved", "as an older version wrote it"


def test_time_that_is_left_comes_from_the_ends_since_the_group_became_live() -> None:
    (group,) = groups_of(
        [ended(1), ended(100), ended(101)], {("u", "g"): [(0, "a"), (0, "b"), (0, "c")]}
    ).values()
    status = GroupStatus("u", "g", 3, since=1090.0)
    assert group.state(status, now=1110.0).left_s == 3 * 20.0 / 2
    assert group.state(GroupStatus("u", "g", 3, since=1105.0), now=1110.0).left_s is None
    assert group.state(None, now=1110.0).left_s is None
    assert Group(("u", "g")).state(status, now=1110.0).left_s is None


def test_a_status_that_is_older_than_the_files_makes_no_number_negative() -> None:
    (group,) = groups_of([], {("u", "g"): [(0, "a")]}).values()
    state = group.state(GroupStatus("u", "g", 9, running=5, resting=4))
    assert (state.running, state.resting, state.waiting) == (1, 0, 0)


def test_a_group_in_the_status_has_those_as_ended_that_had_ended_then() -> None:
    listed = (JobStatus(9, "u", "j1", "waiting", group="g"),)
    status = ServiceStatus(1010.0, 1, 4, 0, listed, groups=(GroupStatus("u", "g", 700, running=2),))
    jobs = [ended(1, "failed"), ended(2), ended(20), ended(3, group="h"), ended(4, "failed", user="v")]
    (state,) = live_groups(status, jobs)
    assert (state.solved, state.failed, state.running, state.waiting, state.jobs) == (1, 0, 2, 698, 701)
    assert live_groups(ServiceStatus(1010.0, 1, 4, 0), jobs) == []


def test_an_unsolved_job_costs_twice_the_cutoff() -> None:
    jobs = [ended(1, turns_s=10.0), ended(2, "time-limit", turns_s=30.0), ended(3, "failed", turns_s=1.0)]
    assert cutoff_of(jobs) == 30.0
    assert par2(jobs, 30.0) == (10 + 60 + 60) / 3
    assert par2(jobs, 5.0) == 10.0, "what came late counts as unsolved"
    assert par2(jobs[:1], cutoff_of(jobs[:1])) == 10.0
    assert par2(jobs[2:], cutoff_of(jobs[2:])) is None
    assert par2([], 5.0) is None


def hand_in(tmp_path: Path, *names: str) -> None:
    for name in names:
        client.submit(tmp_path / "api", {"user": "u", "name": name, "group": "g"})


def test_live_jobs_are_known_with_and_without_a_service(tmp_path: Path, directory: JobDirectory) -> None:
    hand_in(tmp_path, "a", "b")
    client.submit(tmp_path / "api", {"user": "u", "name": "end", "group": "g", "done": True})
    watch = GroupWatch(tmp_path / "api")
    assert watch.live() == {("u", "g"): {(0, "a"), (0, "b")}}
    directory.take()
    assert watch.look()["u", "g"].live == {(0, "a"), (0, "b")}


def test_a_job_that_ends_while_one_looks_is_missing_at_no_time(
    tmp_path: Path, directory: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_in(tmp_path, "a", "b")
    incoming = directory.take()
    watch, writer = GroupWatch(tmp_path / "api"), HistoryWriter(tmp_path / "api/jobs.0")

    def read_and_answer(api_dir: Path) -> list[EndedJob]:
        jobs = read_history(api_dir)
        directory.reply(incoming[0].internal_id, "u.a", Reply(b"{}"))  # the job's line in the history follows
        return jobs

    with monkeypatch.context() as patch:
        patch.setattr(groups_module, "read_history", read_and_answer)
        assert watch.look()["u", "g"].live == {(0, "a"), (0, "b")}
    writer.add(ended(1, name="a"))
    writer.flush()
    (group,) = watch.look().values()
    assert (group.live, [job.name for job in group.results()]) == ({(0, "b")}, ["a"])


def test_a_job_handed_in_again_is_live_until_its_new_line_is_there(
    tmp_path: Path, directory: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, writer = GroupWatch(tmp_path / "api"), HistoryWriter(tmp_path / "api/jobs.0")
    writer.add(ended(7, "interrupted", name="a"))
    writer.flush()
    hand_in(tmp_path, "a")
    (again,) = directory.take()
    line = ended(8, name="a")

    def answer_while_one_looks(api_dir: Path) -> list[EndedJob]:
        jobs = read_history(api_dir)
        directory.reply(again.internal_id, "u.a", Reply(b'{"internal_id": 8}'))
        return jobs

    with monkeypatch.context() as patch:
        patch.setattr(groups_module, "read_history", answer_while_one_looks)
        group = watch.look()["u", "g"]
    assert (group.live, group.results()) == ({(0, "a")}, [])

    def write_the_line(delay_s: float) -> None:
        writer.add(line)
        writer.flush()

    monkeypatch.setattr(groups_module.time, "sleep", write_the_line)
    assert watch.wait(group).results() == [line]
