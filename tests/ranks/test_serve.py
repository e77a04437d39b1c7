"""`mallob-py serve` as users see it: job files in, replies out, and no job file that stops the service."""

import contextlib
import gzip
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.processes import command_line
from running import ROOT, Running, mpiexec, needs_mpiexec, poll_until, run, serving
from waiting import DEADLINE_S, growing, remove_in_use

from mallob_py.protocol.config import express_of
from mallob_py.service.jobs.line import residents_of
from mallob_sat.generate import commutativity, planted

pytestmark = needs_mpiexec

RANKS = 3
SAT, UNSAT, UNKNOWN = 10, 20, 0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yield one service with two clients for all tests here; every test must end its own jobs."""
    with serving(tmp_path_factory.mktemp("service"), "--clients", "2", ranks=RANKS) as running:
        yield running
        assert running.process.poll() is None, running.output
        assert running.ask("last", application="NOOP")["result"]["resultcode"] == SAT
        assert running.stop() == 0
        assert "Traceback" not in running.output
        for client in range(2):
            assert f"mallob-py: ended; every job of {running.box(client)} has its reply" in running.output


def accepted(service: Running, name: str) -> int:
    """Wait for a job's event `accepted`; return the job's internal id."""
    return int(service.await_event("accepted", name=name)["job"])


# --- outcomes of jobs -----------------------------------------------------------------------


def test_a_formula_in_a_file_is_solved(service: Running, tmp_path: Path) -> None:
    formula = planted(60, 240, seed=7)
    path = tmp_path / "formula.cnf"
    path.write_text(formula.text("easy"))
    reply = service.ask("file", files=[str(path)], priority=0.5)
    assert reply["result"]["resultcode"] == SAT
    assert reply["result"]["resultstring"] == "SAT"
    model = set(reply["result"]["solution"])
    assert all(model & set(clause) for clause in formula.clauses)
    assert (reply["user"], reply["name"], reply["files"]) == ("u", "file", [str(path)])
    assert reply["internal_revision"] == 0
    assert {"parsing", "scheduling", "first_balancing_latency", "processing", "total"} == set(
        reply["stats"]["time"]
    )


def test_a_formula_in_the_job_file_is_solved(service: Running) -> None:
    reply = service.ask("literals", literals=[1, 2, 0, -1, 0])
    assert reply["result"]["solution"] == [-1, 2]
    assert reply["literals"] == [1, 2, 0, -1, 0]
    assert service.ask("contradiction", literals=[1, 0, -1, 0])["result"]["resultcode"] == UNSAT


def test_each_client_answers_in_its_own_folder(service: Running) -> None:
    first = service.submit("same", client=0, literals=[1, 0])
    second = service.submit("same", client=1, literals=[-1, 0])
    assert service.reply(first)["result"]["solution"] == [1]
    assert service.reply(second)["result"]["solution"] == [-1]
    assert service.reply(first)["internal_id"] != service.reply(second)["internal_id"]


def test_ranks_are_shared_by_priority(service: Running) -> None:
    low = service.submit("low", application="SLEEP", priority=1.0)
    high = service.submit("high", client=1, application="SLEEP", priority=2.0)
    service.await_event("volume", job=accepted(service, "low"), volume=1)
    service.await_event("volume", job=accepted(service, "high"), volume=2)
    service.interrupt("high", client=1)
    service.reply(high)
    service.await_event("volume", job=accepted(service, "low"), volume=RANKS)
    service.interrupt("low")
    assert service.reply(low)["result"]["outcome"] == "interrupted"


@pytest.mark.parametrize("limit", ["wallclock", "cpu"])
def test_a_limit_ends_a_job_with_statistics(limit: str, service: Running) -> None:
    reply = service.ask(f"limited-{limit}", application="SLEEP", **{f"{limit}_limit": "300ms"})
    result, stats = reply["result"], reply["stats"]
    assert (result["resultcode"], result["resultstring"]) == (UNKNOWN, "UNKNOWN")
    assert result["outcome"] == f"{limit}-limit"
    assert stats["used_wallclock_seconds" if limit == "wallclock" else "used_pe_seconds"] >= 0.3
    assert stats["used_cpu_seconds"] < 0.1, "it sleeps"
    assert stats["time"]["total"] >= stats["used_wallclock_seconds"]


def test_cpu_time_is_that_of_all_workers_and_their_processes(service: Running) -> None:
    """There are more solvers than cores, so each gets a part of the time. The limit also covers the
    reading.
    """
    formula = [literal for clause in commutativity(16).clauses for literal in (*clause, 0)]
    for limit_s in growing(4.0):
        reply = service.ask(
            f"busy-{limit_s:g}", literals=formula, max_demand=2, wallclock_limit=f"{limit_s:g}s"
        )
        stats = reply["stats"]
        assert reply["result"]["outcome"] == "wallclock-limit"
        if stats["max_volume"] == 2 and stats["used_cpu_seconds"] > 0.1:
            break  # else the limit has come before that
    assert stats["max_volume"] == 2
    assert 0.1 < stats["used_cpu_seconds"] <= stats["used_pe_seconds"] * 1.2


def test_a_job_waits_for_those_that_it_depends_on(service: Running) -> None:
    dependent = service.submit("dependent", application="NOOP", dependencies=["u.first", "u.second"])
    second = service.submit("second", application="NOOP", dependencies=["u.first"])
    first = service.submit("first", application="SLEEP", wallclock_limit="200ms")
    replies = [service.reply(path) for path in (dependent, second, first)]
    ids = [reply["internal_id"] for reply in replies]
    begins = [service.await_event("submitted", job=job)["t"] for job in ids]
    ends = [service.await_event("ended", job=job)["t"] for job in ids]
    assert ends[2] <= begins[1] <= ends[1] <= begins[0]


# --- interruption -----------------------------------------------------------------------------


def test_a_running_job_is_interrupted_with_statistics(service: Running) -> None:
    path = service.submit("running", application="SLEEP")
    service.await_event("started", job=accepted(service, "running"))
    service.ask("meanwhile-running", application="NOOP")  # by then, the client knows that "running" runs
    service.interrupt("running")
    reply = service.reply(path)
    assert reply["result"]["outcome"] == "interrupted"
    assert reply["stats"]["used_wallclock_seconds"] > 0
    assert not (service.box() / "out" / "stop-running.json.error.json").exists()


# --- refused jobs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"{", b"", b"\xff\xfe\x00", b"[" * 100_000], ids=["no JSON", "empty", "binary", "deep"]
)
def test_what_is_no_job_gets_an_error_reply(
    content: bytes, service: Running, request: pytest.FixtureRequest
) -> None:
    file_name = f"bad-{request.node.callspec.id.replace(' ', '-')}.json"
    service.drop(file_name, content)
    reply = service.reply(service.box() / "out" / f"{file_name}.error.json")
    assert reply["file"] == file_name
    assert reply["error"]["message"]
    assert reply["result"]["resultcode"] == UNKNOWN


@pytest.mark.parametrize(
    ("name", "field"), [(None, "name"), ("..b", "name"), ("\ud800", "name"), ("n" * 300, "name")]
)
def test_a_job_without_a_usable_identity_gets_an_error_reply(
    name: str | None, field: str, service: Running
) -> None:
    target = service.box() / "out" / "nameless.json.error.json"
    service.drop("nameless.json", json.dumps({"user": "u", "name": name, "application": "NOOP"}))
    reply = service.reply(target)
    target.unlink()
    assert reply["error"]["field"] == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"application": "SATT"}, "application"),
        ({"aplication": "NOOP"}, "aplication"),
        ({"priority": 0}, "priority"),
        ({"wallclock-limit": "soon"}, "wallclock-limit"),
        ({"dependencies": ["u.refused"]}, "dependencies"),
        ({"incremental": True}, "incremental"),
        ({"application": "SAT", "incremental": True, "precursor": "u.refused"}, "precursor"),
        ({"application": "SAT", "incremental": True, "precursor": "u.nobody"}, "precursor"),
        ({"application": "NOOP", "files": ["/dev/null"]}, "files"),
        ({"application": "SAT"}, "files"),
        ({"application": "SAT", "files": ["/no/such/formula.cnf"]}, "files"),
        ({"application": "SAT", "files": ["/"]}, "files"),
        ({"application": "SAT", "files": ["/dev/random"]}, "files"),
        ({"application": "SAT", "literals": [1, 2]}, "literals"),
        ({"application": "SAT", "literals": [100_000_000, 0]}, "literals"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_a_job_that_cannot_be_run_gets_a_reply_that_names_the_field(
    fields: dict[str, Any], field: str, service: Running
) -> None:
    job = {"user": "u", "name": "refused", "application": "NOOP"} | fields
    target = service.box() / "out" / "u.refused.json"
    service.drop("refused.json", json.dumps(job))
    reply = service.reply(target)
    target.unlink()
    assert reply["error"]["field"] == field
    assert reply["error"]["message"]
    assert reply["result"]["resultcode"] == UNKNOWN


def test_a_broken_formula_gets_a_reply_that_names_the_file(service: Running, tmp_path: Path) -> None:
    formula = tmp_path / "broken.cnf"
    formula.write_text("p cnf 2 1\n1 two 0\n")
    reply = service.ask("broken", files=[str(formula)])
    assert reply["error"]["field"] == "files"
    assert "broken.cnf" in reply["error"]["message"]
    assert reply["name"] == "broken"


def test_a_second_job_of_a_live_name_is_refused_and_the_first_goes_on(service: Running) -> None:
    path = service.submit("twin", application="SLEEP")
    accepted(service, "twin")
    service.drop("other.json", json.dumps({"user": "u", "name": "twin", "application": "NOOP"}))
    refusal = service.reply(service.box() / "out" / "other.json.error.json")
    assert refusal["error"]["field"] == "name"
    assert not path.exists()
    service.interrupt("twin")
    assert service.reply(path)["result"]["outcome"] == "interrupted"


def test_an_interruption_of_an_unknown_job_gets_an_error_reply(service: Running) -> None:
    service.interrupt("stranger")
    reply = service.reply(service.box() / "out" / "stop-stranger.json.error.json")
    assert reply["error"]["field"] == "interrupt"


def parsers(service: Running) -> list[int]:
    """Return the processes that parse large job files."""
    return [pid for pid in service.processes() if "store.large_files" in command_line(pid)]


def test_nobody_waits_for_a_large_job_file_but_who_depends_on_it_and_it_counts_as_at_work(
    service: Running,
) -> None:
    service.ask("before", application="NOOP")
    stopped: list[int] = []
    for number in itertools.count():  # a parser may end before it is found; then another file is tried
        name = f"large-{number}"
        path = service.submit(name, literals=[123456, 0] * 600_000)
        poll_until(lambda at=path: parsers(service) or at.exists(), "a parser")
        for parser in parsers(service):
            with contextlib.suppress(ProcessLookupError):
                os.kill(parser, signal.SIGSTOP)
                stopped.append(parser)
        if stopped and not path.exists():
            break
        while stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(stopped.pop(), signal.SIGCONT)
    service.interrupt(name)
    assert service.ask("meanwhile", application="NOOP")["result"]["resultcode"] == SAT
    assert (service.box() / ".running").read_bytes().strip(b"\0")
    assert not path.exists()
    for parser in stopped:
        os.kill(parser, signal.SIGCONT)
    assert service.reply(path)["result"]["outcome"] == "interrupted"
    assert service.ask("larger", literals=[123456, 0] * 600_000)["result"]["solution"][123456 - 1] == 123456
    poll_until(lambda: not (service.box() / ".running").read_bytes().strip(b"\0"), "nobody at work")


@pytest.mark.slow
def test_2000_files_at_once_get_2000_replies(service: Running) -> None:
    paths = [service.submit(f"many-{number}", application="NOOP") for number in range(2000)]
    replies = [service.reply(path) for path in paths]
    assert {reply["result"]["resultcode"] for reply in replies} == {SAT}
    assert len({reply["internal_id"] for reply in replies}) == 2000
    assert not list((service.box() / "in").iterdir())


# --- commands on a running service --------------------------------------------------------------


def test_submit_waits_for_the_reply(service: Running, tmp_path: Path) -> None:
    formula = tmp_path / "formula.cnf"
    formula.write_text("p cnf 2 2\n1 2 0\n-1 0\n")
    done = run(
        "submit", "--wait", "--api-dir", service.api_dir, "--name", "waited", "formula.cnf", cwd=tmp_path
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["result"]["solution"] == [-1, 2]
    formula.write_text("p cnf")
    done = run("submit", "--wait", "--api-dir", service.api_dir, formula)
    assert done.code == 2
    assert json.loads(done.out)["error"]["field"] == "files"


def test_status_and_interrupt_speak_of_the_live_jobs(service: Running) -> None:
    path = service.submit("alive", application="SLEEP", priority=0.25, max_demand=2)

    def jobs() -> list[dict[str, Any]]:
        status = service.status()
        assert status["ranks"] == RANKS
        return [job for job in status["jobs"] if job["name"] == "alive" and job["volume"] == 2]

    (job,) = poll_until(jobs)
    assert (job["user"], job["name"], job["priority"], job["volume"]) == ("u", "alive", 0.25, 2)
    assert "alive" in service.told("status")
    done = run("interrupt", "--api-dir", service.api_dir, "u.alive")
    assert done.code == 0, done.err
    assert service.reply(path)["result"]["outcome"] == "interrupted"
    done = run("interrupt", "--api-dir", service.api_dir, "u.alive")
    assert done.code == 2
    assert len(done.err.splitlines()) == 1


def test_status_lists_hosts_and_ended_jobs_and_explain_says_why(service: Running) -> None:
    service.ask("told", literals=[1, 0])
    paths = [service.submit(name, application="SLEEP", priority=2.0) for name in ("one", "two")]
    service.submit("dependent", application="SLEEP", dependencies=["u.one"])
    poll_until(
        lambda: [
            line
            for line in service.told("status", "--hosts").splitlines()
            if re.search(r" 3 +3 +\S+ +-$", line)
        ]
    )
    poll_until(
        lambda: [
            line
            for line in service.told("status", "--ended").splitlines()
            if " told " in line and "SAT" in line
        ]
    )
    assert "its result is SAT" in service.told("explain", "u.told")
    shares = "share 3 PEs by priority: its priority of 2, out of 4 in all, is a part of 1.50"
    poll_until(lambda: shares in service.told("explain", "u.one"), shares)
    waits = "waits for the end of 1 job: u.one (running)."
    poll_until(lambda: waits in service.told("explain", "u.dependent"), waits)
    number = accepted(service, "two")
    assert service.told("explain", number).startswith(f"u.two (id {number}) is running")
    for name, path in zip(("dependent", "one", "two"), (None, *paths), strict=True):
        service.interrupt(name)
        if path is not None:
            assert service.reply(path)["result"]["outcome"] == "interrupted"


def test_report_tells_of_the_jobs(service: Running) -> None:
    path = service.submit("reported", application="SLEEP", priority=0.5)
    service.await_event("volume", job=accepted(service, "reported"), volume=RANKS)
    service.interrupt("reported")
    reply = service.reply(path)
    service.await_event("ended", job=reply["internal_id"])
    done = run("report", "--json", service.log_dir)
    assert done.code == 0, done.err
    (row,) = [row for row in json.loads(done.out)["jobs"] if row["job"] == reply["internal_id"]]
    assert row["name"] == "u.reported"
    assert (row["priority"], row["outcome"], row["max_volume"]) == (0.5, "interrupted", RANKS)
    assert row["wallclock_s"] > 0.0
    answered = service.ask("answered", literals=[1, 0, -1, 0])
    service.await_event("answered", job=answered["internal_id"], code=UNSAT)
    assert run("report", service.log_dir).out.startswith(f"{RANKS} ranks")


def test_a_second_service_on_the_same_folder_is_refused(service: Running) -> None:
    done = run("serve", "-n", "2", "--api-dir", service.api_dir)
    assert done.code == 2
    assert len(done.err.splitlines()) == 1, done.err
    assert "is used by a running service" in done.err
    assert "stop it, wait for its end by --wait, or give another --api-dir" in done.err


def test_an_api_folder_that_cannot_be_used_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "api").touch()
    done = run("serve", "-n", "2", "--api-dir", tmp_path / "api")
    assert done.code == 2
    assert len(done.err.splitlines()) == 1, done.err
    assert str(tmp_path / "api") in done.err


@pytest.mark.parametrize("limit", ["500ms", "1ms"])
def test_a_service_with_a_time_limit_ends_by_itself(limit: str, tmp_path: Path) -> None:
    done = run("serve", "-n", "2", "--time-limit", limit, "--api-dir", tmp_path / "api")
    assert done.code == 0, done.err
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    assert re.fullmatch(rf"{stamp} mallob-py: ended; every job of \S+/jobs\.0 has its reply\n", done.err)


def test_a_service_says_what_it_leaves_behind(tmp_path: Path) -> None:
    with serving(tmp_path, ranks=2) as running:
        running.submit("long", application="SLEEP")
        running.submit("later", application="SLEEP", dependencies=["u.never"])
        running.await_event("scheduled")
        accepted(running, "later")
        assert running.stop() == 0
        kept = f"ended; kept in {running.box()}/journal for the next start: 1 running job, 1 waiting job\n"
        assert kept in running.output


def test_folders_that_somebody_removes_come_back_and_polling_finds_the_jobs(tmp_path: Path) -> None:
    with serving(tmp_path, "--poll-directory", ranks=2) as polling:
        for folder in (polling.box() / "out", polling.box() / "in"):
            assert polling.ask(f"before-{folder.name}", application="NOOP")["result"]["resultcode"] == SAT
            remove_in_use(folder)
            poll_until((polling.box() / "in").exists)
            assert polling.ask(f"after-{folder.name}", application="NOOP")["result"]["resultcode"] == SAT
        assert polling.stop() == 0
        assert "Traceback" not in polling.output


def test_a_service_under_mpiexec_ends_with_a_signal_to_it(tmp_path: Path) -> None:
    with serving(tmp_path, ranks=2, prefix=[mpiexec(), "-n", "2"]) as running:
        path = running.submit("endless", application="SLEEP")
        running.await_event("started")
        running.stop()
        poll_until(lambda: not running.processes(), "no process is left")
        assert not path.exists()
        assert list((running.box() / "journal").iterdir())
        assert "Traceback" not in running.output


def test_of_hundreds_of_jobs_only_a_few_are_balanced_and_an_urgent_one_comes_first(tmp_path: Path) -> None:
    with serving(tmp_path, ranks=2) as service:
        many = [service.submit(f"many-{number}", application="SLEEP") for number in range(300)]
        status = poll_until(lambda: _status_with(service, 300), "all are accepted")
        assert status["states"]["running"] <= 2
        # Of the 300 jobs, these are at work: 24 that take turns, 20 without a turn so far (2 per PE, and 16),
        # and 10 that were given up before (one per PE, and 8).
        assert status["states"]["queued"] >= 300 - residents_of(2) - express_of(2), status["states"]
        urgent = service.submit("urgent", application="NOOP", priority=1000.0)
        assert service.reply(urgent)["result"]["resultcode"] == SAT
        for number in range(300):
            service.interrupt(f"many-{number}")
        assert {service.reply(one)["result"]["outcome"] for one in many} == {"interrupted"}
        assert service.stop() == 0


def _status_with(service: Running, jobs: int) -> dict[str, Any] | None:
    status = _status_of(service) or {"states": {}}
    states = status["states"]
    return status if sum(states.values()) == jobs and states.get("running") else None


def test_named_pipes_that_nobody_writes_keep_no_other_input_from_being_read(
    service: Running, tmp_path: Path
) -> None:
    pipe, formula = tmp_path / "pipe", tmp_path / "formula.cnf"
    os.mkfifo(pipe)
    formula.write_text("p cnf 1 1\n1 0\n")
    waiting = [service.submit(f"pipe-{number}", files=[str(pipe)]) for number in range(50)]
    for number in range(49):
        accepted(service, f"pipe-{number}")
    assert service.ask("beside", files=[str(formula)])["result"]["resultcode"] == SAT
    for number in range(50):
        service.interrupt(f"pipe-{number}")
    assert {service.reply(one)["result"]["outcome"] for one in waiting} == {"interrupted"}


def test_as_many_replies_as_files_though_all_name_one_job(service: Running) -> None:
    status = poll_until(lambda: _status_of(service), "there is a status")
    pid = status["processes"][0]["pid"]
    os.kill(pid, signal.SIGSTOP)  # stopped, so that all jobs are submitted before the first has its reply
    try:
        for number in range(100):
            service.drop(f"one-{number}.json", '{"user": "one", "name": "name", "application": "NOOP"}')
    finally:
        os.kill(pid, signal.SIGCONT)
    out = service.box() / "out"
    errors = [out / f"one-{number}.json.error.json" for number in range(1, 100)]
    assert {service.reply(path)["error"]["field"] for path in errors} == {"name"}
    assert service.reply(out / "one.name.json")["result"]["resultcode"] == SAT
    again = service.ask("again", application="NOOP")["internal_id"]
    (out / "u.again.json").unlink()
    assert service.ask("again", application="NOOP")["internal_id"] > again


def _status_of(service: Running) -> dict[str, Any] | None:
    path = service.api_dir / "status.json"
    return json.loads(path.read_bytes()) if path.exists() else None


@pytest.mark.parametrize(
    ("limit", "outcome"),
    [({"wallclock-limit": "300ms"}, "wallclock-limit"), ({"cpu-limit": "300ms"}, "cpu-limit")],
    ids=["wallclock", "cpu"],
)
def test_limits_hold_while_the_input_is_read(
    limit: dict[str, str], outcome: str, service: Running, tmp_path: Path
) -> None:
    endless = tmp_path / "endless.cnf.gz"
    with gzip.open(endless, "wb", compresslevel=1) as file:
        file.write(b"p cnf 10 100000000\n")
        clauses = b"1 2 3 0\n" * 131072
        for _ in range(100):
            file.write(clauses)
    reply = service.ask(f"endless-{outcome}", files=[str(endless)], **limit)
    assert reply["result"]["outcome"] == outcome
    assert reply["stats"]["time"]["parsing"] >= 0.3
    if outcome == "wallclock-limit":
        os.mkfifo(tmp_path / "pipe")
        reply = service.ask("unwritten", files=[str(tmp_path / "pipe")], **limit)
        assert reply["result"]["outcome"] == outcome


def test_modules_in_the_working_folder_are_nobodys_code(tmp_path: Path) -> None:
    """The working folder may be /tmp, where any user can put modules."""
    for name in ("msgspec", "numpy", "mpi4py", "mallob_py", "mallob_sat"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mallob_py", "serve", "-n", "2", "--time-limit", "1s"],
        cwd=tmp_path,
        env=dict(os.environ) | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "apps")])},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, "accepting jobs" in done.stdout) == (0, True), done.stderr
    assert not (tmp_path / "imported").exists()


def test_a_rank_does_not_outlive_a_launcher_that_kills_nobody(tmp_path: Path) -> None:
    """A killed launcher of Slurm ends no rank, so a rank with a running job must end by itself."""
    alone = ["sh", "-c", '"$@" & wait', "launcher"]
    with serving(tmp_path, ranks=1, env={"PMI_ID": "0", "PMI_OF_A_TEST": "1"}, prefix=alone) as running:
        running.submit("long", application="SLEEP", wallclock_limit="100s")
        running.await_event("started")
        running.process.kill()
        poll_until(lambda: running.processes() == [], lambda: running.output)
        assert "the process that started this rank has ended; this rank ends" in running.output
