"""Limits of jobs while their inputs are read."""

from typing import Any
from unittest.mock import Mock

import pytest

from mallob_py.protocol.effects import Outcome
from mallob_py.protocol.job_life import JobState
from mallob_py.protocol.job_terms import JobTerms
from mallob_py.service.inputs import Inputs
from mallob_py.service.parts import Parts


@pytest.mark.parametrize(
    ("limit", "outcome"),
    [("time_limit_s", Outcome.TIME_LIMIT), ("wallclock_limit_s", Outcome.WALLCLOCK_LIMIT)],
)
def test_a_time_limit_does_not_count_while_a_job_waits_for_a_reader(limit: str, outcome: Outcome) -> None:
    """The job's reader begins only after 100 s, and then takes longer than the limit of 10 s."""
    pool = Mock()
    live: Any = Mock(id=1, terms=JobTerms(**{limit: 10.0}), state=JobState.READING, accepted_s=0.0)
    machine: Any = Mock(jobs={1: live}, reads=lambda job, now: setattr(job, "reading_s", now))
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
