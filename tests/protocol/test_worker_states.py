"""The table of a worker's states: it is complete for events of processes, which may come at any time, and
strict for other events.
"""

from itertools import count

import pytest

from mallob_py.protocol.config import Config
from mallob_py.protocol.effects import Outbox, ResumeWorker, StartWorker
from mallob_py.protocol.job_tree import Seats
from mallob_py.protocol.messages import Description
from mallob_py.protocol.worker import TRANSITIONS, Happens, Worker, WorkerState
from mallob_py.simulation.plan import draw_plan
from mallob_py.simulation.scenario import Scenario


class Nobody:
    """A matcher that is never asked."""

    def ask(self, _request: object) -> None: ...

    def is_asking(self, _job: int, _subtree: int) -> bool:
        return False

    def withdraw(self, _job: int, _subtree: int) -> None: ...


def worker_in(state: WorkerState) -> tuple[Worker, Outbox]:
    out = Outbox(3, 16)
    worker = Worker(count(), job=1)
    worker.index, worker.path, worker.description = 1, (0, 2), Description(1, b"x")
    worker.seats = Seats(out, Config(), Nobody(), 1, (0, 2, 3), 0, (3, 4))
    worker.state = state
    return worker, out


def test_every_state_is_reached_and_all_but_the_last_one_end() -> None:
    reached = {WorkerState.UNDESCRIBED} | {state for state, _ in TRANSITIONS.values()}
    assert reached == set(WorkerState)
    assert {state for state, what in TRANSITIONS if what is Happens.ENDED} == set(WorkerState) - {
        WorkerState.GONE
    }
    assert not any(state is WorkerState.GONE for state, _ in TRANSITIONS)
    assert {what for _, what in TRANSITIONS} == set(Happens)


@pytest.mark.parametrize("state", list(WorkerState))
def test_news_of_a_process_can_come_wherever_there_is_one_and_nowhere_else(state: WorkerState) -> None:
    known = {what for from_state, what in TRANSITIONS if from_state is state}
    of_processes = {Happens.STARTED, Happens.DIED, Happens.UNFORKED}
    assert known & of_processes == (of_processes if worker_in(state)[0].state.has_process else set())


@pytest.mark.parametrize("state", list(WorkerState))
def test_what_is_not_in_the_table_cannot_be(state: WorkerState) -> None:
    for what in Happens:
        if (state, what) not in TRANSITIONS:
            worker, out = worker_in(state)
            with pytest.raises(AssertionError, match=rf"worker 1 of job 1 {what.value} while {state.value}"):
                worker.happens(what, out)
            assert (worker.state, list(out.effects)) == (state, [])


def test_each_process_is_asked_for_under_a_number_of_its_own() -> None:
    worker, out = worker_in(WorkerState.UNDESCRIBED)
    worker.happens(Happens.DESCRIBED, out)
    worker.happens(Happens.DIED, out)
    worker.happens(Happens.PAUSED, out)
    worker.happens(Happens.UNPAUSED, out)
    worker.happens(Happens.DESCRIBED, out)
    assert [effect.worker for effect in out.effects if isinstance(effect, StartWorker)] == [0, 1, 2]


def test_a_worker_that_was_stopped_before_it_ran_runs_when_it_says_so() -> None:
    worker, out = worker_in(WorkerState.STARTING)
    worker.happens(Happens.LEFT, out)
    worker.happens(Happens.READOPTED, out)
    assert worker.state is WorkerState.STARTING
    assert any(isinstance(effect, ResumeWorker) for effect in out.effects)
    worker.happens(Happens.STARTED, out, 2.0)
    assert worker.state is WorkerState.RUNNING


def test_random_lives_take_most_ways_through_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some transitions need messages that cross in a particular way, so some random runs miss them."""
    taken: set[tuple[WorkerState, Happens]] = set()
    happens = Worker.happens

    def noted(worker: Worker, what: Happens, out: Outbox, now: float = 0.0) -> None:
        taken.add((worker.state, what))
        happens(worker, what, out, now)

    monkeypatch.setattr(Worker, "happens", noted)
    for seed in range(50):
        Scenario(draw_plan(seed)).run()
    assert len(taken) >= 0.7 * len(TRANSITIONS)
