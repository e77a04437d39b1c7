"""Incremental jobs through a running service: every answer as from a solver used directly."""

import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults.processes import command_line, parent_of
from pysat.solvers import Solver as Reference
from running import Running, needs_mpiexec, poll_until, serving

from mallob_sat.generate import pigeonhole, planted

pytestmark = needs_mpiexec

SAT, UNSAT, UNKNOWN = 10, 20, 0


class Chain:
    """A growing formula in the service, and the same formula in a solver in this process."""

    def __init__(self, service: Running, name: str, seed: int = 0, n_vars: int = 60) -> None:
        self.service = service
        self.name = name
        self.revision = 0
        self.chain_id: int | None = None
        self.n_vars = n_vars
        self.clauses: list[list[int]] = []
        self._choose = random.Random(seed)
        self._reference = Reference("cadical153")

    @property
    def last(self) -> str:
        return f"{self.name}-{self.revision - 1}"

    def submit(
        self, clauses: list[list[int]] | None = None, assumptions: list[int] | None = None, **fields: Any
    ) -> Path:
        """Submit the next revision: drawn at random unless given."""
        if clauses is None:
            count = self._choose.choice((0, 1, 2, self.n_vars // 10))
            clauses = [self._literals(3) for _ in range(count)]
        if assumptions is None:
            assumptions = self._literals(self._choose.choice((0, 1, 3)))
        self.clauses += clauses
        self.assumptions = assumptions
        for clause in clauses:
            self._reference.add_clause(clause)
        if self.revision:
            fields["precursor"] = f"u.{self.last}"
        fields["literals"] = [literal for clause in clauses for literal in (*clause, 0)]
        self.revision += 1
        return self.service.submit(self.last, incremental=True, assumptions=assumptions, **fields)

    def _literals(self, count: int) -> list[int]:
        variables = self._choose.sample(range(1, self.n_vars + 1), count)
        return [variable * self._choose.choice((1, -1)) for variable in variables]

    def ask(self, *arguments: Any, **fields: Any) -> dict[str, Any]:
        """Submit the next revision, and check its reply."""
        reply = self.service.reply(self.submit(*arguments, **fields))
        self.check(reply)
        return reply

    def check(self, reply: dict[str, Any]) -> None:
        assert "error" not in reply, reply["error"]
        self.chain_id = self.chain_id or reply["internal_id"]
        assert (reply["internal_id"], reply["internal_revision"]) == (self.chain_id, self.revision - 1)
        expected = SAT if self._reference.solve(self.assumptions) else UNSAT
        result = reply["result"]
        assert result["resultcode"] == expected, f"revision {self.revision - 1}"
        solution = set(result["solution"])
        if expected == SAT:
            assert solution.issuperset(self.assumptions)
            assert all(solution & set(clause) for clause in self.clauses)
        else:
            assert solution.issubset(self.assumptions)
            assert not self._reference.solve(list(solution))

    def end(self) -> None:
        self.service.submit(f"{self.name}-end", incremental=True, precursor=f"u.{self.last}", done=True)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("chains"), ranks=2) as running:
        yield running
        assert running.process.poll() is None, running.output
        assert running.stop() == 0
        assert "Traceback" not in running.output


def journal(service: Running) -> list[str]:
    return [path.name for path in (service.box() / "journal").iterdir()]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_chain_of_random_revisions_is_answered_as_by_a_solver_used_directly(
    ranks: int, tmp_path: Path
) -> None:
    with serving(tmp_path, ranks=ranks) as service:
        chains = [Chain(service, f"chain{seed}", seed) for seed in range(2)]
        others = []
        for turn in range(60):
            if turn % 15 == 5:
                others.append(service.submit(f"other-{turn}", application="SLEEP", wallclock_limit="300ms"))
            chains[0].ask()
            if turn % 3 == 0:
                chains[1].ask()
        for path in others:
            assert service.reply(path)["result"]["outcome"] == "wallclock-limit"
        for chain in chains:
            chain.end()
        poll_until(lambda: not journal(service), "the chains have left the journal")
        assert service.stop() == 0
        assert "Traceback" not in service.output


def test_a_kept_solver_is_given_only_what_is_new(service: Running) -> None:
    chain = Chain(service, "kept")
    chain.ask([[1, 2], [3, 4]], [])
    counts = [chain.ask([[5, number]], [])["result"]["new_clauses"] for number in (6, 7, 8)]
    assert counts == [1, 1, 1]
    chain.end()


def test_revisions_that_come_all_at_once_wait_for_each_other(service: Running) -> None:
    chain = Chain(service, "burst")
    paths = [chain.submit([[-number, number + 1]], [1]) for number in range(1, 12)]
    replies = [service.reply(path) for path in paths]
    assert [reply["internal_revision"] for reply in replies] == list(range(11))
    chain.check(replies[-1])
    chain.end()


def test_formulas_may_come_in_files(service: Running, tmp_path: Path) -> None:
    first = planted(60, 200, seed=3)
    (tmp_path / "first.cnf").write_text(first.text("the first revision"))
    (tmp_path / "second.cnf").write_text("p cnf 60 1\n1 2 0\n")
    reply = service.ask("files-0", incremental=True, files=[str(tmp_path / "first.cnf")])
    assert reply["result"]["resultcode"] == SAT
    reply = service.ask(
        "files-1",
        incremental=True,
        precursor="u.files-0",
        files=[str(tmp_path / "second.cnf")],
        assumptions=[-1],
    )
    model = set(reply["result"]["solution"])
    assert {-1, 2} <= model
    assert all(model & set(clause) for clause in first.clauses)


def test_an_end_without_any_reply_frees_processes_and_journal(service: Running) -> None:
    chain = Chain(service, "freed")
    chain.ask()
    before = journal(service)
    chain.end()
    poll_until(lambda: len(journal(service)) == len(before) - 1, "the chain has left the journal")
    reply = service.ask("freed-9", incremental=True, precursor=f"u.{chain.last}")
    assert reply["error"]["field"] == "precursor"
    assert "its chain is done" in reply["error"]["message"]
    assert not (service.box() / "out" / "u.freed-end.json").exists()


def hard_clauses(pigeons: int, first: int = 1) -> list[list[int]]:
    """Return clauses which say that `pigeons` pigeons fit into one hole less."""
    holes = pigeons - 1
    at = [[first + holes * pigeon + hole for hole in range(holes)] for pigeon in range(pigeons)]
    return at + [[-at[i][h], -at[j][h]] for h in range(holes) for i in range(pigeons) for j in range(i)]


def test_a_revision_that_is_interrupted_or_out_of_time_ends_alone(service: Running) -> None:
    chain = Chain(service, "stopped", n_vars=300)
    chain.ask([[299, 300]], [])
    path = chain.submit([[-300, *clause] for clause in hard_clauses(13)], [300])
    service.await_event("started", job=int(service.await_event("accepted", name=chain.last)["job"]))
    service.interrupt(chain.last)
    reply = service.reply(path)
    assert (reply["result"]["outcome"], reply["result"]["resultcode"]) == ("interrupted", UNKNOWN)
    assert reply["internal_revision"] == 1
    chain.ask([], [-300])
    reply = service.reply(chain.submit([], [300], wallclock_limit="200ms"))
    assert reply["result"]["outcome"] == "wallclock-limit"
    chain.ask([], [-300])
    chain.end()


def test_a_revision_interrupted_before_it_was_read_counts_all_the_same(
    service: Running, tmp_path: Path
) -> None:
    chain = Chain(service, "unread")
    chain.ask([[1, 2]], [])
    formula = tmp_path / "formula.cnf"
    formula.write_text("p cnf 2 1\n-1 0\n")
    path = service.submit(
        "unread-1", incremental=True, precursor="u.unread-0", files=[str(formula)], arrival=1e6
    )
    service.await_event("accepted", name="unread-1")
    service.interrupt("unread-1")
    assert service.reply(path)["result"]["outcome"] == "interrupted"
    reply = service.ask("unread-2", incremental=True, precursor="u.unread-1", assumptions=[-2])
    assert reply["result"]["resultcode"] == UNSAT
    assert reply["internal_revision"] == 2


def begin_slowly(service: Running, name: str, pipe: Path) -> list[Path]:
    """Begin a chain: its first revision is being read, the second waits, the third was interrupted."""
    os.mkfifo(pipe)
    replies = [service.submit(f"{name}-0", incremental=True, files=[str(pipe)])]
    for number, clause in ((1, [-1, 2, 0]), (2, [-2, 3, 0])):
        precursor = f"u.{name}-{number - 1}"
        replies.append(
            service.submit(f"{name}-{number}", incremental=True, precursor=precursor, literals=clause)
        )
    service.await_event("accepted", name=f"{name}-2")
    service.interrupt(f"{name}-2")
    assert service.reply(replies[2])["result"]["outcome"] == "interrupted"
    return replies


def feed(pipe: Path) -> None:
    pipe.write_text("p cnf 1 1\n1 0\n")


def check_slow_chain(service: Running, replies: list[Path]) -> None:
    first = service.reply(replies[0])
    second = service.reply(replies[1])
    assert second["result"]["solution"] == [1, 2]
    assert (second["internal_id"], second["internal_revision"]) == (first["internal_id"], 1)


def test_a_chain_does_not_end_before_its_revisions_though_the_last_was_interrupted(
    service: Running, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    before = journal(service)
    replies = begin_slowly(service, "slow", pipe)
    service.submit("slow-end", incremental=True, precursor="u.slow-2", done=True)
    service.await_event("accepted", name="slow-end")
    feed(pipe)
    check_slow_chain(service, replies)
    poll_until(lambda: len(journal(service)) == len(before), "the chain has left the journal")


def test_a_chain_whose_last_revision_was_interrupted_early_goes_on_after_the_service_was_killed(
    tmp_path: Path,
) -> None:
    pipe = tmp_path / "pipe"
    with serving(tmp_path, ranks=2) as service:
        replies = begin_slowly(service, "slow", pipe)
        service.kill()
    with serving(tmp_path, ranks=1) as service:
        last = service.submit("slow-3", incremental=True, precursor="u.slow-2", literals=[-3, 4, 0])
        service.await_event("accepted", name="slow-3")
        feed(pipe)
        check_slow_chain(service, replies)
        reply = service.reply(last)
        assert (reply["result"]["solution"], reply["internal_revision"]) == ([1, 2, 3, 4], 3)


def workers(service: Running) -> list[int]:
    """Return the processes that fork servers have forked."""
    servers = [pid for pid in service.processes() if "fork_server" in command_line(pid)]
    return [pid for pid in servers if parent_of(pid) in servers]


def test_chains_go_on_after_all_their_processes_are_killed(tmp_path: Path) -> None:
    with serving(tmp_path, ranks=2) as service:
        chain = Chain(service, "killed")
        for _ in range(5):
            chain.ask()
            killed = workers(service)
            assert killed
            for pid in killed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            chain.check(service.reply(chain.submit()))


def test_chains_go_on_after_the_service_was_killed(tmp_path: Path) -> None:
    formula = tmp_path / "formula.cnf"
    formula.write_text("p cnf 3 2\n1 2 0\n-1 3 0\n")
    with serving(tmp_path, ranks=2) as service:
        service.ask("file-0", incremental=True, files=[str(formula)])
        chain = Chain(service, "durable")
        for _ in range(6):
            chain.ask()
        ended = Chain(service, "ended")
        ended.ask()
        ended.end()
        service.ask("noop", application="NOOP")
        accepted = chain.submit()
        service.kill()
        chain.submit()
    formula.unlink()
    with serving(tmp_path, ranks=1) as service:
        chain.service = service
        service.reply(accepted)
        chain.check(service.reply(service.box() / "out" / f"u.{chain.last}.json"))
        for _ in range(4):
            chain.ask()
        reply = service.ask("file-1", incremental=True, precursor="u.file-0", literals=[-2, 0])
        assert reply["error"]["field"] == "precursor"
        assert "u.file-0" in reply["error"]["message"]
        assert str(formula) in reply["error"]["message"]
        chain.end()
        poll_until(lambda: len(journal(service)) == 1, "only the chain with the lost file is left")


def test_a_chain_that_nobody_goes_on_with_ends(tmp_path: Path) -> None:
    with serving(tmp_path, "--chain-timeout", "300ms", ranks=2) as service:
        chain = Chain(service, "forgotten")
        chain.ask()
        poll_until(lambda: not journal(service), "the chain has ended")
        reply = service.ask("late", incremental=True, precursor=f"u.{chain.last}")
        assert "no further revision came for 0.3 s" in reply["error"]["message"]


def test_a_chain_is_answered_where_more_jobs_than_ranks_take_turns(tmp_path: Path) -> None:
    with serving(tmp_path, ranks=1) as service:
        for name in ("one", "two"):
            service.submit(name, application="SLEEP")
            job = service.await_event("accepted", name=name)["job"]
            service.await_event("started", job=job)
        chain = Chain(service, "chain")
        for _ in range(4):
            chain.ask()
        chain.ask([list(clause) for clause in pigeonhole(7).clauses])
        chain.end()
        assert service.stop() == 0
        assert "Traceback" not in service.output
