"""Several solver processes per worker, on real ranks: answers, suspension, and a clean end."""

import os
import signal
from pathlib import Path

from faults.processes import command_line, parent_of, state_of
from running import Running, needs_mpiexec, poll_until, serving

from mallob_sat.generate import commutativity

pytestmark = needs_mpiexec

SAT, UNSAT, UNKNOWN = 10, 20, 0
RANKS = SOLVERS = 2


def solvers(service: Running) -> list[int]:
    """Return the solver processes: below a rank come fork server, worker, solver."""

    def is_solver(pid: int) -> bool:
        line = (pid, parent_of(pid), parent_of(parent_of(pid)))
        return all("fork_server" in command_line(one) for one in line)

    return [pid for pid in service.processes() if is_solver(pid)]


def stopped(pids: list[int]) -> list[int]:
    return [pid for pid in pids if state_of(pid) == "T"]


def hard_formula(folder: Path) -> list[str]:
    """Write a formula that no solver here solves within the time of a test; return its path in a list."""
    path = folder / "hard.cnf"
    path.write_text(commutativity(16).text("hard"))
    return [str(path)]


def test_solvers_are_suspended_continued_and_ended_with_their_worker(tmp_path: Path) -> None:
    with serving(tmp_path / "service", "--solvers", str(SOLVERS), ranks=RANKS) as service:
        hard = hard_formula(tmp_path)
        first = service.submit("first", files=hard)
        poll_until(lambda: len(solvers(service)) == RANKS * SOLVERS, "two workers of two solvers")

        second = service.submit("second", application="SLEEP", max_demand=1)
        poll_until(lambda: len(stopped(solvers(service))) == SOLVERS, "one worker stands still")
        service.interrupt("second")
        assert service.reply(second)["result"]["resultcode"] == UNKNOWN
        poll_until(lambda: not stopped(solvers(service)), "it goes on")
        assert len(solvers(service)) == RANKS * SOLVERS

        before = solvers(service)
        os.kill(before[0], signal.SIGKILL)
        poll_until(lambda: set(solvers(service)) - set(before), "there is another solver")
        poll_until(lambda: len(solvers(service)) == RANKS * SOLVERS, "the solver is replaced")
        service.interrupt("first")
        assert service.reply(first)["result"]["resultcode"] == UNKNOWN
        poll_until(lambda: not solvers(service), "no solver is left")

        assert service.ask("third", literals=[1, 2, 0, -1, 0])["result"]["solution"] == [-1, 2]
        assert not service.events("crashed")
        assert service.stop() == 0
        assert "Traceback" not in service.output
