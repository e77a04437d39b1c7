"""`mallob-py solve` as a user runs it: real ranks, real files, exit codes and output."""

import contextlib
import gzip
import lzma
import os
import pty
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from faults.processes import command_line, parent_of
from running import (
    DEADLINE_S,
    Finished,
    environment,
    marked_processes,
    mpiexec,
    needs_mpiexec,
    poll_until,
    read_until,
    run,
    session_folders_of,
    started,
)
from waiting import growing

from mallob_sat.generate import commutativity, planted

pytestmark = needs_mpiexec

SAT, UNSAT, UNKNOWN, ERROR = 10, 20, 0, 2
SMALL = "c a comment\np cnf 3 3\n1 -2 0\n2 3 0\n-1 -3 0\n"
CONTRADICTION = "p cnf 1 2\n1 0\n-1 0\n"


def hard_formula() -> str:
    """Return a formula that no solver here solves within the time of a test."""
    return commutativity(16).text("hard")


def clauses_of(text: str) -> list[list[int]]:
    body = [line for line in text.splitlines() if line[:1] not in ("c", "p")]
    return [[int(word) for word in line.split()[:-1]] for line in body]


def assert_is_model(model: Sequence[int], text: str) -> None:
    n_vars = int(text.partition("p cnf ")[2].split()[0])
    assert [abs(literal) for literal in model] == list(range(1, n_vars + 1))
    chosen = set(model)
    assert all(chosen & set(clause) for clause in clauses_of(text))


def write(folder: Path, text: str, name: str = "formula.cnf") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("ranks", [1, 2, 4, 9])
def test_any_number_of_ranks_finds_a_model(ranks: int, tmp_path: Path) -> None:
    text = planted(60, 240, seed=ranks).text("easy")
    done = run("solve", "-n", str(ranks), write(tmp_path, text))
    assert (done.code, done.answer) == (SAT, "s SATISFIABLE"), done.err
    assert_is_model(done.model, text)


def test_ranks_started_by_mpiexec_solve_together(tmp_path: Path) -> None:
    done = run("solve", write(tmp_path, SMALL), prefix=[mpiexec(), "-n", "4"])
    assert done.answer == "s SATISFIABLE", done.err
    assert "on 4 ranks" in done.out
    assert_is_model(done.model, SMALL)


@pytest.mark.parametrize(
    ("text", "code", "model"),
    [
        ("p cnf 1 1\n1 0\n", SAT, [1]),
        ("p cnf 0 0\n", SAT, []),
        ("p cnf 2 1\n0\n", UNSAT, None),
        ("p cnf 1 1\n-1 0\n%\n0\n", SAT, [-1]),
    ],
    ids=["one variable", "nothing at all", "an empty clause", "a trailer"],
)
def test_the_smallest_formulas_are_answered(
    text: str, code: int, model: list[int] | None, tmp_path: Path
) -> None:
    done = run("solve", "-n", "2", "--quiet", write(tmp_path, text))
    assert done.code == code, done.err
    if model is not None:
        assert done.model == model


def test_a_file_may_have_any_name(tmp_path: Path) -> None:
    names = [b"-dash.cnf", b"caf\xe9.cnf", b"--quiet"]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_text("p cnf 1 1\n-1 0\n")
    done = run("solve", "-n", "1", "--", *map(os.fsdecode, names), cwd=tmp_path)
    assert done.out.count("s SATISFIABLE") == 3, done.err
    gone = run("solve", "-n", "1", os.fsdecode(b"gone\xe9.cnf"), cwd=tmp_path)
    assert (gone.code, gone.err) == (2, "mallob-py solve: gone\\udce9.cnf: no such file\n")


def test_every_line_of_the_output_has_the_form_of_the_competitions(tmp_path: Path) -> None:
    text = planted(60, 240, seed=1).text("easy")
    done = run("solve", "-n", "2", write(tmp_path, text))
    lines = done.out.splitlines()
    assert {line[:2] for line in lines} == {"c ", "s ", "v "}
    assert max(len(line) for line in lines if not line.startswith("c")) <= 78
    assert done.err == ""


