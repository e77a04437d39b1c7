"""Explanations of jobs: for every state, the reason and the deciding numbers."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mallob_py.protocol.volumes import fair_volumes
from mallob_py.service.telemetry.explanation import explain, explain_ended, seen_by
from mallob_py.service.telemetry.status import JobStatus, ServiceStatus, UserStatus


def job(state: str = "running", **fields: Any) -> JobStatus:
    known = {"balanced_priority": fields.get("priority", 1.0), "root_is_placed": True, "running_s": 9.0}
    return JobStatus(**({"id": 1, "user": "u", "name": "n", "state": state} | known | fields))


def status_of(*jobs: JobStatus, pes: int = 8, **fields: Any) -> ServiceStatus:
    states = Counter(one.state for one in jobs)
    busy = sum(one.volume for one in jobs)
    return ServiceStatus(0.0, 4, pes, busy, jobs, **({"states": states} | fields))


def told(of: JobStatus, *others: JobStatus, **fields: Any) -> str:
    return "\n".join(explain(status_of(of, *others, **fields), of))


def other(number: int, state: str = "running", **fields: Any) -> JobStatus:
    return job(state, id=number, name=f"other-{number}", **fields)


def test_of_a_job_that_rests_it_is_told_who_has_its_place_and_when_it_goes_on() -> None:
    resting = job("resting", share=0.75, pe_s=12.0, rests_at=3, back_in_s=0.8)
    text = told(resting, *(other(n, volume=1, demand=8, root=n) for n in range(2, 10)))
    assert "9 jobs want workers and there are 8 PEs, so jobs take turns: over time it gets 0.75 PEs" in text
    assert "It rests on PE 3, where u.other-3 is at work now, and goes on in about 0.8 s." in text


def test_a_user_is_told_no_names_of_other_users_jobs() -> None:
    mine = job("resting", share=0.5, rests_at=3)
    holder = msgspec.structs.replace(other(2, volume=1, root=3), user="v", name="secret")
    seen = seen_by("u", status_of(mine, holder, other(3)))
    text = " ".join(explain(seen, mine))
    assert "where another user's job is at work now" in text
    assert "secret" not in text
    held = job("held", waits_for=("v.secret", "u.other-3"), waits_for_count=2)
    assert "v.secret, u.other-3 (running)." in " ".join(explain(seen, held))


def test_a_job_that_has_its_turn_knows_its_share() -> None:
    text = told(job(volume=1, demand=8, share=0.8), *(other(n, volume=1, demand=8) for n in range(2, 10)))
    assert "over time it gets 0.80 PEs" in text


def test_a_job_that_cannot_begin_anew_waits_for_one_of_such_jobs() -> None:
    text = told(job("queued", lasting_before=48), states={"queued": 1, "resting": 44, "running": 4})
    assert "It is a revision, or its input comes through a pipe" in text
    assert "It waits until one of 48 such jobs at work ends; no more of them may be at work" in text


# --- jobs that do not run yet -----------------------------------------------------------------


def test_a_job_waits_for_those_it_depends_on_each_with_its_state() -> None:
    held = job("held", waits_for=("u.other-2", "u.never"), waits_for_count=2)
    text = told(held, other(2, volume=1, demand=1))
    assert (
        "waits for the end of 2 jobs: u.other-2 (running), u.never (nobody has handed it in here yet)" in text
    )


def test_of_many_dependencies_some_are_named() -> None:
    names = tuple(f"u.d{number}" for number in range(20))
    assert "u.d4 (nobody has handed it in here yet), 25 more." in told(
        job("held", waits_for=names, waits_for_count=30)
    )


def test_where_not_all_jobs_are_listed_nothing_is_said_of_those_that_are_not() -> None:
    held = job("held", waits_for=("u.x",), waits_for_count=1)
    assert "1 job: u.x." in told(held, states={"held": 1, "waiting": 1000})


def test_a_job_waits_for_its_arrival() -> None:
    assert "arrival time comes in 12 s" in told(job("held", arrives_in_s=12.0))


def test_a_suspect_waits_for_the_other_suspect() -> None:
    text = told(job("held", is_suspect=True, crashes=2, crashes_max=3))
    assert "waits until another suspect has ended" in text
    assert "running at 2 crashes of the service in a row; after 3 it is not run again" in text


def test_a_suspect_that_runs_runs_alone() -> None:
    text = told(job(volume=1, demand=1, is_suspect=True, crashes=2, crashes_max=3))
    assert "It runs while no other suspect does." in text


def test_a_job_that_nothing_holds_begins() -> None:
    assert "begins within moments" in told(job("held"))


def test_a_job_is_queued_for_its_users_limit() -> None:
    users = {"u": UserStatus(30, 4, at_work=20, at_work_max=20, pes_max=4)}
    text = told(job("queued"), users=users)
    assert (
        "user u may have 20 jobs at work at a time (on at most 4 PEs) and has 20. Of the 30 live jobs of u"
        in text
    )


def test_a_job_is_queued_for_its_clients_part_of_its_users_limit() -> None:
    users = {"u": UserStatus(9, 6, at_work=6, at_work_max=20)}
    others = [other(number, volume=1) for number in range(2, 8)]
    text = told(job("queued"), *others, users=users, clients=3)
    assert "may have 6 jobs at work at a time at its client, of 20 at all clients, and has 6." in text
    elsewhere = [other(number, volume=1, client=1) for number in range(2, 8)]
    assert "may have" not in told(job("queued"), *elsewhere, users=users, clients=3)


def test_a_job_is_queued_where_more_are_at_work_than_could_have_a_pe() -> None:
    mine = job("queued", standing=1.0)
    others = [other(number, "queued", standing=number / 10) for number in range(5, 13)]
    states = {"running": 8, "waiting": 24, "queued": 9, "held": 3}
    text = told(mine, *others, states=states, users={"u": UserStatus(44, 8, at_work=2, at_work_max=5)})
    assert "No further job begins now: 32 jobs at work for 8 PEs, 9 in the queue." in text
    assert "Of the jobs that wait, at least 2 stand before it." in text


def test_a_job_is_reading_its_input() -> None:
    text = told(job("reading", reading_s=3.5), other(2, "reading"))
    assert "has been read, or waits for a reader, for 3.5 s, along with 1 other input" in text
    text = told(job("reading", reading_s=3.5, read_bytes=67_000_000, input_bytes=375_700_000))
    assert "Its input has been read for 3.5 s: 67.0 of 375.7 MB." in text


def test_a_job_has_just_been_submitted() -> None:
    assert "next balancing" in told(job("submitted"))


def test_a_job_waits_for_a_pe_behind_those_of_better_standing() -> None:
    mine = job("waiting", standing=1.0)
    others = [
        *(other(number, volume=1, demand=8) for number in range(2, 4)),
        *(other(number, "waiting", standing=number / 10) for number in range(5, 20)),
    ]
    text = told(mine, *others, pes=2)
    assert "No PE is free for it: 18 jobs want workers and there are 2 PEs" in text
    assert "Of the jobs that wait, 9 stand before it" in text
    assert "60 s of waiting count as much as a doubled priority" in text


def test_a_job_that_waits_for_the_next_epoch_says_so() -> None:
    assert "next balancing" in told(job("waiting"))


# --- the volume of a running job --------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"max_demand": 3, "demand_bound": 3}, "its max-demand is 3"),
        ({"max_demand": 9, "demand_bound": 3}, "its part of what its user u may have, 5 PEs in all"),
        ({"wanted": 3}, "its application wants no more than 3 workers"),
    ],
)
def test_a_job_has_all_that_it_can_use_and_why_that_is_so_much(fields: dict[str, Any], text: str) -> None:
    users = {"u": UserStatus(1, 3, pes_max=5)}
    assert text in told(job(volume=3, demand=3, **fields), users=users)


def test_a_job_has_all_pes() -> None:
    assert "all 8 PEs of the service" in told(job(volume=8, demand=8, wanted=None))


def test_a_job_that_has_just_begun_has_its_root() -> None:
    assert "it has just begun" in told(job(volume=1, demand=1, wanted=1, running_s=0.01))


def test_a_jobs_first_worker_is_being_placed_or_started() -> None:
    assert "is being placed" in told(job(volume=1, demand=1, root_is_placed=False, running_s=0.0))
    assert "has not started yet" in told(job(volume=1, demand=1, running_s=0.0))


def test_a_job_shares_by_priority_what_the_content_ones_leave() -> None:
    mine = job(volume=3, demand=8, priority=2.0)
    text = told(mine, other(2, volume=3, demand=3), other(3, volume=1, demand=8, priority=0.7), pes=7)
    assert "could use 8 workers" in text
    assert "1 job of smaller demand holds 3 of 7 PEs." in text
    assert "2 jobs, this one included, share 4 PEs by priority: its priority of 2, out of 2.7" in text
    assert "in all, is a part of 2.96 PEs." in text


def test_a_job_has_all_that_the_content_ones_leave() -> None:
    assert "It has all PEs that are left: 5." in told(job(volume=5, demand=8), other(2, volume=3, demand=3))


def test_a_job_of_low_priority_has_the_one_worker_that_everybody_gets() -> None:
    mine = job(volume=1, demand=8, priority=0.01)
    large = other(2, volume=7, demand=8)
    assert "the one worker that every job gets" in told(mine, large)
    assert "1 job of low priority has the one worker" in "\n".join(explain(status_of(mine, large), large))


def test_with_as_many_jobs_as_pes_nobody_has_more_than_one() -> None:
    others = [other(number, volume=1, demand=8) for number in range(2, 9)]
    assert "8 jobs want workers and there are 8 PEs, so no job can have more" in told(
        job(volume=1, demand=8), *others
    )


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.integers(1, 40)), min_size=1, max_size=10),
    st.integers(12, 60),
)
def test_the_part_that_is_told_is_the_volume_but_for_rounding(
    asked: list[tuple[float, int]], pes: int
) -> None:
    volumes = fair_volumes([priority for priority, _ in asked], [demand for _, demand in asked], pes)
    jobs = [
        other(number, priority=priority, demand=demand, volume=int(volume))
        for number, ((priority, demand), volume) in enumerate(zip(asked, volumes, strict=True))
    ]
    for one in jobs:
        text = "\n".join(explain(status_of(*jobs, pes=pes), one))
        if "is a part of" in text:
            part = float(text.split("is a part of ")[1].split()[0])
            assert abs(part - one.volume) < len(jobs) + 1
        assert ("It has all that it can use" in text) == (one.volume == one.demand)


def test_the_weight_of_its_user_is_told() -> None:
    users = {"u": UserStatus(3, 3, at_work=3, priorities=5.0, weight=2.0)}
    mine = msgspec.structs.replace(job(volume=1, demand=1, priority=2.5), balanced_priority=1.0)
    text = told(mine, users=users)
    assert (
        "Its priority 2.5 counts as 1: its user u has a weight of 2 for 3 jobs at work, with priorities of 5"
        in text
    )
    assert "of 5 in all." in text


def test_limits_and_what_is_left_of_them_are_told() -> None:
    mine = job(volume=2, demand=2, wallclock_limit_s=300.0, cpu_limit_s=100.0, running_s=40.0, pe_s=60.0)
    text = told(mine, threads=2)
    assert "wallclock-limit of 5 min leaves it 4 min 20 s" in text
    assert "cpu-limit of 100 PE-seconds leaves it 40, enough for 10 s with this volume" in text


def test_it_is_told_how_much_of_its_time_a_job_rested_and_which_limit_counts_that() -> None:
    spent = {"running_s": 40.0, "turns_s": 10.0}
    text = told(job(volume=1, demand=1, time_limit_s=60.0, **spent))
    assert "Its time-limit of 1 min leaves it 50 s with a PE." in text.replace("60 s", "1 min")
    rested = (
        "It rested, or waited for a PE, for 30 s of the 40 s since its start; its time-limit does not count"
    )
    assert rested in text
    assert "wallclock" not in text
    text = told(job(volume=1, demand=1, time_limit_s=60.0, wallclock_limit_s=90.0, **spent))
    assert "its time-limit does not count this time and its wallclock-limit counts this time." in text
    assert "rested" not in told(job(volume=1, demand=1, time_limit_s=60.0, running_s=40.0, turns_s=40.0))
    stats = {"used_wallclock_seconds": 40.0, "used_turns_seconds": 10.0}
    ended = {"result": {"outcome": "time-limit"}, "time-limit": "10s", "stats": stats}
    lines = explain_ended("u.n", ended)
    assert "reached its time-limit (10s with a PE)" in lines[0]
    assert any(line.startswith("It rested") and line.endswith("does not count this time.") for line in lines)


# --- ended jobs -------------------------------------------------------------------------------

STATS = {
    "time": {"parsing": 0.5, "scheduling": 0.002, "processing": 8.0, "total": 8.51},
    **{"used_pe_seconds": 30.0, "used_cpu_seconds": 29.0, "max_volume": 4},
}


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (
            {"result": {"resultstring": "SAT", "outcome": "result", "solver": "glucose4"}},
            "SAT, found by glucose4",
        ),
        (
            {"result": {"outcome": "wallclock-limit"}, "wallclock-limit": "5s"},
            "reached its wallclock-limit (5s) without an answer",
        ),
        ({"result": {"outcome": "cpu-limit"}, "cpu-limit": "5s"}, "reached its cpu-limit (5s of PE time)"),
        ({"result": {"outcome": "interrupted"}}, "it was interrupted."),
        (
            {"result": {"outcome": "time-limit", "complete": False, "value": 7}, "time-limit": "5s"},
            "(5s with a PE) with its best answer so far, of value 7.",
        ),
        (
            {"result": {"outcome": "failed"}, "error": {"field": "files", "message": "x: no such file"}},
            "failed, files: x: no such file",
        ),
        (
            {"result": {"outcome": "refused"}, "error": {"field": "user", "message": "is missing"}},
            "refused, user: is missing",
        ),
    ],
)
def test_what_became_of_a_job_is_told(reply: dict[str, Any], text: str) -> None:
    lines = explain_ended("u.n", reply | {"stats": STATS}, 5.0)
    assert lines[0].startswith("u.n has ended 5 s ago: ")
    assert text in lines[0]
    assert lines[1] == (
        "It took 8.51 s from its acceptance on: 500 ms reading, 2 ms until its root was placed, 8 s running."
    )
    assert lines[2] == "It had up to 4 workers at a time and used 30 PE-seconds, 29 s of CPU time."


def test_a_reply_of_another_version_is_told_as_far_as_it_goes() -> None:
    assert explain_ended("u.n", {"result": {"resultcode": 10}}) == ["u.n has ended: its result is 10."]
    assert explain_ended("u.n", {"result": [], "stats": None})[0].startswith("u.n has ended")
