"""A solver in the service goes on after revisions that failed, as a solver used directly would."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import DEADLINE_S, poll_until

from mallob_py.api.client import Client, JobError
from mallob_py.api.incremental import IncrementalSolver
from mallob_py.service.directory import Incoming, JobDirectory
from mallob_py.service.errors import JobFileError
from mallob_py.service.reply import Reply


class Desk:
    """A service by hand: what to do with each job file is told before."""

    def __init__(self, folder: Path) -> None:
        self.directory = JobDirectory(folder / "api", tmp_dir=folder)
        self.client = Client(folder / "api", user="u")

    def during(self, answer: Callable[[Incoming, dict[str, Any]], None], call: Callable[[], Any]) -> Any:
        """What the call gives or raises, while one job file is answered; the file's fields."""
        results: list[Any] = []

        def run() -> None:
            try:
                results.append(call())
            except Exception as error:
                results.append(error)

        caller = threading.Thread(target=run)
        caller.start()
        (incoming,) = poll_until(self.directory.take)
        assert isinstance(incoming.data, bytes)
        fields = json.loads(incoming.data)
        answer(incoming, fields)
        caller.join(DEADLINE_S)
        (result,) = results
        return result, fields

    def say(self, result: dict[str, Any]) -> Callable[[Incoming, dict[str, Any]], None]:
        def answer(incoming: Incoming, fields: dict[str, Any]) -> None:
            body = json.dumps(result).encode()
            self.directory.reply(incoming.internal_id, f"u.{fields['name']}", Reply(body))

        return answer

    def refuse(self, incoming: Incoming, fields: dict[str, Any]) -> None:
        self.directory.refuse(incoming, JobFileError("files", "gone", f"u.{fields['name']}"))


SAT = {"result": {"resultcode": 10, "solution": [1]}}
FAILED = {"error": {"field": "application", "message": "ValueError: no"}, "result": {"resultcode": 0}}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    opened = Desk(tmp_path)
    yield opened
    opened.client.close()
    opened.directory.close()


def test_after_a_first_failure_the_chain_begins_with_the_next(desk: Desk) -> None:
    solver = IncrementalSolver(desk.client, [[1]])
    error, _ = desk.during(desk.refuse, solver.solve)
    assert isinstance(error, JobError)
    solver.add_clause([2])
    result, fields = desk.during(desk.say(SAT), solver.solve)
    assert result is True
    assert "precursor" not in fields
    assert fields["literals"] == [1, 0, 2, 0]


def test_after_a_later_failure_the_chain_goes_on_from_before(desk: Desk) -> None:
    solver = IncrementalSolver(desk.client, [[1]])
    _, first = desk.during(desk.say(SAT), solver.solve)
    solver.add_clause([2])
    _, refused = desk.during(desk.refuse, solver.solve)
    assert refused["precursor"] == f"u.{first['name']}"
    _, third = desk.during(desk.say(SAT), solver.solve)
    assert third["precursor"] == f"u.{first['name']}"
    assert third["name"] != refused["name"]
    assert third["literals"] == [2, 0]
    _, end = desk.during(lambda incoming, _: desk.directory.dismiss(incoming.internal_id), solver.delete)
    assert end["precursor"] == f"u.{third['name']}"


def test_a_revision_that_failed_while_it_was_run_is_part_of_the_chain(desk: Desk) -> None:
    solver = IncrementalSolver(desk.client, [[1]])
    _, first = desk.during(desk.say(FAILED), solver.solve)
    _, second = desk.during(desk.say(SAT), solver.solve)
    assert second["precursor"] == f"u.{first['name']}"
    assert second["literals"] == []


def test_formulas_in_files_are_kept_until_the_chain_ends(desk: Desk) -> None:
    inputs = desk.directory.path / "inputs"
    large = [[one] for one in range(1, 60_000)]
    solver = IncrementalSolver(desk.client, large)
    desk.during(desk.refuse, solver.solve)
    assert not list(inputs.iterdir())
    desk.during(desk.say(SAT), solver.solve)
    solver.append_formula(large)
    desk.during(desk.refuse, solver.solve)
    desk.during(desk.say(SAT), solver.solve)
    assert len(list(inputs.iterdir())) >= 2
    desk.during(lambda incoming, _: desk.directory.dismiss(incoming.internal_id), solver.delete)
    assert not list(inputs.iterdir())


def test_a_damaged_reply_is_an_error_of_its_job_alone(desk: Desk) -> None:
    out = desk.directory.path / "out"
    future = desk.client.submit([[1]], name="damaged")
    (incoming,) = poll_until(desk.directory.take)
    desk.directory.dismiss(incoming.internal_id)
    (out / "u.damaged.json").write_bytes(b"\xff")
    with pytest.raises(Exception, match="damaged"):
        future.result(DEADLINE_S)
    result, _ = desk.during(desk.say(SAT), lambda: desk.client.solve([[1]]))
    assert result.satisfiable
