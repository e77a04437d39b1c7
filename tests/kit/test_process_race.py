"""Several processes in one worker: there is one answer, even if other processes die or hang."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_context import FakeContext
from waiting import poll_until

from mallob_py.kit import JobInput, ProcessKilled, Result, TreeMessage, process_race, race
from mallob_sat import SatApplication, generate
from mallob_sat.solvers import Solver

WINNER = Result(10, [1, -2], {"solver": "winner"})


def fields_of(process: Path) -> list[str]:
    """Return a process's `stat` fields from the state on; empty if there is no such process."""
    try:
        return (process / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def children() -> set[int]:
    """Return this process's children, including ended children that were not waited for."""
    own = str(os.getpid())
    found = Path("/proc").glob("[0-9]*")
    return {int(process.name) for process in found if fields_of(process)[1:2] == [own]}


@pytest.fixture(autouse=True)
def _no_child_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


class Racing(FakeContext):
    """A context with several solvers; `news` is called each time that the worker checks for messages."""

    def __init__(self, threads: int, index: int = 0, news: Callable[[], object] = lambda: None) -> None:
        super().__init__({}, index, {})
        self.threads = threads
        self._news = news

    def poll(self, timeout_s: float = 0.0) -> list[TreeMessage]:
        self._news()
        return []


class Try:
    """An attempt that runs `decide(number)`."""

    fds = ()

    def __init__(self, decide: Callable[[int], Result], number: int) -> None:
        self.run = lambda: decide(number)

    def close(self) -> None:
        pass


def raced(context: Racing, decide: Callable[[int], Result]) -> Result:
    return race(context, lambda number: Try(decide, number), lambda messages, attempts: None)


def solve(literals: list[int], context: Racing, **configuration: object) -> Result:
    application = SatApplication()
    context.payload = application.read(JobInput(literals=literals))
    context.configuration = configuration
    return application.run(context)


def literals_of(formula: generate.Formula) -> list[int]:
    return [x for clause in formula.clauses for x in (*clause, 0)]


def hang() -> Result:
    while True:
        signal.pause()


def die() -> Result:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


# --- answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("index", [0, 1, 6])
def test_a_satisfiable_formula_gets_a_model(threads: int, index: int) -> None:
    formula = generate.planted(60, 240, 5)
    result = solve(literals_of(formula), Racing(threads, index))
    assert result.code == 10
    model = set(np.asarray(result.solution).tolist())
    assert {abs(x) for x in model} == set(range(1, 61))
    assert len(model) == 60
    assert all(model & set(clause) for clause in formula.clauses)


@pytest.mark.parametrize("threads", [2, 3])
def test_an_unsatisfiable_formula_is_found_to_be_so(threads: int) -> None:
    result = solve(literals_of(generate.pigeonhole(6)), Racing(threads))
    assert result.code == 20
    assert np.asarray(result.solution).size == 0


def test_an_attempt_that_cannot_be_prepared_costs_no_other() -> None:
    def answer_of(good: int) -> Result:
        def prepare(number: int) -> Try:
            if number != good:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return Try(lambda number: WINNER, number)

        return race(Racing(2), prepare, lambda *_: None)

    assert answer_of(0).code == answer_of(1).code == WINNER.code
    with pytest.raises(RuntimeError, match=r"attempt 0: preparation: .*Too many open files; attempt 1"):
        answer_of(2)


def test_a_long_pause_ends_with_an_answer() -> None:
    turns = []

    def decide(number: int) -> Result:
        time.sleep(0.3)
        return WINNER

    result = race(
        Racing(1), lambda number: Try(decide, number), lambda *_: turns.append(1), pause_s=lambda: 600.0
    )
    assert result.code == WINNER.code
    assert len(turns) == 1


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_worker_alone_searches_one_of_several_symmetric_assignments(is_alone: bool) -> None:
    context = Racing(1)
    context.is_alone = is_alone
    result = solve(literals_of(generate.pigeonhole(8)), context)
    assert result.code == 20
    assert ("symmetries" in result.fields["solver"]) == is_alone


def test_an_answer_needs_no_process_if_the_formula_is_trivial() -> None:
    context = Racing(3, news=lambda: pytest.fail("there was a race"))
    assert solve([1, 0, 0], context).code == 20
    assert solve([], context).code == 10


def test_a_configuration_names_the_solvers_of_a_race() -> None:
    result = solve([1, 2, 0, -1, 0], Racing(2), solvers=["ergo", "minisat22"])
    assert np.asarray(result.solution).tolist() == [-1, 2]
    assert result.fields["solver"] in ("ergo", "minisat22")


def test_an_answer_comes_as_it_was_given() -> None:
    result = raced(Racing(2), lambda number: WINNER)
    assert (result.code, np.asarray(result.solution).tolist(), result.fields) == (10, [1, -2], WINNER.fields)


def test_a_model_larger_than_a_pipe_arrives_whole() -> None:
    large = np.arange(1, 1_000_001, dtype=np.int32)
    assert np.array_equal(np.asarray(raced(Racing(2), lambda number: Result(10, large)).solution), large)


def test_the_first_answer_is_taken_and_nobody_waits_for_the_others() -> None:
    result = raced(Racing(3), lambda number: Result(10, [number + 1]) if number == 1 else hang())
    assert np.asarray(result.solution).tolist() == [2]


@pytest.mark.parametrize(("index", "numbers"), [(0, {0, 1, 2}), (4, {12, 13, 14})])
def test_workers_try_numbers_of_their_own(index: int, numbers: set[int], tmp_path: Path) -> None:
    def attempt(number: int) -> Result:
        (tmp_path / str(number)).touch()
        return hang()

    def stop_when_all_are_there() -> None:
        tried = {int(path.name) for path in tmp_path.iterdir()}
        assert tried <= numbers
        if tried == numbers:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        raced(Racing(3, index, stop_when_all_are_there), attempt)


# --- solvers that fail --------------------------------------------------------------------------


@pytest.mark.parametrize("victims", [1, 2])
def test_killed_solvers_do_not_lose_the_answer(victims: int) -> None:
    before = children()
    left = [victims]

    def kill_one() -> None:
        if left[0]:
            left[0] -= 1
            os.kill((children() - before).pop(), signal.SIGKILL)

    assert solve(literals_of(generate.commutativity(5)), Racing(2, news=kill_one)).code == 20
    assert left[0] < victims


def test_a_killed_solver_is_replaced_by_one_that_searches_differently() -> None:
    # two workers with two solvers each: numbers 0 to 3 are taken
    context = Racing(2, index=1)
    result = raced(context, lambda number: die() if number == 2 else hang() if number == 3 else WINNER)
    assert result.fields == WINNER.fields
    result = raced(context, lambda number: die() if number < 4 else Result(10, [number]))
    assert np.asarray(result.solution).tolist() in ([6], [7])


def test_a_solver_that_died_three_times_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    def attempt(number: int) -> Result:
        (tmp_path / str(number)).touch()
        if number % 2 == 0:
            return die()
        while len(list(tmp_path.iterdir())) < 4:
            time.sleep(0.005)
        return WINNER

    assert raced(Racing(2), attempt).fields == WINNER.fields
    assert {int(path.name) for path in tmp_path.iterdir()} == {0, 1, 2, 4}


def test_if_all_solvers_die_the_error_says_of_what() -> None:
    with pytest.raises(RuntimeError, match="all processes of the worker died") as caught:
        raced(Racing(2), lambda number: die() if number % 2 else os._exit(7))
    assert isinstance(caught.value, ProcessKilled)
    assert str(caught.value).count("killed by SIGKILL") == 3
    assert str(caught.value).count("exit status 7") == 3
    with pytest.raises(RuntimeError) as caught:
        raced(Racing(2), lambda number: os._exit(7))
    assert not isinstance(caught.value, ProcessKilled)


def test_if_all_solvers_lack_memory_the_error_says_so() -> None:
    def attempt(number: int) -> Result:
        raise MemoryError

    with pytest.raises(RuntimeError, match="attempt 0: out of memory"):
        raced(Racing(1), attempt)


def test_a_solver_that_lacks_memory_is_replaced() -> None:
    def attempt(number: int) -> Result:
        if number < 2:
            raise MemoryError
        return WINNER

    assert raced(Racing(2), attempt).fields == WINNER.fields


def test_a_wrong_model_is_an_error_and_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Solver, "model", lambda solver: np.array([-1, -2], dtype=np.int32))
    with pytest.raises(RuntimeError, match="wrong model: clause 2 is false"):
        solve([1, -2, 0, 1, 2, 0], Racing(2))


def test_processes_die_with_their_worker(tmp_path: Path) -> None:
    program = f"""if True:
        import os, pathlib, signal
        from test_process_race import Racing, hang, raced
        def attempt(number):
            half = pathlib.Path({str(tmp_path)!r}, "half")
            (half.with_name(f"~{{number}}")).write_text(str(os.getpid()))
            half.with_name(f"~{{number}}").rename(half.with_name(str(number)))
            return hang()
        raced(Racing(2), attempt)
    """
    search_path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    worker = subprocess.Popen([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": search_path})
    try:
        poll_until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
    finally:
        worker.kill()
        worker.wait()
    for path in (tmp_path / "0", tmp_path / "1"):
        process = Path("/proc", path.read_text())
        poll_until(lambda process=process: fields_of(process)[:1] in ([], ["Z"], ["X"]))


def test_an_attempt_that_ends_just_after_its_worker_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    worker = os.getpid()
    read_end, write_end = os.pipe()
    os.close(read_end)
    if (pid := os.fork()) == 0:
        sys.stderr = os.fdopen(2, "w", 1)
        process_race.run_and_exit(write_end, worker, Try(lambda number: WINNER, 0))
    os.close(write_end)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert capfd.readouterr().err == ""
