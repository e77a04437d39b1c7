"""The Python client: what it reports of jobs and services, and its use as an executor."""

import concurrent.futures
import json
import threading
import time
from collections.abc import Callable

import pytest
from desk import FAILED, SAT, UNSAT, Desk
from waiting import DEADLINE_S, poll_until

from mallob_py import Client, FormulaExecutor, JobError, solve
from mallob_py.service import ServiceError
from mallob_py.service import client as service
from mallob_py.service.telemetry.status import JobStatus, ServiceStatus, write_status


def test_a_future_has_its_jobs_name(desk: Desk) -> None:
    future = desk.client.submit([[1]])
    incoming, fields = desk.take()
    assert future.name == fields["name"]
    desk.say(SAT)(incoming, fields)
    assert future.result(DEADLINE_S).satisfiable
    assert desk.client.submit([[1]], name="mine").name == "mine"


def test_jobs_of_others_can_be_waited_for(desk: Desk) -> None:
    service.submit(desk.directory.path.parent, {"user": "u", "name": "a", "literals": [1, 0]})
    with pytest.raises(TimeoutError):
        desk.client.wait("a", timeout_s=0.01)
    answer, _ = desk.during(desk.say(SAT), lambda: desk.client.wait("a", DEADLINE_S))
    assert answer.model.tolist() == [1]
    assert desk.client.wait("a").satisfiable
    with pytest.raises(LookupError, match=r"no job u\.b"):
        desk.client.wait("b")
    (desk.directory.path / "out" / "u.c.json").write_text(json.dumps(FAILED))
    with pytest.raises(JobError, match="ValueError: no"):
        desk.client.wait("c")


def test_a_job_of_another_user_is_waited_for_by_its_whole_name(desk: Desk) -> None:
    for identity in ("v.a", "u.v.b"):
        (desk.directory.path / "out" / f"{identity}.json").write_text(json.dumps(SAT))
    assert desk.client.wait("v.a").satisfiable
    assert desk.client.wait("v.b").satisfiable  # this user's own job of that name comes first
    with pytest.raises(LookupError, match=r"no job v\.c"):
        desk.client.wait("v.c")


def test_a_job_of_any_application_is_run_by_its_name_and_settings(desk: Desk) -> None:
    done = {"result": {"resultcode": 1, "resultstring": "DONE", "outcome": "result", "value": 92}}
    run = lambda: desk.client.run("QUEENS", n=8, max_demand=2)  # noqa: E731
    answer, fields = desk.during(desk.say(done), run)
    assert fields["application"] == "QUEENS"
    assert fields["configuration"] == {"n": 8}
    assert fields["max-demand"] == 2
    assert answer.result["value"] == 92
    assert repr(answer) == "<Answer DONE, value=92>"


def test_an_answer_is_short_to_look_at(desk: Desk) -> None:
    sat = {"result": SAT["result"] | {"resultstring": "SAT"}}
    assert (
        repr(desk.during(desk.say(sat), lambda: desk.client.solve([[1]]))[0]) == "<Answer SAT, 1 variables>"
    )
    late = {"result": {"resultcode": 0, "resultstring": "UNKNOWN", "outcome": "wallclock-limit"}}
    answer, _ = desk.during(desk.say(late), lambda: desk.client.solve([[1]]))
    assert repr(answer) == "<Answer UNKNOWN, wallclock-limit>"


def test_jobs_of_others_can_be_interrupted(desk: Desk) -> None:
    desk.client.interrupt("a")
    assert desk.take()[1] == {"user": "u", "name": "a", "interrupt": True, "quiet": True}


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.solve([[1]]),
        lambda client: client.run("QUEENS", n=30),
        lambda client: client.minimize([[1]], {1: 1}),
    ],
)
def test_an_interrupted_wait_for_an_answer_ends_the_job(
    call: Callable[[Client], object], desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object, timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(concurrent.futures.Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(desk.client)
    # Files of one tick of the clock are taken in any order.
    job, order = sorted((desk.take()[1] for _ in range(2)), key=lambda fields: "interrupt" in fields)
    assert (order["interrupt"], order["name"]) == (True, job["name"])


def test_the_status_is_that_of_a_service_that_runs(desk: Desk) -> None:
    with pytest.raises(ServiceError, match="no service is running"):
        desk.client.status()
    job = JobStatus(1, "u", "a", "running", volume=2)
    write_status(desk.directory.path.parent, ServiceStatus(time.time(), ranks=1, pes=4, busy=2, jobs=(job,)))
    assert desk.client.status().busy == 2
    assert desk.client.jobs() == (job,)


def test_who_waits_for_a_service_that_stays_away_is_told(desk: Desk) -> None:
    api_dir = desk.directory.path.parent
    with Client(api_dir, user="u", service_timeout_s=0.1) as client:
        taken = client.submit([[1]], name="taken")
        desk.take()
        desk.directory.close()
        left = client.submit([[1]], name="left")
        for future in (taken, left):
            with pytest.raises(ServiceError, match="start one: mallob-py serve"):
                future.result(DEADLINE_S)
        assert not list((desk.directory.path / "in").iterdir()), "what nobody has taken in is withdrawn"
        with pytest.raises(ServiceError, match="start one"):
            client.wait("taken")
    assert list((desk.directory.path / "journal").iterdir())


def test_a_limit_that_is_no_number_is_told(desk: Desk) -> None:
    with (
        Client(desk.directory.path.parent) as client,
        pytest.raises(TypeError, match="time_limit_s must be a number of seconds"),
    ):
        client.submit([[1]], time_limit_s="5m")  # type: ignore[arg-type]


def test_an_executor_gives_answers_in_the_order_of_formulas(desk: Desk) -> None:
    with FormulaExecutor(desk.directory.path.parent, user="u") as executor:
        assert isinstance(executor, concurrent.futures.Executor)
        answers = executor.map(solve, [[[1]], [[2]], [[3]]], chunksize=2, timeout=DEADLINE_S)
        taken = [desk.take() for _ in range(3)]
        for incoming, fields in reversed(taken):
            desk.say(UNSAT if fields["literals"] == [2, 0] else SAT)(incoming, fields)
        assert [answer.satisfiable for answer in answers] == [True, False, True]
        with pytest.raises(TypeError, match="the service executes formulas, not len"):
            executor.submit(len, [1])
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(solve, [[1]])


def test_a_shutdown_without_waiting_lets_what_was_submitted_end(desk: Desk) -> None:
    executor = FormulaExecutor(desk.directory.path.parent, user="u")
    future = executor.submit(solve, [[1]], max_demand=1)
    executor.shutdown(wait=False)
    incoming, fields = desk.take()
    assert fields["max-demand"] == 1
    desk.say(SAT)(incoming, fields)
    assert future.result(DEADLINE_S).satisfiable
    poll_until(lambda: not [one for one in threading.enumerate() if one.name == "mallob-py-executor"])


def test_a_shutdown_may_cancel_what_was_submitted(desk: Desk) -> None:
    executor = FormulaExecutor(desk.directory.path.parent, user="u")
    future = executor.submit(solve, [[1]])
    executor.shutdown(cancel_futures=True)
    assert future.cancelled()
    _, job = desk.take()
    assert desk.take()[1] == {"user": "u", "name": job["name"], "interrupt": True, "quiet": True}
