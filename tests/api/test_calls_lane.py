"""A lane tells workers and callers what becomes of calls whose workers go."""

from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from itertools import count
from typing import Any

import pytest
from waiting import DEADLINE_S

from mallob_py.api.calls.book import Group
from mallob_py.api.calls.lane import GRACE_S, CallSet, Lane, Terms, WorkerLost
from mallob_py.api.calls.sinks import CallFuture, FutureSink
from mallob_py.api.client import Answer, JobError
from mallob_py.kit.calls import messages
from mallob_py.kit.calls.delivering import Deliverer
from mallob_py.kit.calls.values import dump, load, load_error, packed, pickled


class Worker:
    """A connection that only records the messages sent to it."""

    is_closed = False

    def __init__(self, number: int) -> None:
        self.number = number
        self.got: list[tuple[Any, Sequence[Any]]] = []

    def send(self, message: Any, buffers: Sequence[Any] = ()) -> None:
        self.got.append((message, buffers))

    def takes(self, kind: type[Any]) -> list[tuple[Any, Sequence[Any]]]:
        """Return the messages of a kind."""
        return [each for each in self.got if isinstance(each[0], kind)]


class Stage:
    """A lane with one call, which runs on the worker `root`."""

    def __init__(self) -> None:
        self.jobs: list[Future[Answer]] = []
        numbers, deliverer = count(100), Deliverer("test")
        self.lane = Lane(1, Terms(), self._start, lambda: next(numbers), deliverer, print, is_own=False)
        self.future: CallFuture[Any] = CallFuture()
        sink = FutureSink(print, deliverer.put)
        sink.add(self.future)
        function = self.lane.function_of(pickled(len))
        self.group = Group(CallSet(function, [(("x",), {})], True, sink))
        self.lane.add(self.group, 1)
        self.lane.turn(0.0)
        self.root = self.joins(1, 0)

    def _start(self, lane: Lane) -> Future[Answer]:
        self.jobs.append(Future())
        return self.jobs[-1]

    def joins(self, number: int, index: int) -> Worker:
        """Let a worker join, and give it calls."""
        worker = Worker(number)
        self.lane.joined(worker, 0.0)
        self.lane.heard(number, messages.Place(index, 2), [], 0.0)
        self.lane.turn(0.0)
        return worker

    def submit_inner(self, calls: int) -> None:
        """Let the root's call give away calls."""
        buffers = [*dump(len, "it"), *packed([(("x",), {})] * calls)]
        self.lane.heard(1, messages.Inner(7, calls, 1, True), buffers, 0.0)

    def inner_errors(self) -> list[BaseException]:
        """Return the errors of the calls that the root's call has given away."""
        [(message, buffers)] = self.root.takes(messages.InnerResults)
        assert message.group == 7
        errors = load(list(buffers))
        assert len(message.is_ok) == len(errors)
        assert not any(message.is_ok)
        return [load_error(each, "") for each in errors]


def test_an_inner_call_that_kills_its_workers_fails() -> None:
    stage = Stage()
    stage.submit_inner(2)
    for number in (2, 3, 4):
        assert not stage.root.takes(messages.InnerResults)
        stage.joins(number, 1)
        stage.lane.lost(number)
    assert [type(error) for error in stage.inner_errors()] == [WorkerLost, WorkerLost]
    assert stage.lane.groups == (stage.group,)
    assert stage.lane.left == 1


@pytest.mark.parametrize("end", ["interrupt", "loss of the outer call's worker"])
def test_an_end_of_an_outer_call_ends_the_calls_that_it_gave_away(end: str) -> None:
    stage = Stage()
    stage.submit_inner(3)
    other = stage.joins(2, 1)
    [(calls, _)] = other.takes(messages.Calls)
    if end == "interrupt":
        stage.lane.cancel_all(1.0)
        assert [type(error) for error in stage.inner_errors()] == [CancelledError] * 3
    else:
        stage.lane.lost(1)
    assert [one for one, _ in other.takes(messages.Recall)] == [messages.Recall([calls.batch])]
    stage.lane.heard(2, messages.GivenBack(calls.batch, [2, 1]), [], 1.0)
    stage.lane.turn(1.0 + GRACE_S)
    assert [one for one, _ in other.takes(messages.Stop)] == [messages.Stop(calls.batch, [0, 1, 2])]
    stage.lane.heard(2, messages.Results(calls.batch, [0], [False], 0.0), packed([None]), 3.0)
    assert stage.lane.groups == (() if end == "interrupt" else (stage.group,))


def test_an_inner_batch_of_which_nothing_has_begun_is_given_back() -> None:
    stage = Stage()
    stage.submit_inner(3)
    other = stage.joins(2, 1)
    [(calls, _)] = other.takes(messages.Calls)
    stage.lane.cancel_all(1.0)
    stage.lane.heard(2, messages.GivenBack(calls.batch, [2, 1, 0]), [], 1.0)
    stage.lane.turn(1.0 + GRACE_S)
    assert not other.takes(messages.Stop)


def test_a_lost_connection_of_the_root_costs_no_call() -> None:
    stage = Stage()
    result = {"resultcode": 0, "outcome": "result", "why": "the executor has ended"}
    for number, job in enumerate(stage.jobs, 2):
        stage.lane.lost(number - 1)
        stage.lane.turn(1.0)
        job.set_result(Answer(None, None, None, {"result": result}))
        stage.lane.job_ended(job)
        stage.lane.turn(1.0)
        if number > 3:
            break
        assert not stage.future.done()
        assert len(stage.joins(number, 0).takes(messages.Calls)) == 1
    assert len(stage.jobs) == 3
    with pytest.raises(WorkerLost):
        stage.future.result(DEADLINE_S)


def test_jobs_whose_roots_lose_their_connections_for_ever_end_their_calls() -> None:
    stage = Stage()
    for number in range(1, 6):
        stage.lane.lost(number, is_to_blame=False)
        job = stage.jobs[-1]
        job.set_result(Answer(None, None, None, {"result": {"resultcode": 0, "outcome": "result"}}))
        assert not stage.future.done()
        stage.lane.job_ended(job)
        stage.lane.turn(1.0)
        if number < 5:
            stage.joins(number + 1, 0)
    assert len(stage.jobs) == 5
    with pytest.raises(JobError, match="root lost its connection"):
        stage.future.result(DEADLINE_S)
