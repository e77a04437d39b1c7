"""Ranks of unequal capacity under one service: each PE can run a worker, whichever rank hosts the PE."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.processes import state_of
from running import (
    COMMAND,
    Running,
    beside_each_other,
    descriptions_of,
    mpiexec,
    needs_mpiexec,
    poll_until,
    run,
    serving,
    with_apps,
)

from mallob_sat.generate import commutativity, planted

pytestmark = needs_mpiexec

CAPACITIES = (2, 1, 3)
RANKS, PES = len(CAPACITIES), sum(CAPACITIES)
#: two PEs that are not the first PEs of their ranks
SECOND_PE_OF_FIRST_RANK, LAST_PE = 1, PES - 1
SAT, UNSAT, UNKNOWN = 10, 20, 0
APPS = with_apps(CENSUS="rank_apps:Census", BULK="rank_apps:Bulk")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yield one service for all tests here; every test must end its own jobs."""
    with serving(tmp_path_factory.mktemp("service"), env=APPS, capacities=CAPACITIES) as running:
        yield running
        assert running.process.poll() is None, running.output
        assert running.ask("last", application="NOOP")["result"]["resultcode"] == SAT
        running.stop()
        poll_until(lambda: not running.processes(), "no process is left")
        assert "Traceback" not in running.output


def accepted(service: Running, name: str) -> int:
    return int(service.await_event("accepted", name=name)["job"])


def census(folder: Path, workers: int = PES) -> dict[int, int]:
    """Wait until a CENSUS job has this many workers; return worker -> its process."""
    poll_until(lambda: len(list(folder.glob("[0-9]*"))) == workers, f"{workers} workers")
    return {int(path.name): int(path.read_text()) for path in folder.glob("[0-9]*")}


def end(service: Running, name: str, reply: Path) -> None:
    service.interrupt(name)
    assert service.reply(reply)["result"]["outcome"] == "interrupted"


# --- shares -----------------------------------------------------------------------------------


def test_the_service_tells_how_many_pes_its_ranks_host(service: Running) -> None:
    assert f"{RANKS} ranks with {PES} PEs, accepting jobs" in service.output
    starts = [service.await_event("start", rank=pe) for pe in (0, 2, 3)]
    assert [start["capacity"] for start in starts] == list(CAPACITIES)
    assert {(start["ranks"], start["pes"]) for start in starts} == {(RANKS, PES)}


def test_status_and_report_count_pes(service: Running) -> None:
    path = service.submit("counted", application="SLEEP")

    def is_busy() -> bool:
        status = service.status()
        assert (status["ranks"], status["pes"]) == (RANKS, PES)
        return bool(status["busy"] == PES)

    poll_until(is_busy)
    assert f"{PES} of {PES} busy" in service.told("status")
    end(service, "counted", path)
    report = json.loads(run("report", "--json", service.log_dir).out)
    assert (report["ranks"], report["pes"]) == (RANKS, PES)
    assert 0 < report["utilisation"]["mean"] <= 1


# --- worker processes of several PEs of a rank ----------------------------------------------------


@pytest.mark.parametrize("pe", [SECOND_PE_OF_FIRST_RANK, LAST_PE])
def test_a_crash_concerns_only_the_pe_that_hosts_the_worker(
    pe: int, service: Running, tmp_path: Path
) -> None:
    name = f"wounded-{pe}"
    path = service.submit(name, application="CENSUS", configuration={"folder": str(tmp_path)})
    job = accepted(service, name)
    before = census(tmp_path)
    victim = service.await_event("started", job=job, rank=pe)["index"]
    os.kill(before[victim], signal.SIGKILL)
    service.await_event("crashed", job=job, rank=pe, index=victim)
    poll_until(lambda: census(tmp_path)[victim] != before[victim], "there is another process")
    after = census(tmp_path)
    assert {index for index in before if after[index] != before[index]} == {victim}
    end(service, name, path)