@pytest.mark.parametrize("command", ["solve --quiet -n 2", "run SAT -n 2"])
def test_pipes_of_the_shell_are_read(command: str) -> None:
    script = f"{sys.executable} -m mallob_py {command} <(printf 'p cnf 1 1\\n-1 0\\n')"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=DEADLINE_S)
    assert ("v -1 0" in done.stdout) or ('"solution":[-1]' in done.stdout), done.stderr


def test_a_broken_file_among_several_does_not_keep_the_others_from_an_answer(tmp_path: Path) -> None:
    files = [write(tmp_path, text, f"{number}.cnf") for number, text in enumerate((SMALL, "p cnf 1", SMALL))]
    done = run("solve", "-n", "2", "--quiet", *files)
    assert done.code == ERROR
    assert done.out.count("s SATISFIABLE") == 2
    assert len(done.err.splitlines()) == 1
    assert "1.cnf" in done.err


def test_the_answer_goes_to_the_output_file(tmp_path: Path) -> None:
    target = tmp_path / "answer"
    done = run("solve", "-n", "2", "--output", target, write(tmp_path, SMALL))
    assert done.code == SAT
    assert all(line.startswith("c ") for line in done.out.splitlines()), done.out
    written = Finished(0, target.read_text(), "")
    assert written.answer == "s SATISFIABLE"
    assert_is_model(written.model, SMALL)


