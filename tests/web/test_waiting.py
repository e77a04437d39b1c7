"""Many requests wait for many jobs: the end of a job costs a read of this job's files only."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mallob_py.protocol.effects import Outcome
from mallob_py.service.client import Pending, PendingJobs
from mallob_py.service.jobs.job_file import InputUse, JobFile
from mallob_py.service.jobs.reply import Ending, JobStatistics, result_reply
from mallob_py.service.store.directory import JobDirectory
from mallob_py.web.store import Record, Store

pytest.importorskip("starlette", reason="needs the extra web")

from mallob_py.web.jobs import Jobs
from mallob_py.web.looks import Arrivals

JOBS = 100
DEADLINE_S = 30.0


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[JobDirectory]:
    opened = JobDirectory(tmp_path, tmp_dir=tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def store(tmp_path: Path, directory: JobDirectory) -> Iterator[Store]:
    opened = Store(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def jobs(tmp_path: Path, store: Store) -> Jobs:
    return Jobs(tmp_path, 0, store, None)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list to which each search for all jobs without a reply adds an entry."""
    done: list[None] = []
    look = PendingJobs.look

    def counted(self: PendingJobs) -> Pending:
        done.append(None)
        return look(self)

    monkeypatch.setattr(PendingJobs, "look", counted)
    return done


def upload(jobs: Jobs, store: Store, name: str) -> Record:
    under_way = store.begin()
    under_way.path.write_bytes(b"p cnf 1 1\n1 0\n")
    return jobs.submit({"user": "u", "name": name}, under_way, 14, is_name_unique=False)


def hand_in(jobs: Jobs, store: Store, **fields: Any) -> Record:
    under_way = store.begin()
    try:
        return jobs.submit({"user": "u", "literals": [1, 0]} | fields, under_way, 0, is_name_unique=False)
    finally:
        under_way.discard()


def claim(directory: JobDirectory) -> list[tuple[int, JobFile]]:
    claimed: list[tuple[int, JobFile]] = []
    for incoming in directory.take(JOBS):
        job = incoming.parse({"SAT": InputUse.REQUIRED})
        assert isinstance(job, JobFile)
        claimed.append((incoming.internal_id, job))
    return claimed


def answer(directory: JobDirectory, internal_id: int, job: JobFile) -> None:
    path = directory.solution_path(internal_id, job.identity)
    directory.reply(
        internal_id,
        job.identity,
        result_reply(job, internal_id, Ending(Outcome.RESULT), JobStatistics(), path),
    )
    directory.take()  # replies are published at the next turn at the latest


def test_ends_of_many_jobs_are_seen_without_looking_at_all_jobs_for_each(
    jobs: Jobs, store: Store, directory: JobDirectory, looks: list[None]
) -> None:
    records = [upload(jobs, store, f"n{number}") for number in range(JOBS)]
    for claimed in claim(directory):
        answer(directory, *claimed)
    assert [jobs.get(record.id).ended is not None for record in records] == [True] * JOBS
    assert looks == []


def test_a_reply_of_the_same_name_is_not_taken_for_that_of_a_later_job(
    jobs: Jobs, store: Store, directory: JobDirectory
) -> None:
    first = hand_in(jobs, store, name="n")
    ((internal_id, job),) = claim(directory)
    second = hand_in(jobs, store, name="n")
    answer_first = result_reply(
        job, internal_id, Ending(Outcome.RESULT), JobStatistics(), directory.solution_path(internal_id, "u.n")
    )
    directory.reply(internal_id, job.identity, answer_first)
    directory.take(0)
    assert jobs.get(second.id).ended is None
    assert jobs.get(first.id).ended is not None
    for claimed in claim(directory):
        answer(directory, *claimed)
    assert jobs.get(second.id).ended is not None


def test_who_waits_is_woken_by_the_reply_of_this_job_alone(tmp_path: Path) -> None:
    async def run() -> None:
        arrivals = Arrivals(lambda client: tmp_path)
        tasks = len(asyncio.all_tasks())
        with (
            arrivals.expecting(0, frozenset({"u.a.json"})) as a,
            arrivals.expecting(0, frozenset({"u.b.json"})) as b,
        ):
            waiting = asyncio.create_task(a.wait_for_news())
            other = asyncio.create_task(b.wait_for_news())
            (tmp_path / "~x").write_text("{}")
            (tmp_path / "~x").rename(tmp_path / "u.a.json")
            await asyncio.wait_for(waiting, DEADLINE_S)
            assert not other.done()
            (tmp_path / "u.b.json").write_text("{}")
            await asyncio.wait_for(other, DEADLINE_S)
        while len(asyncio.all_tasks()) > tasks:  # no file is watched when no request waits
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
