"""Groups of jobs from Python: handed in together, seen from anywhere, and as tables."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from desk import FAILED, SAT, UNSAT, Desk
from waiting import DEADLINE_S, poll_until

from mallob_py import Client, JobError
from mallob_py.service import ServiceError
from mallob_py.service import client as service
from mallob_py.service.telemetry.history import HistoryWriter
from mallob_py.service.telemetry.status import EndedJob


def end(desk: Desk, number: int, name: str, outcome: str = "result", group: str = "g") -> None:
    writer = HistoryWriter(desk.directory.path)
    writer.add(EndedJob(number, "u", name, outcome, 1.0, "SAT", code=10, group=group, turns_s=2.0))
    writer.flush()


def test_formulas_are_handed_in_as_a_group_and_answered_in_order_and_as_they_come(desk: Desk) -> None:
    group = desk.client.map_formulas(iter([[[1]], [[-1]], [[2]]]), "g", priority=2.0)
    taken = [desk.take() for _ in range(3)]
    assert [fields["group"] for _, fields in taken] == ["g"] * 3
    assert [fields["name"] for _, fields in taken] == [future.name for future in group.futures]
    assert {fields["priority"] for _, fields in taken} == {2.0}
    desk.say(UNSAT)(*taken[1])
    ended = group.as_completed()
    assert group.futures.index(next(ended)) == 1  # type: ignore[arg-type]
    desk.say(SAT)(*taken[0])
    desk.say(FAILED)(*taken[2])
    answers = iter(group)
    assert [next(answers).satisfiable, next(answers).satisfiable] == [True, False]
    with pytest.raises(JobError, match="ValueError: no"):
        next(answers)
    assert desk.client.map_formulas([]).name != desk.client.map_formulas([]).name


def test_what_is_no_formula_cancels_those_before_it(desk: Desk) -> None:
    with pytest.raises((TypeError, ValueError)):
        desk.client.map_formulas([[[1]], object()], "g")  # type: ignore[list-item]
    files = [json.loads(path.read_bytes()) for path in (desk.directory.path / "in").glob("[!~]*.json")]
    assert len({fields["name"] for fields in files}) == 1
    assert sorted("interrupt" in fields for fields in files) == [False, True]


def test_a_group_is_seen_by_a_client_that_has_handed_in_none_of_it(desk: Desk) -> None:
    desk.client.map_formulas([[[1]], [[2]]], "g")
    end(desk, 1, "old")
    end(desk, 2, "other", group="h")
    with Client(desk.client.api_dir, user="u") as client:
        group = client.group("g")
        assert repr(group) == "<JobGroup g, 1 of 3 ended>"
        assert (group.state().waiting, group.state().solved, group.futures) == (2, 1, [])
        assert [(row["job"], row["par2_s"]) for row in group.results()] == [("u.old", 2.0)]
        assert client.group("none").state().jobs == 0
    with Client(desk.client.api_dir, user="v") as client:
        assert client.group("g").state().jobs == 0, "another user's"


def test_a_group_is_awaited_until_the_history_has_all_of_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = desk.client.map_formulas([[[1]]], "g")
    with pytest.raises(TimeoutError, match="1 of 1 jobs have not ended"):
        group.wait(timeout_s=0.0)
    unanswered = [desk.take()]

    def is_running(api_dir: Path, client: int = 0) -> bool:
        """Stand in for the check whether a service runs, which a waiting client makes after each poll."""
        if unanswered:
            incoming, fields = unanswered.pop()
            desk.say(SAT)(incoming, fields)
            end(desk, 1, fields["name"])
        return True

    monkeypatch.setattr(service, "service_is_running", is_running)
    assert group.wait(DEADLINE_S).solved == 1


def test_a_service_that_stays_away_ends_the_wait(desk: Desk) -> None:
    with Client(desk.client.api_dir, user="u", service_timeout_s=0.0) as client:
        service.submit(client.api_dir, {"user": "u", "name": "a", "group": "g"})
        with pytest.raises(ServiceError, match="no service has been running"):
            client.group("g").wait()


def test_all_live_jobs_of_a_group_are_interrupted(desk: Desk) -> None:
    for name in ("a", "b"):
        service.submit(desk.client.api_dir, {"user": "u", "name": name, "group": "g"})
    service.submit(desk.client.api_dir, {"user": "u", "name": "c"})
    desk.client.group("g").interrupt()
    files: list[dict[str, object]] = []
    poll_until(lambda: len(files) == 5 or files.append(desk.take()[1]))
    assert sorted(str(fields["name"]) for fields in files if "interrupt" in fields) == ["a", "b"]


def test_results_are_a_frame_where_pandas_is_installed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    end(desk, 1, "a")
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows: {"rows": rows}))
    assert [row["job"] for row in desk.client.group("g").frame()["rows"]] == ["u.a"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"needs pandas: pip install pandas"):
        desk.client.group("g").frame()
