"""A solver in the service goes on after revisions that failed, as a solver used directly would."""

from typing import Any

import pytest
from desk import FAILED, SAT, Desk
from waiting import DEADLINE_S, poll_until

from mallob_py.api.client import Client, JobError, JobFuture
from mallob_py.api.incremental import IncrementalSolver
from mallob_py.service import ServiceError
from mallob_py.service.store.directory import Incoming


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


def test_a_call_can_be_interrupted_from_another_thread(desk: Desk) -> None:
    solver = IncrementalSolver(desk.client, [[1]])

    def interrupted(incoming: Incoming, fields: dict[str, Any]) -> None:
        poll_until(lambda: solver.interrupt() or list((desk.directory.path / "in").glob("[!~]*")))
        _, interruption = desk.take()
        assert interruption == {"user": "u", "name": fields["name"], "interrupt": True, "quiet": True}
        desk.say({"result": {"resultcode": 0, "outcome": "interrupted"}})(incoming, fields)

    result, _ = desk.during(interrupted, lambda: solver.solve_limited(expect_interrupt=True))
    assert result is None
    solver.interrupt()


def test_what_calls_have_used_is_summed_up(desk: Desk) -> None:
    solver = IncrementalSolver(desk.client, [[1]])
    used = {"stats": {"used_pe_seconds": 1.5, "used_wallclock_seconds": 0.5, "max_volume": 3}}
    for _ in range(2):
        desk.during(desk.say(SAT | used), solver.solve)
    assert solver.accum_stats() == {"solves": 2, "used_pe_seconds": 3.0, "used_wallclock_seconds": 1.0}


def test_what_several_solvers_together_cannot_do_is_refused_with_a_reason(desk: Desk) -> None:
    solver = IncrementalSolver(desk.client, [[1]])
    solver.conf_budget(-1)
    for refused in (
        lambda: solver.conf_budget(10),
        lambda: solver.prop_budget(10),
        lambda: solver.dec_budget(10),
        lambda: solver.propagate([1]),
    ):
        with pytest.raises(NotImplementedError, match=" "):
            refused()


def test_an_enumeration_keeps_its_assumptions_and_tells_when_it_is_cut_short(desk: Desk) -> None:
    models = IncrementalSolver(desk.client, [[1, 2]]).enum_models(iter([1]))
    for answer in (SAT, SAT):
        model, fields = desk.during(desk.say(answer), lambda: next(models))
        assert model == [1]
        assert fields["assumptions"] == [1]
    error, _ = desk.during(desk.say({"result": {"resultcode": 0}}), lambda: next(models))
    assert isinstance(error, TimeoutError)


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_revision_that_no_service_has_taken_in_is_taken_back(
    is_taken: bool, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = IncrementalSolver(desk.client, [[1]])
    _, first = desk.during(desk.say(SAT), solver.solve)
    solver.add_clause([2])
    with monkeypatch.context() as away:

        def go_away(*_: object) -> None:
            away.setattr(Client, "is_served", False)
            away.setattr(desk.client, "_service_timeout_s", 0.0)

        if is_taken:
            error, taken = desk.during(go_away, solver.solve)
            assert isinstance(error, ServiceError)
        else:
            go_away()
            with pytest.raises(ServiceError):
                solver.solve()
    _, last = desk.during(desk.say(SAT), solver.solve)
    assert last["precursor"] == f"u.{(taken if is_taken else first)['name']}"
    assert last["literals"] == ([] if is_taken else [2, 0])


def test_ctrl_c_ends_the_job_and_the_next_call_goes_on_from_there(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*_: object) -> None:
        raise KeyboardInterrupt

    solver = IncrementalSolver(desk.client, [[1]])
    with monkeypatch.context() as pressed:
        pressed.setattr(JobFuture, "result", press)
        with pytest.raises(KeyboardInterrupt):
            solver.solve()
    incoming, first = desk.take()
    _, order = desk.take()
    assert order == {"user": "u", "name": first["name"], "interrupt": True, "quiet": True}
    desk.say({"result": {"resultcode": 0, "outcome": "interrupted"}})(incoming, first)
    poll_until(lambda: ", 0 jobs" in repr(desk.client))
    desk.directory.take()  # the order may have been written twice
    solver.add_clause([2])
    result, second = desk.during(desk.say(SAT), solver.solve)
    assert result is True
    assert (second["precursor"], second["literals"]) == (f"u.{first['name']}", [2, 0])
