"""Proofs written while solving have the input file's clause numbers, and exist only if they are complete."""

import errno
import io
import os
import random
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import proof_reference
import pytest
from fake_context import FakeContext
from proving import cadical_proof, payload_of, prove, unsatisfiable_formula
from seeds import seeds

from mallob_py.kit import InputError, JobInput, result_file
from mallob_py.kit.result_file import ResultPath
from mallob_sat.app import SatApplication
from mallob_sat.formula import ASSUMPTIONS_MARK
from mallob_sat.generate import pigeonhole
from mallob_sat.portfolio import Portfolio, Strategy
from mallob_sat.proof_checker import Checker, read_steps
from mallob_sat.proofs import PROVERS, ProofFormat, ProofRequest, number_late_clauses

CONTRADICTION = [[1], [-1]]
FILE = ResultPath("proof", "/proof")
HOLES = [list(clause) for clause in pigeonhole(5).clauses]


@pytest.fixture
def proof(tmp_path: Path) -> Iterator[Path]:
    """Yield the path for a proof; afterwards, its folder must hold only the proof and unfinished files."""
    path = tmp_path / "proof"
    yield path
    result_file.discard_unfinished(str(path))
    assert {entry.name for entry in tmp_path.iterdir()} <= {"proof"}


def assert_proves(clauses: list[list[int]], proof: bytes) -> None:
    Checker(clauses).check(read_steps(io.BytesIO(proof)))


@pytest.mark.parametrize("engine", PROVERS[ProofFormat.LRAT])
def test_clauses_have_the_numbers_of_the_file_whatever_disturbs_them(engine: str) -> None:
    rng = random.Random(11)
    for _ in range(40):
        clauses = unsatisfiable_formula(rng)
        proof = cadical_proof(clauses, engine)
        assert_proves(clauses, proof)
        steps = [(step.id, step.integers, step.hints) for step in read_steps(io.BytesIO(proof))]
        assert proof_reference.accepts(clauses, steps, form=list)


@pytest.mark.parametrize(
    "clauses",
    [
        CONTRADICTION,
        [[]],
        [[1, 2], [], [3]],
        [[1], [1], [-1, -1], [-1]],
        [[1, -1], [2], [3, 3, -2], [-3, -3]],
        [[5], [-5, 6], [-6, 7], [-7, -5], [8, 9]],
        [[1, 2], [1, -2], [-1, 2], [-1, -2], [3]],
        [[900], [-900, 17], [-17]],
    ],
)
@pytest.mark.parametrize("engine", PROVERS[ProofFormat.LRAT])
def test_what_is_decided_without_search_has_a_proof_too(clauses: list[list[int]], engine: str) -> None:
    assert_proves(clauses, cadical_proof(clauses, engine))


@pytest.mark.parametrize("index", range(12))
def test_every_strategy_of_the_portfolio_proves(index: int, proof: Path) -> None:
    strategy = ProofRequest(FILE, ProofFormat.LRAT).portfolio(Portfolio(seed=1)).strategy(index)
    assert prove(HOLES, proof, strategy) == 20
    assert_proves(HOLES, proof.read_bytes())


def test_strategies_that_prove_differ_and_rename_nothing() -> None:
    for format_, provers in PROVERS.items():
        portfolio = ProofRequest(FILE, format_).portfolio(Portfolio(seed=3))
        strategies = [portfolio.strategy(index) for index in range(500)]
        assert len(set(strategies)) == 500, format_
        assert all(strategy.solver in provers for strategy in strategies)
        assert all(strategy.renaming_seed is None for strategy in strategies)


@pytest.mark.parametrize("engine", PROVERS[ProofFormat.DRAT])
def test_proofs_in_drat_are_right_as_well(engine: str) -> None:
    rng = random.Random(4)
    for clauses in [HOLES, *(unsatisfiable_formula(rng) for _ in range(10))]:
        lines = cadical_proof(clauses, engine, "drat").decode().splitlines()
        assert proof_reference.accepts_drat(clauses, lines), clauses
    assert not proof_reference.accepts_drat(HOLES, ["1 0", "0"])
    assert cadical_proof([[1, 2], []], engine, "drat") == b"0\n"


def test_numbers_that_are_not_understood_are_an_error_and_no_proof() -> None:
    assert list(number_late_clauses(["9 2 0 7 0\n"], [(3, [5, 6]), (4, [-2])], 7)) == [
        "7 5 6 0 3 0\n",
        "8 -2 0 4 0\n",
        "9 2 0 7 0\n",
    ]
    with pytest.raises(RuntimeError, match="not understood"):
        list(number_late_clauses(["9 2 0 7 0\n"], [(3, [5])], 7))


# --- the file of a proof --------------------------------------------------------------------