def test_a_time_limit_on_a_hard_formula_says_unknown(tmp_path: Path) -> None:
    done = run("solve", "-n", "2", "--time-limit", "1s", write(tmp_path, hard_formula()))
    assert (done.code, done.answer) == (UNKNOWN, "s UNKNOWN"), done.err


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "directory"),
        (lambda path: path.write_text("p cnf 2 1\n1 x 0\n"), "line 2"),
        (lambda path: path.write_bytes(gzip.compress(SMALL.encode())[:-9]), "formula.cnf"),
    ],
    ids=["missing", "directory", "garbage", "binary"],
)
def test_what_cannot_be_read_is_one_line_on_stderr_and_exit_code_2(
    make: Callable[[Path], object], complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "formula.cnf"
    make(path)
    done = run("solve", "-n", "2", "--quiet", path)
    assert done.code == ERROR
    assert len(done.err.splitlines()) == 1, done.err
    assert "formula.cnf" in done.err
    assert complaint in done.err
    assert done.out == ""


def test_an_output_file_that_cannot_be_written_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = run("solve", "-n", "2", "--output", tmp_path / "none" / "answer", write(tmp_path, SMALL))
    assert done.code == ERROR
    assert len(done.err.splitlines()) == 1, done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_solving_and_leaves_nothing_behind(number: int, tmp_path: Path) -> None:
    with started("solve", "-n", "2", write(tmp_path, hard_formula())) as (process, mark):
        read_until("worker", process)  # lines on progress begin once the formula is being solved
        pids = marked_processes(mark)
        assert len(pids) > 2, [command_line(pid) for pid in pids]
        process.send_signal(number)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert err == ""
    assert process.returncode == 128 + number
    assert session_folders_of(pids) == []


def read_until_import_of(module: str, process: subprocess.Popen[str], _mark: str) -> None:
    """Read standard error, on which `-X importtime` lists imports, up to the import of a module."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.endswith(f" mallob_py.{module}\n"):
            return


def await_processes(number: int, _process: subprocess.Popen[str], mark: str) -> None:
    poll_until(lambda: len(marked_processes(mark)) >= number, f"{number} processes")


@pytest.mark.parametrize(
    ("flags", "await_stage"),
    [
        pytest.param(["-X", "importtime"], partial(read_until_import_of, "cli.main"), id="imports"),
        pytest.param(["-X", "importtime"], partial(read_until_import_of, "cli.option_sources"), id="options"),
        pytest.param(
            ["-X", "importtime"], partial(read_until_import_of, "runtime.world.forked_world"), id="launch"
        ),
        pytest.param([], partial(await_processes, 2), id="fork server"),
        pytest.param([], partial(await_processes, 4), id="ranks"),
    ],
)
def test_ctrl_c_at_any_stage_of_the_start_is_answered_unknown(
    flags: list[str], await_stage: Callable[[subprocess.Popen[str], str], None], tmp_path: Path
) -> None:
    path = write(tmp_path, hard_formula())
    command = [sys.executable, *flags, "-m", "mallob_py"]
    with started("solve", "-n", "3", "--quiet", path, command=command) as (process, mark):
        await_stage(process, mark)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (130, "s UNKNOWN\n")
    assert "Traceback" not in err


def test_formulas_that_a_signal_keeps_from_an_answer_are_unknown(tmp_path: Path) -> None:
    easy, hard = write(tmp_path, SMALL, "a.cnf"), write(tmp_path, hard_formula(), "b.cnf")
    said = []
    with started("solve", "-n", "2", easy, hard, easy) as (process, _):
        for line in process.stdout:
            said.append(line)
            if "2 files without an answer, 1 under way" in line:  # the third answer waits for the second
                process.send_signal(signal.SIGINT)
                break
        said += process.communicate(timeout=DEADLINE_S)[0].splitlines(keepends=True)
    answers = [line.split()[1] for line in said if line.startswith("s")]
    assert answers == ["SATISFIABLE", "UNKNOWN", "SATISFIABLE"]
    assert process.returncode == 130


def test_ctrl_c_in_a_terminal_ends_the_loop_of_the_shell_too(tmp_path: Path) -> None:
    path = write(tmp_path, hard_formula())
    loop = f"for i in 1 2; do {sys.executable} -m mallob_py solve -n 1 {path}; echo run $i; done"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("bash", ["bash", "-c", loop], environment(uuid.uuid4().hex))
    said = b""
    with contextlib.suppress(OSError):  # raised when the last process with the terminal has ended
        while data := os.read(terminal, 4096):
            said += data
            if b"worker" in data:
                os.write(terminal, b"\x03")
    os.waitpid(pid, 0)
    os.close(terminal)
    assert said.count(b"s UNKNOWN") == 1
    assert b"run" not in said


def test_nothing_is_left_of_ranks_whose_starter_is_killed(tmp_path: Path) -> None:
    with started("solve", "-n", "3", write(tmp_path, hard_formula())) as (process, _):
        read_until("worker", process)
        process.kill()


def test_a_killed_rank_ends_the_others_if_told_so_and_is_not_taken_for_an_answer(tmp_path: Path) -> None:
    path = write(tmp_path, hard_formula())
    with started("solve", "-n", "3", "--rank-loss", "restart", path) as (process, mark):
        read_until("worker", process)
        pids = marked_processes(mark)
        parents = {parent_of(pid) for pid in pids}
        # Unlike fork servers, ranks have no children.
        ranks = [pid for pid in pids if parent_of(pid) == process.pid and pid not in parents]
        os.kill(ranks[-1], signal.SIGKILL)
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode not in (SAT, UNSAT, UNKNOWN)


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress], ids=["plain", "gz", "xz"])
def test_a_formula_comes_from_standard_input(name: str, pack: Callable[[bytes], bytes]) -> None:
    done = run("solve", "-n", "2", "--quiet", name, stdin=pack(CONTRADICTION.encode()), text=False)
    assert (done.code, done.out, done.err) == (UNSAT, "s UNSATISFIABLE\n", "")


def test_standard_input_may_be_a_file_and_one_formula_among_several(tmp_path: Path) -> None:
    arguments = ["solve", "-n", "2", "--quiet", path := write(tmp_path, SMALL), "-"]
    with path.open() as source, started(*arguments, stdin=source) as (process, _):
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (UNKNOWN, "")
    assert out.count("s SATISFIABLE") == 2


def test_ranks_of_mpiexec_read_standard_input_too() -> None:
    done = run("solve", "--quiet", "-", prefix=[mpiexec(), "-n", "2"], stdin=CONTRADICTION)
    assert done.out == "s UNSATISFIABLE\n", done.err


def test_what_is_wrong_with_standard_input_is_said_of_it() -> None:
    done = run("solve", "-n", "2", "--quiet", "-", stdin="p cnf 2 1\n1 x 0\n")
    assert (done.code, done.out) == (ERROR, "")
    assert done.err.startswith("mallob-py solve: standard input, line 2")
    assert len(done.err.splitlines()) == 1


def test_standard_input_is_one_formula_only() -> None:
    done = run("solve", "-n", "2", "-", "-")
    assert done.code == ERROR
    assert "more than once" in done.err


def test_of_several_files_it_is_said_whose_answer_it_is_even_quietly(tmp_path: Path) -> None:
    first, second = write(tmp_path, SMALL, "a.cnf"), write(tmp_path, CONTRADICTION, "b.cnf")
    done = run("solve", "-n", "2", "--quiet", first, second, first)
    lines = [line for line in done.out.splitlines() if not line.startswith("v")]
    satisfiable = [f"c {first}", "s SATISFIABLE"]
    assert lines == [*satisfiable, f"c {second}", "s UNSATISFIABLE", *satisfiable]
    assert done.code == UNKNOWN


def test_an_answer_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = run("solve", "-n", "2", write(tmp_path, SMALL), stdout=full)
    assert done.code == ERROR
    assert done.err == "mallob-py solve: the answer cannot be written: No space left on device\n"


def test_a_table_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    files = write(tmp_path, SMALL, "a.cnf"), write(tmp_path, CONTRADICTION, "b.cnf")
    done = run("solve", "-n", "1", "--table", "/dev/full", *files)
    assert done.code == ERROR
    assert "mallob-py solve: the table cannot be written: No space left on device\n" in done.err


def test_a_reader_of_answers_who_leaves_early_is_no_error(tmp_path: Path) -> None:
    with started("solve", "-n", "2", write(tmp_path, SMALL)) as (process, _):
        process.stdout.close()
        process.stdout = None
        _, complaints = process.communicate(timeout=DEADLINE_S)
    assert complaints == ""


def test_more_ranks_than_the_machine_can_have_are_refused(tmp_path: Path) -> None:
    done = run("solve", "-n", "10000000", write(tmp_path, SMALL))
    assert (done.code, done.out) == (ERROR, "")
    assert len(done.err.splitlines()) == 1
    assert "--many-ranks" in done.err


def test_too_little_memory_for_a_process_is_one_line(tmp_path: Path) -> None:
    done = run("solve", "-n", "2", "--quiet", "--memory-limit", "1m", write(tmp_path, SMALL))
    assert (done.code, done.out) == (ERROR, "")
    assert len(done.err.splitlines()) == 1, done.err
    assert "--memory-limit" in done.err


@pytest.mark.parametrize("further", [[], ["--quiet"]], ids=["", "quiet"])
def test_of_too_many_solutions_those_found_within_the_time_limit_are_kept(
    further: list[str], tmp_path: Path
) -> None:
    text = planted(60, 120, seed=3).text("many solutions")
    options = ("solve", "-n", "2", "--solutions", "all", *further, write(tmp_path, text))
    for limit_s in growing(2.0):
        done = run(*options, "--time-limit", f"{limit_s:g}s")
        solutions = " ".join(line[1:] for line in done.out.splitlines() if line.startswith("v")).split(" 0")
        models = {tuple(map(int, one.split())) for one in solutions if one.strip()}
        if len(models) > 10:
            break  # else the limit has come before that
    assert (done.code, done.answer) == (SAT, "s SATISFIABLE"), done.err
    assert len(models) > 10
    for model in list(models)[:10]:
        assert_is_model(model, text)
    if not further:
        assert "there may be more; these were found within the time limit" in done.out
