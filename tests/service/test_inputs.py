"""Limits of jobs while their inputs are read."""

import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from mallob_py.protocol.effects import Outcome
from mallob_py.protocol.job_life import JobState
from mallob_py.protocol.job_terms import JobTerms
from mallob_py.runtime import worker_wire as wire
from mallob_py.service.inputs import Inputs
from mallob_py.service.jobs.live import LiveJobs
from mallob_py.service.parts import Parts


def jobs_of(live: Any) -> LiveJobs:
    jobs = LiveJobs()
    jobs[1] = live
    return jobs


@pytest.mark.parametrize(
    ("limit", "outcome"),
    [("time_limit_s", Outcome.TIME_LIMIT), ("wallclock_limit_s", Outcome.WALLCLOCK_LIMIT)],
)
def test_a_time_limit_does_not_count_while_a_job_waits_for_a_reader(limit: str, outcome: Outcome) -> None:
    """The job's reader begins only after 100 s, and then takes longer than the limit of 10 s."""
    pool = Mock()
    live: Any = Mock(id=1, terms=JobTerms(**{limit: 10.0}), state=JobState.READING, accepted_s=0.0)
    machine: Any = Mock(jobs=jobs_of(live), reads=lambda job, now: setattr(job, "reading_s", now))
    live.known_file = Mock(files=(), literals=None, assumptions=())
    chains: Any = Mock(place_of=lambda job: None)
    parts = Parts(Mock(pool=pool), Mock(), machine, chains, Mock(), Mock())
    inputs = Inputs(parts, Mock(return_value={}))
    ended = []
    inputs.read(live, 0.0)
    for now in range(0, 200):
        pool.read_used_s.return_value = max(0.0, now - 100.0), 0.0
        if now >= inputs.deadline_s:
            ended += [(now, how) for _, how, _ in inputs.beyond_limits(now)]
    assert ended == [(110 if outcome is Outcome.TIME_LIMIT else 10, outcome)]
    pool.cancel_read.assert_called_once_with(1)


@pytest.mark.parametrize("does_end", [True, False])
def test_a_pipe_of_a_revision_at_a_limit_is_read_to_its_end_or_the_revision_is_cut_off(
    tmp_path: Path, does_end: bool
) -> None:
    """Otherwise the next revision would open the pipe again, and take its own clauses for earlier ones."""
    os.mkfifo(pipe := tmp_path / "pipe")
    pool = Mock()
    pool.read_used_s.return_value = 10.0, 0.0
    live: Any = Mock(id=1, terms=JobTerms(time_limit_s=10.0), state=JobState.READING, accepted_s=0.0)
    machine: Any = Mock(jobs=jobs_of(live), reads=lambda job, now: setattr(job, "reading_s", now))
    live.known_file = Mock(files=(str(pipe),), literals=None, assumptions=())
    chain, revision = Mock(first=1, former=None), Mock(number=0, configuration={})
    chains: Any = Mock(place_of=lambda job: (chain, revision))
    inputs = Inputs(Parts(Mock(pool=pool), Mock(), machine, chains, Mock(), Mock()), Mock(return_value={}))
    inputs.read(live, 0.0)
    assert inputs.deadline_s == 10.0
    assert inputs.beyond_limits(10.0) == []
    assert inputs.cut_off(10.0) == []
    assert not inputs.interrupt(live, 11.0)
    pool.cancel_read.assert_not_called()
    if does_end:
        assert inputs.was_read(live, b"", 12.0) is Outcome.TIME_LIMIT
    assert inputs.cut_off(inputs.deadline_s) == ([] if does_end else [live])
    assert pool.cancel_read.called is not does_end


def test_a_revision_that_ends_when_its_pipe_was_read_leaves_no_description_behind(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    live: Any = Mock(id=1, known_file=Mock(files=(str(pipe),)), reading_s=0.0)
    chains: Any = Mock(place_of=lambda job: (Mock(first=1), Mock(number=0)))
    rank = Mock(transfer=Mock(folder=tmp_path))
    inputs = Inputs(Parts(rank, Mock(), Mock(jobs=jobs_of(live)), chains, Mock(), Mock()), Mock())
    inputs.interrupt(live, 1.0)
    assert inputs.was_read(live, wire.Mapped(str(tmp_path / "description"), 1), 2.0) is Outcome.INTERRUPTED
    rank.transfer.forget.assert_called_once_with(1)