def test_workers_of_a_rank_are_suspended_and_resumed_each_for_itself(
    service: Running, tmp_path: Path
) -> None:
    path = service.submit("patient", application="CENSUS", configuration={"folder": str(tmp_path)})
    before = census(tmp_path)

    def stopped() -> list[int]:
        return [pid for pid in before.values() if state_of(pid) == "T"]

    other = service.submit("other", application="SLEEP", priority=2.0)
    poll_until(lambda: len(stopped()) == 4, "four of six workers stand still")
    third = service.submit("third", application="SLEEP", priority=3.0)
    poll_until(lambda: len(stopped()) == 5, "five of six workers stand still")
    end(service, "other", other)
    end(service, "third", third)
    poll_until(lambda: not stopped(), "all go on")
    assert census(tmp_path) == before
    job = accepted(service, "patient")

    def created() -> int:
        return [one["created"] for one in service.events("adopted") if one["job"] == job].count(True)

    poll_until(lambda: created() >= PES, "all adoptions are in the logs")
    assert created() == PES
    end(service, "patient", path)
    poll_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in before.values()), "all have ended")


# --- descriptions ---------------------------------------------------------------------------------


def test_all_pes_of_a_rank_that_fetch_a_description_get_it(tmp_path: Path) -> None:
    """Two ranks count as two hosts: the second rank fetches the description once for all its PEs."""
    env = APPS | {"MALLOB_PY_RANKS_PER_HOST": "1"}
    with serving(tmp_path / "service", env=env, capacities=(2, 3)) as service:
        for number in range(5):
            folder = tmp_path / str(number)
            folder.mkdir()
            configuration = {"size_bytes": 3 << 20, "folder": str(folder), "workers": 5}
            reply = service.ask(f"bulk-{number}", application="BULK", configuration=configuration)
            (checksum,) = reply["result"]["solution"]
            found = {path.name: int(path.read_text()) for path in folder.iterdir()}
            assert found == {str(index): checksum for index in range(5)}
        for limit_ms in (1, 5, 10, 20):
            folder = tmp_path / f"brief-{limit_ms}"
            folder.mkdir()
            configuration = {"size_bytes": 3 << 20, "folder": str(folder), "workers": 5}
            service.ask(
                f"brief-{limit_ms}",
                application="BULK",
                configuration=configuration,
                wallclock_limit=f"{limit_ms}ms",
            )
        poll_until(lambda: not descriptions_of(list(service.pids)), "no description is left")
        service.stop()
        assert "Traceback" not in service.output


# --- options of single ranks ------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_wrong_option_of_one_rank_is_one_line_and_ends_all(wrong: int, tmp_path: Path) -> None:
    pes = ["2", "2"]
    pes[wrong] = "many"
    command = [*COMMAND, "serve", "--api-dir", str(tmp_path / "api")]
    done = run(command=beside_each_other(command, pes))
    assert done.code != 0
    assert [line for line in done.err.splitlines() if "mallob-py" in line] == [
        "mallob-py serve: --pes: 'many' is neither auto nor a number from 1 to 256 "
        "(see mallob-py serve --help)"
    ]
    assert "Traceback" not in done.err
    assert "accepting" not in done.out


# --- the command solve ----------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "pes"), [(1, 2), (2, 3)])
def test_solve_answers_right_with_several_pes_per_rank(ranks: int, pes: int, tmp_path: Path) -> None:
    formula = planted(80, 330, seed=3)
    satisfiable, circuits = tmp_path / "satisfiable.cnf", tmp_path / "circuits.cnf"
    satisfiable.write_text(formula.text("easy"))
    circuits.write_text(commutativity(6).text("circuits"))
    options = ("solve", "-n", str(ranks), "--pes", str(pes))
    done = run(*options, satisfiable)
    assert (done.code, done.answer) == (SAT, "s SATISFIABLE"), done.err
    assert all(set(done.model) & set(clause) for clause in formula.clauses)
    done = run(*options, circuits)
    assert (done.code, done.answer) == (UNSAT, "s UNSATISFIABLE"), done.err
    assert f"with {ranks * pes} PEs" in done.out


def test_auto_takes_the_cores_that_there_are(tmp_path: Path) -> None:
    path = tmp_path / "formula.cnf"
    path.write_text("p cnf 1 1\n1 0\n")
    cores = len(os.sched_getaffinity(0))
    done = run("solve", "-n", "1", "--pes", "auto", path)
    assert done.answer == "s SATISFIABLE", done.err
    assert ("1 rank" if cores == 1 else f"1 rank with {cores} PEs") in done.out


def test_ranks_take_their_number_of_pes_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "formula.cnf"
    path.write_text("p cnf 1 1\n1 0\n")
    done = run("solve", path, prefix=[mpiexec(), "-n", "2"], env={"MALLOB_PY_PES": "2"})
    assert done.answer == "s SATISFIABLE", done.err
    assert "on 2 ranks with 4 PEs" in done.out
