"""Groups in the shell: submission, waiting, interruption, resubmission and tables, through files only."""

import csv
import io
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import DEADLINE_S, poll_until

from mallob_py.cli import main as main_module
from mallob_py.cli import options
from mallob_py.cli.client_options import SubmitOptions
from mallob_py.cli.jobs import make_jobs, say_what_goes_on
from mallob_py.cli.option_sources import OptionError
from mallob_py.service import ServiceError, client
from mallob_py.service.client import login_name
from mallob_py.service.telemetry.history import HistoryWriter
from mallob_py.service.telemetry.status import EndedJob, GroupStatus, ServiceStatus, write_status

ME = login_name()


class Service:
    """A stand-in for a running service, which writes replies and history lines into its folders."""

    def __init__(self, api_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.api_dir = api_dir
        self._capsys = capsys
        self._number = 0

    def run(self, *arguments: str) -> int:
        command, *rest = arguments
        return main_module.main([command, "--api-dir", str(self.api_dir), *rest])

    def printed(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        assert self.run(*arguments) == code
        return self._capsys.readouterr().out

    def error(self, *arguments: str) -> str:
        assert self.run(*arguments) == 2
        told = self._capsys.readouterr().err
        assert told.count("\n") == 1
        return told

    def handed_in(self, number: int = 0) -> list[dict[str, Any]]:
        files = (self.api_dir / f"jobs.{number}/in").glob("[!~]*.json")
        return sorted((json.loads(path.read_bytes()) for path in files), key=lambda job: str(job["name"]))

    def end(
        self, name: str, outcome: str = "result", *, reply: dict[str, Any] | None = None, **fields: Any
    ) -> None:
        """Let a job of the group `g` end; with `reply`, its reply has these further fields."""
        self._number += 1
        known = {"user": ME, "group": "g", "ended": 1000.0 + self._number} | fields
        job = EndedJob(id=self._number, name=name, outcome=outcome, **known)
        folder = self.api_dir / f"jobs.{job.client}"
        if reply is not None:
            told = {"user": job.user, "name": name, "group": job.group, "internal_id": job.id, "stats": {}}
            content = told | {"result": {"outcome": outcome}} | reply
            (folder / "out" / f"{job.user}.{name}.json").write_text(json.dumps(content))
        writer = HistoryWriter(folder)
        writer.add(job)
        writer.flush()


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Service:
    for number in (0, 1):
        for folder in ("in", "out"):
            (tmp_path / "api" / f"jobs.{number}" / folder).mkdir(parents=True)
    monkeypatch.setattr(client, "service_is_running", lambda api_dir, client=0: True)
    return Service(tmp_path / "api", capsys)


@pytest.fixture
def formulas(tmp_path: Path) -> list[str]:
    paths = [tmp_path / name for name in ("one.cnf", "two.cnf", "three.cnf")]
    for path in paths:
        path.write_text("p cnf 0 0\n")
    return list(map(str, paths))


def jobs_of(*arguments: str) -> list[dict[str, Any]]:
    parsed = options.parse("submit", arguments, {})
    assert isinstance(parsed, SubmitOptions)
    return make_jobs(parsed)


# --- submitting a group --------------------------------------------------------------------


def test_several_jobs_get_a_group_and_one_alone_gets_none(formulas: list[str]) -> None:
    (made,) = {job["group"] for job in jobs_of(*formulas)}
    assert made.startswith("one-")
    (swept,) = {job["group"] for job in jobs_of("--application", "QUEENS", "--name", "q", "--set", "n=6..8")}
    assert swept.startswith("q-")
    assert [job["group"] for job in jobs_of(*formulas, "--group", "mine")] == ["mine"] * 3
    assert "group" not in jobs_of(formulas[0])[0]
    assert jobs_of(formulas[0], "--group", "mine")[0]["group"] == "mine"


def test_a_job_file_keeps_the_group_that_it_names_unless_told_otherwise(
    tmp_path: Path, formulas: list[str]
) -> None:
    (tmp_path / "job.json").write_text('{"literals": [1, 0], "group": "own"}')
    groups = [job["group"] for job in jobs_of(formulas[0], str(tmp_path / "job.json"))]
    assert groups[0].startswith("one-")
    assert groups[1] == "own"
    assert [job["group"] for job in jobs_of(str(tmp_path / "job.json"), "--group", "g")] == ["g"]


@pytest.mark.parametrize("name", ["a/b", ".x", "~x", "..", "a\nb"])
def test_a_group_with_a_name_that_no_job_could_have_is_refused_at_once(
    name: str, formulas: list[str]
) -> None:
    with pytest.raises(OptionError, match="--group"):
        jobs_of(*formulas, "--group", name)


def test_the_group_that_was_made_is_told_beside_the_names(
    service: Service, formulas: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert service.run("submit", *formulas) == 0
    told = capsys.readouterr()
    (group,) = {job["group"] for job in service.handed_in()}
    assert f"3 jobs, group {group}; to see their progress: mallob-py results --api-dir" in told.err
    assert len(told.out.splitlines()) == 3, "who reads the names reads nothing else"
    assert service.run("submit", formulas[0]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ServiceError("cannot write")])
def test_who_is_interrupted_while_handing_in_hears_how_many_are_in_and_how_to_end_them(
    error: BaseException,
    service: Service,
    formulas: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = client.submit

    def submit(api_dir: Path, job: dict[str, Any], **where: Any) -> client.Submission:
        if "three" in job["name"]:
            raise error
        return whole(api_dir, job, **where)

    monkeypatch.setattr(client, "submit", submit)
    assert service.run("submit", *formulas, "--group", "my group", "--user", "bob") in (2, 130)
    told = capsys.readouterr().err
    assert "2 of 3 jobs are handed in, group my group; to end them: mallob-py interrupt --api-dir" in told
    assert "--user bob --group 'my group'\n" in told


def test_who_leaves_a_group_is_told_of_it_and_not_of_each_job(capsys: pytest.CaptureFixture[str]) -> None:
    say_what_goes_on("submit", [f"u.j{number}" for number in range(300)], ".api", 0, ("u", "g"))
    told = capsys.readouterr().err
    assert "the group g goes on; to wait: mallob-py wait --user u --group g; to end it: " in told
    assert "u.j1" not in told


# --- submitting a group again --------------------------------------------------------------


def test_failed_and_unsolved_jobs_are_handed_in_again_with_what_the_options_say(service: Service) -> None:
    fields = {"files": ["/f.cnf"], "time-limit": "1s", "priority": 2.0, "after-ok": [], "warnings": ["w"]}
    service.end("good", reply=fields, code=10)
    service.end("bad", "failed", reply=fields | {"error": {"field": "", "message": "no"}})
    service.end("late", "time-limit", reply=fields)
    assert service.run("submit", "--failed-of", "g", "--priority", "3") == 0
    again = {
        "user": ME,
        "name": "bad",
        "group": "g",
        "files": ["/f.cnf"],
        "time-limit": "1s",
        "priority": 3.0,
    }
    assert service.handed_in() == [again | {"after-ok": []}]
    assert [job["name"] for job in jobs_of("--api-dir", str(service.api_dir), "--unsolved-of", "g")] == [
        "late"
    ]


def test_jobs_whose_replies_are_gone_are_told_of_and_the_others_handed_in(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    service.end("one", "failed")
    assert "1 of 1 jobs cannot be handed in again" in service.error("submit", "--failed-of", "g")
    service.end("two", "failed", reply={"application": "NOOP"})
    service.end("two", "failed", group="other", reply={"application": "NOOP"})
    assert service.run("submit", "--failed-of", "other") == 0
    assert "cannot be" not in capsys.readouterr().err
    assert "no job of the group other has failed" in service.error("submit", "--failed-of", "other")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--failed-of", "g", "f.cnf"), "leave out FILE"),
        (("--failed-of", "g", "--name", "n"), "--name"),
        (("--unsolved-of", "g", "--set", "seed=1..3"), "sweep"),
        (("--failed-of", "g", "--unsolved-of", "g"), "give one of them"),
    ],
)
def test_what_contradicts_jobs_as_they_were_is_refused(arguments: tuple[str, ...], error: str) -> None:
    with pytest.raises(OptionError, match=error):
        jobs_of(*arguments)


# --- waiting for groups, cancelling them ---------------------------------------------------


def hand_in(service: Service, *names: str, number: int = 0, user: str = ME) -> None:
    for name in names:
        client.submit(service.api_dir, {"user": user, "name": name, "group": "g"}, number)


def meanwhile(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def taken(service: Service, name: str, number: int) -> None:
    """Remove a job's file from its folder, as the service does when the job has its reply."""
    for path in (service.api_dir / f"jobs.{number}/in").glob("[!~]*.json"):
        if json.loads(path.read_bytes())["name"] == name:
            path.unlink()


def test_a_group_at_all_clients_is_awaited_and_its_table_printed(service: Service) -> None:
    hand_in(service, "a")
    hand_in(service, "b", number=1)
    service.end("before", "failed", error="no such file")
    printed: list[str] = []
    waiter = meanwhile(lambda: printed.append(service.printed("wait", "--group", "g", code=2)))
    service.end("a", code=10, result="SAT")
    taken(service, "a", 0)
    assert waiter.is_alive()
    taken(service, "b", 1)  # b's line in the history comes later than its reply
    service.end("b", code=20, result="UNSAT", client=1)
    waiter.join(DEADLINE_S)
    (text,) = printed
    assert [line.split()[1] for line in text.splitlines()[2:5]] == ["failed", "SAT", "UNSAT"]
    assert f"{ME}.g  [##########] 3 of 3 ended" in text


def test_all_live_jobs_of_a_group_are_ended_and_no_other(service: Service) -> None:
    hand_in(service, "a", "b")
    hand_in(service, "c", number=1)
    hand_in(service, "d", user="bob")
    client.submit(service.api_dir, {"user": ME, "name": "e", "group": "h"})

    def serve() -> None:
        poll_until(lambda: sum(len(orders(number)) for number in (0, 1)) == 3)
        for name, number in (("a", 0), ("b", 0), ("c", 1)):
            taken(service, name, number)

    def orders(number: int) -> list[Any]:
        return [job["name"] for job in service.handed_in(number) if job.get("interrupt")]

    server = meanwhile(serve)
    assert service.printed("interrupt", "--group", "g") == f"3 jobs of the group {ME}.g ended\n"
    server.join()
    assert [job["name"] for job in service.handed_in()] == ["d", "e"]


def test_who_ends_a_group_ends_none_of_another_user(service: Service) -> None:
    hand_in(service, "d", user="bob")
    assert f"no group g of {ME} is known here" in service.error("interrupt", "--group", "g")
    assert [job.get("interrupt") for job in service.handed_in()] == [None]


@pytest.mark.parametrize("command", ["wait", "interrupt"])
def test_jobs_or_a_group_are_named(command: str) -> None:
    with pytest.raises(OptionError, match="no job is named"):
        options.parse(command, [], {})
    with pytest.raises(OptionError, match="say one of them"):
        options.parse(command, ["u.a", "--group", "g"], {})


# --- tables --------------------------------------------------------------------------------


def test_results_are_a_table_with_what_the_replies_say_as_far_as_they_are_there(service: Service) -> None:
    for number, value in ((6, 4), (7, 40)):
        reply = {"configuration": {"n": number, "seed": 1}, "result": {"value": value}}
        service.end(f"q-{number}", code=1, result="DONE", pe_s=2.0, turns_s=1.0, reply=reply)
    service.end("q-8", "time-limit", pe_s=3.0, turns_s=5.0, reply={"configuration": {"n": 8, "seed": 1}})
    (service.api_dir / f"jobs.0/out/{ME}.q-7.json").unlink()
    lines = service.printed("results", "g").splitlines()
    assert lines[0].split() == [
        "JOB",
        "n",
        "seed",
        "ANSWER",
        "VALUE",
        "TIME",
        "[s]",
        "PE",
        "[s]",
        "CPU",
        "[s]",
    ]
    assert [line.split()[:5] for line in lines[2:5]] == [
        ["q-6", "6", "1", "DONE", "4"],
        ["q-7", "-", "-", "DONE", "-"],
        ["q-8", "8", "1", "time-limit", "-"],
    ]
    assert lines[6] == f"{ME}.g  [##########] 3 of 3 ended"
    assert lines[7] == (
        "2 solved (2 DONE), 1 unsolved (1 time-limit), 0 failed; 7 PE-seconds; PAR-2 4 s (cutoff 5 s)"
    )
    assert "0 solved, 3 unsolved (2 late, 1 time-limit)" in service.printed("results", "--cutoff", "0.5s")


def test_a_reply_of_another_job_of_the_name_is_not_taken_for_the_jobs(service: Service) -> None:
    service.end("a", code=10, result="SAT", reply={"files": ["/first.cnf"]})
    service.end("a", code=10, result="SAT", group="h", reply={"files": ["/second.cnf"]})
    assert ".cnf" not in service.printed("results", "g")
    assert "second.cnf" in service.printed("results", "h")


def test_results_for_programs_are_whole(service: Service) -> None:
    reply = {"files": ["/d/f.cnf"], "configuration": {"deep": [1, "a,b"]}}
    service.end("a", code=10, result="SAT", turns_s=1.5, reply=reply)
    service.end("b", "failed", error='said "no",\ntwice')
    rows = list(csv.DictReader(io.StringIO(service.printed("results", "g", "--csv", "--cutoff", "9"))))
    assert [row["job"] for row in rows] == [f"{ME}.a", f"{ME}.b"]
    assert (rows[0]["input"], rows[0]["time_s"], rows[0]["par2_s"]) == ("/d/f.cnf", "1.5", "1.5")
    assert rows[0]["configuration.deep"] == '[1,"a,b"]'
    assert (rows[1]["error"], rows[1]["par2_s"], rows[1]["value"]) == ('said "no",\ntwice', "18.0", "")
    lines = service.printed("results", "g", "--json").splitlines()
    assert [json.loads(line)["outcome"] for line in lines] == ["result", "failed"]


def test_groups_with_other_settings_have_one_table_for_programs(service: Service) -> None:
    for group, key in (("g", "n"), ("h", "deep")):
        for value in (1, 2):
            service.end(f"{key}{value}", group=group, reply={"configuration": {key: value}})
    rows = list(csv.DictReader(io.StringIO(service.printed("results", "g", "h", "--csv"))))
    assert [row["configuration.n"] for row in rows] == ["1", "2", "", ""]
    assert [row["configuration.deep"] for row in rows] == ["", "", "1", "2"]


def test_without_a_name_it_is_the_last_group_of_the_caller(service: Service) -> None:
    assert "jobs get one by submit --group NAME" in service.error("results")
    service.end("theirs", user="bob", group="b")
    assert "bob.b  [#" in service.printed("results"), "there is no other"
    service.end("old", group="old")
    service.end("new", group="new")
    service.end("theirs", user="bob", group="b")
    assert f"{ME}.new  [#" in service.printed("results")


def test_a_name_is_the_callers_group_or_that_of_the_only_user_who_has_it(service: Service) -> None:
    service.end("x", user="ann", group="sweep")
    assert "ann.sweep" in service.printed("results", "sweep")
    service.end("x", user="bob", group="sweep")
    assert "several users have a group sweep: ann, bob; say --user" in service.error("results", "sweep")
    assert "bob.sweep" in service.printed("results", "sweep", "--user", "bob")
    service.end("x", group="sweep")
    assert f"{ME}.sweep" in service.printed("results", "sweep")
    assert "did you mean 'sweep'?" in service.error("results", "sweeep")


def test_groups_are_listed_with_what_the_service_says_of_live_jobs(service: Service) -> None:
    service.end("a", code=10, pe_s=4.0)
    service.end("old", "failed", group="old")
    hand_in(service, "b", "c", "d")
    status = ServiceStatus(2e9, 1, 4, 2, groups=(GroupStatus(ME, "g", 3, running=1, resting=1, since=0.0),))
    write_status(service.api_dir, status)
    first, second = (json.loads(line) for line in service.printed("groups", "--json").splitlines())
    counts = {key: first[key] for key in ("name", "solved", "running", "resting", "waiting")}
    assert counts == {"name": "g", "solved": 1, "running": 0, "resting": 0, "waiting": 3}
    assert (second["name"], second["failed"]) == ("old", 1)
    assert "[##........]" in service.printed("groups")
    assert (
        service.printed("groups", "--limit", "1").splitlines()[-1]
        == "... and 1 earlier ones (--limit 0 shows all)"
    )
    assert service.printed("groups", "--user", "eve") == "no group of jobs is known here\n"


def test_a_folder_that_is_none_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("results", "groups"):
        assert main_module.main([command, "--api-dir", str(tmp_path / "no")]) == 2
        assert "no is no folder of a service" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["cactus.svg", "cactus.png"])
def test_a_cactus_plot_of_groups_is_drawn(name: str, service: Service, tmp_path: Path) -> None:
    for number in range(5):
        service.end(f"j{number}", code=10, turns_s=float(number))
        service.end(f"j{number}", "time-limit" if number else "result", group="h", turns_s=9.0)
    printed = service.printed("results", "g", "h", "--plot", str(tmp_path / name))
    assert (tmp_path / name).stat().st_size > 1000
    assert "JOB" not in printed  # the table is printed only on request
    assert [line.split()[0] for line in printed.splitlines()] == [f"{ME}.g", "5", f"{ME}.h", "1"]
    assert "JOB" in service.printed("results", "g", "h")


def test_a_plot_that_cannot_be_is_one_line(service: Service, tmp_path: Path) -> None:
    service.end("a", code=10)
    assert "name a file that ends with .png" in service.error("results", "--plot", str(tmp_path / "x.doc"))
    assert "No such file" in service.error("results", "--plot", str(tmp_path / "no" / "x.svg"))