def test_a_satisfiable_formula_leaves_no_proof(proof: Path) -> None:
    proof.write_text("an older one")
    assert prove([[1, 2], [-1, 2], [3]], proof, Strategy("cadical195")) == 10
    assert not proof.exists()


def test_the_whole_application_gives_the_answer_with_its_proof(proof: Path) -> None:
    configuration = {"proof": str(proof)}
    context = FakeContext(payload_of(HOLES, configuration), 1, configuration)
    assert SatApplication().run(context).code == 20
    assert_proves(HOLES, proof.read_bytes())


@pytest.mark.parametrize("clauses", [HOLES, [[1], []]], ids=["search", "an empty clause"])
def test_one_of_several_solver_processes_delivers_its_proof(clauses: list[list[int]], proof: Path) -> None:
    configuration = {"proof": str(proof)}
    context = FakeContext(payload_of(clauses, configuration), 0, configuration)
    context.threads = 3
    assert SatApplication().run(context).code == 20
    assert_proves(clauses, proof.read_bytes())


def test_an_error_in_one_of_several_solver_processes_is_told_as_such(proof: Path) -> None:
    configuration = {"proof": str(proof)}
    context = FakeContext(payload_of(HOLES, configuration), 0, configuration)
    context.threads = 2
    result_file.discard(str(proof))
    with pytest.raises(InputError, match="all hosts share"):
        SatApplication().run(context)


def test_a_worker_that_does_not_share_the_folder_refuses_to_work(proof: Path) -> None:
    configuration = {"proof": str(proof)}
    context = FakeContext(payload_of(HOLES, configuration), 0, configuration)
    result_file.discard_unfinished(str(proof))
    with pytest.raises(InputError, match="all hosts share"):
        SatApplication().run(context)
    assert not proof.exists()


def test_without_nameless_files_proofs_are_delivered_as_well(
    proof: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = os.open

    def refuse_nameless(path: str, flags: int, mode: int = 0o777, dir_fd: int | None = None) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not here")
        return open_file(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse_nameless)
    assert prove(HOLES, proof, Strategy("cadical195")) == 20
    assert_proves(HOLES, proof.read_bytes())
    assert prove([[1, 2]], proof, Strategy("cadical195")) == 10
    assert [list(folder.iterdir()) for folder in proof.parent.iterdir()] == [[]]


def test_a_proof_that_finds_no_room_is_an_error_and_not_a_shorter_proof(proof: Path) -> None:
    """A limit on the size of files stands for a full disk; CaDiCaL by itself would notice neither."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
        with pytest.raises(InputError, match="File too large"):
            prove(HOLES, proof, Strategy("cadical195"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous)
    assert not proof.exists()


def test_where_no_proof_can_be_written_is_said_before_solving(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, problem in (
        (tmp_path / "none" / "proof", "No such file"),
        (tmp_path / "file" / "proof", "Not a directory"),
        (tmp_path, "no regular file"),
        (Path("/dev/null"), "no regular file"),
    ):
        with pytest.raises(InputError, match=problem) as caught:
            payload_of(HOLES, {"proof": str(path)})
        assert str(path) in caught.value.message
        assert caught.value.field == "configuration"
    result_file.discard("/dev/null")
    assert Path("/dev/null").exists()


@pytest.mark.parametrize(
    "configuration",
    [
        {"proof": "relative"},
        {"proof": 3},
        {"proof": "/folder/"},
        {"proof": "/p", "proof-format": "frat"},
        {"proof": "/p", "solvers": ["cadical195", "kissat404"]},
        {"proof": "/p", "solvers": ["cadical153"]},
    ],
)
def test_wrong_wishes_are_refused(configuration: dict[str, object]) -> None:
    with pytest.raises(InputError):
        SatApplication().check(configuration)


def test_the_older_cadical_may_write_drat() -> None:
    SatApplication().check({"proof": "/p", "proof-format": "drat", "solvers": ["cadical153"]})


def test_assumptions_and_proofs_do_not_go_together(proof: Path) -> None:
    job = JobInput(literals=[1, 0, ASSUMPTIONS_MARK, -1, 0], configuration={"proof": str(proof)})
    with pytest.raises(InputError, match="assumptions"):
        SatApplication().read(job)


def test_the_formulas_of_these_tests_disturb_the_numbering() -> None:
    formulas = [unsatisfiable_formula(random.Random(seed)) for seed in seeds(40)]
    clauses = [clause for formula in formulas for clause in formula]
    assert not any(map(proof_reference.is_satisfiable, formulas))
    assert any(len(clause) == 1 for clause in clauses)
    assert any(-x in clause for clause in clauses for x in clause)
    assert any(len(set(clause)) < len(clause) for clause in clauses)
