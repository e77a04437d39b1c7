"""The history of the last minutes: its content, and its bounds."""

import msgspec
import pytest

from mallob_py.protocol.rank_messages import WorkerPlace
from mallob_py.service.telemetry.status import JobStatus, ServiceStatus
from mallob_py.web import views
from mallob_py.web.views import SAMPLES_MAX, History, HistoryPart


def status_at(time_s: float, *jobs: JobStatus, pes: int = 8, trees: bool = False) -> ServiceStatus:
    places = [WorkerPlace(index, job.id, index) for job in jobs for index in range(job.volume)]
    busy = sum(job.volume for job in jobs)
    return ServiceStatus(time_s, 4, pes, busy, jobs, workers=tuple(places) if trees else None)


def job(number: int, volume: int, name: str = "n") -> JobStatus:
    return JobStatus(number, "u", name, "running", volume=volume, demand=8, balanced_priority=1.0)


def part(kept: History, since_s: float = 0.0) -> HistoryPart:
    return msgspec.json.decode(kept.since(since_s), type=HistoryPart)


def test_volumes_shares_and_trees_of_a_moment() -> None:
    kept = History()
    kept.note(status_at(1.0, job(1, 2, "a"), job(2, 6, "b"), trees=True))
    (sample,) = part(kept).samples
    assert (sample.pes, sample.busy, sample.others) == (8, 8, 0)
    assert sample.volumes == {1: 2, 2: 6}
    assert sample.shares == {1: 4.0, 2: 4.0}
    assert sample.workers is not None
    assert len(sample.workers) == 8
    assert {number: name.name for number, name in part(kept).jobs.items()} == {1: "a", 2: "b"}


def test_the_volume_of_a_job_that_takes_turns_is_what_it_had_since_the_last_moment() -> None:
    kept = History()
    for time_s, had_s, volume in ((1.0, 10.0, 1), (3.0, 11.5, 0), (4.0, 11.5, 1)):
        turning = msgspec.structs.replace(job(1, volume), share=0.75, pe_s=had_s)
        kept.note(status_at(time_s, turning, job(2, 3)))
    assert [sample.volumes for sample in part(kept).samples] == [{1: 1, 2: 3}, {1: 0.75, 2: 3}, {2: 3}]
    assert [sample.shares[1] for sample in part(kept).samples] == [0.75, 0.75, 0.75]


def test_a_moment_is_kept_once_and_sent_to_who_has_not_seen_it() -> None:
    kept = History()
    for time_s in (1.0, 1.0, 2.0, 1.5, 3.0):
        kept.note(status_at(time_s, job(int(time_s), 1)))
    assert [sample.time for sample in part(kept).samples] == [1.0, 2.0, 3.0]
    assert [sample.time for sample in part(kept, 2.0).samples] == [3.0]
    assert set(part(kept, 2.0).jobs) == {3}


def test_a_user_is_told_the_names_of_no_other_users_jobs() -> None:
    kept = History()
    kept.note(status_at(1.0, job(1, 2, "a"), msgspec.structs.replace(job(2, 6, "secret"), user="v")))
    told = msgspec.json.decode(kept.since(0.0, "u"), type=HistoryPart)
    assert {number: name.name for number, name in told.jobs.items()} == {1: "a"}
    assert set(part(kept).jobs) == {1, 2}


def test_the_oldest_moments_go_and_with_them_the_names_of_their_jobs() -> None:
    kept = History()
    for number in range(SAMPLES_MAX + 5):
        kept.note(status_at(float(number), job(number, 1)))
    times = [sample.time for sample in part(kept, -1.0).samples]
    assert times == [float(number) for number in range(5, SAMPLES_MAX + 5)]
    assert sorted(part(kept, -1.0).jobs) == list(range(5, SAMPLES_MAX + 5))


def test_large_trees_do_not_take_more_than_the_room_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_BYTES_MAX", 100_000)
    kept = History()
    for number in range(100):
        kept.note(status_at(float(number), job(1, 1000), pes=1000, trees=True))
    assert 1 < len(part(kept, -1.0).samples) < 20
    assert len(kept.since(-1.0)) < 120_000


def test_many_small_jobs_are_told_as_one_sum() -> None:
    kept = History()
    kept.note(status_at(1.0, *(job(number, 1) for number in range(1, 81)), pes=100))
    (sample,) = part(kept).samples
    assert len(sample.volumes) == 50
    assert sample.others == 30


def test_jobs_of_a_group_that_are_not_named_are_told_as_a_sum_of_the_group() -> None:
    kept = History()
    grouped = [msgspec.structs.replace(job(number, 1), group="ab"[number % 2]) for number in range(1, 81)]
    kept.note(status_at(1.0, *grouped, job(81, 3), pes=100))
    history = part(kept)
    (sample,) = history.samples
    assert (sample.others, sample.groups) == (31, {50: 16, 51: 15})
    assert [history.jobs[number].group for number in (50, 51)] == ["a", "b"]
