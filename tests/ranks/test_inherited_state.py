"""A start does not depend on process state that a parent can leave, such as signal masks."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from running import COMMAND, environment, mpiexec, needs_mpiexec, serving
from waiting import DEADLINE_S, poll_until

from mallob_py.launchers import EXIT_FILE_VARIABLE, INVITED_VARIABLE
from mallob_py.runtime import inherited
from mallob_py.runtime.inherited import forget_launchers_that_are_gone

FORMULA = "p cnf 2 2\n1 2 0\n-1 0\n"
#: inherited state -> Python code that sets this state just before the command is executed
LEFT = {
    "SIGCHLD ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "others ignored": "[signal.signal(each, signal.SIG_IGN) for each in (10, 12, 14, 15)]",
    "all blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "nice": "os.nice(1)",
    "no input": "os.close(0)",
    "PMI": "os.environ.update(PMI_RANK='0', PMI_SIZE='1', PMI_FD='57')",
    "PMIx": "os.environ.update(PMIX_RANK='3', PMIX_NAMESPACE='x', PMIX_SERVER_URI4='x;tcp4://127.0.0.1:1')",
    "Open MPI": "os.environ.update(OMPI_COMM_WORLD_RANK='1', OMPI_COMM_WORLD_SIZE='4')",
    "Slurm": "os.environ.update(SLURM_STEP_NUM_TASKS='4', SLURM_PROCID='1', SLURM_TASK_PID='4194305')",
    "a rank of ours": f"os.environ[{EXIT_FILE_VARIABLE!r}] = '/tmp/mallob-py.4194305-0123456789abcdef/code'",
}
BECOME = "import os, signal, sys\n{}\nos.execv(sys.argv[1], sys.argv[1:])"


def after(*kinds: str) -> list[str]:
    """Return a prefix that runs a command in the state left by these kinds of parents."""
    return [sys.executable, "-c", BECOME.format("\n".join(map(LEFT.__getitem__, kinds)))]


@pytest.mark.parametrize(
    "kinds", [["SIGCHLD ignored"], ["all blocked"], ["PMI"], list(LEFT)], ids=lambda it: it[-1]
)
def test_a_formula_is_solved_whatever_a_parent_has_left(kinds: Sequence[str], tmp_path: Path) -> None:
    (tmp_path / "f.cnf").write_text(FORMULA)
    command = [*after(*kinds), *COMMAND, "solve", "-n", "2", str(tmp_path / "f.cnf")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment("left"), check=False
    )
    assert (done.returncode, done.stderr) == (10, "")
    assert "f.cnf on 2 ranks\n" in done.stdout
    assert "\nv -1 2 0\n" in done.stdout


def test_a_service_runs_and_ends_whatever_a_parent_has_left(tmp_path: Path) -> None:
    with serving(tmp_path, ranks=2, prefix=after(*LEFT)) as service:
        assert service.ask("a", application="NOOP")["result"]["outcome"] == "result"
        assert service.stop(signal.SIGTERM) == 0
        assert "Traceback" not in service.output


@contextlib.contextmanager
def started(command: Sequence[str], log: Path, is_up: Callable[[], bool]) -> Iterator[None]:
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment("left"))
    try:

        def is_there() -> bool:
            assert process.poll() is None, log.read_text()
            return is_up()

        poll_until(is_there, log.read_text)
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


def test_a_batch_scheduler_hears_of_ends_whatever_a_parent_has_left(tmp_path: Path) -> None:
    folder, log, script = tmp_path / "batch", tmp_path / "log", tmp_path / "job.sh"
    script.write_text("#!/bin/sh\nexit 3\n")
    where = ["--dir", str(folder)]
    command = [*after(*LEFT), *COMMAND, "batch", "serve", "--slots", "1", *where]
    with started(command, log, lambda: "scheduling" in log.read_text()):
        submit = [*COMMAND, "batch", "submit", *where, str(script)]
        assert (
            subprocess.run(submit, stdout=subprocess.DEVNULL, timeout=DEADLINE_S, check=False).returncode == 0
        )
        poll_until(lambda: "exit code 3" in log.read_text(), log.read_text)


def test_a_web_server_answers_and_ends_whatever_a_parent_has_left(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [*after(*LEFT), *COMMAND, "web", "--api-dir", str(tmp_path), "--port", "0"]
    with started(command, log, lambda: "http://" in log.read_text()):
        found = re.search(r"http://[^ \n]+", log.read_text())
        assert found is not None
        with urllib.request.urlopen(found[0], timeout=DEADLINE_S) as page:
            assert page.status == 200


@needs_mpiexec
def test_below_a_launcher_of_one_process_a_command_starts_the_ranks_that_it_is_asked_for(
    tmp_path: Path,
) -> None:
    (tmp_path / "f.cnf").write_text(FORMULA)
    solve = " ".join([*COMMAND, "solve", "-n", "2", str(tmp_path / "f.cnf")])
    done = subprocess.run(
        [mpiexec(), "-n", "1", "sh", "-c", f"{solve}; echo code $?"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert "f.cnf on 2 ranks\n" in done.stdout
    assert "code 10\n" in done.stdout, done.stderr


def left_of(env: Mapping[str, str]) -> dict[str, str]:
    left = dict(env)
    forget_launchers_that_are_gone(left)
    return left


@pytest.mark.parametrize(
    "env",
    [
        {"PMI_RANK": "0", "PMI_SIZE": "2"},
        {"PMI_RANK": "0", "PMI_FD": "none"},
        {"PMIX_RANK": "0", "PMIX_NAMESPACE": "x"},
        {"OMPI_COMM_WORLD_SIZE": "2"},
        {"SLURM_STEP_NUM_TASKS": "2", "SLURM_TASK_PID": "4194305"},
        {EXIT_FILE_VARIABLE: "/tmp/mallob-py.4194305-00/exit-code"},
    ],
)
def test_variables_of_a_launcher_that_is_gone_are_forgotten(env: dict[str, str]) -> None:
    assert left_of(env | {"OMPI_MCA_x": "1", "SLURM_JOB_ID": "7"}).keys() - env.keys() == {
        "OMPI_MCA_x",
        "SLURM_JOB_ID",
    }
    assert not left_of(env).keys() - {"SLURM_TASK_PID"}


def test_variables_of_a_launcher_that_is_there_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr(inherited, "_listened_ports", lambda: {4000})
    ours = f"/tmp/mallob-py.{os.getppid()}-00/exit-code"
    for env in (
        {"PMI_RANK": "0", "PMI_SIZE": "2", "PMI_FD": str(reader), EXIT_FILE_VARIABLE: "/tmp/x"},
        {"PMI_RANK": "0", "PALS_RANKID": "0"},
        {"PMIX_RANK": "0", "PMIX_SERVER_URI4": "x.0;tcp4://127.0.0.1:4000"},
        {"PMIX_RANK": "0", "PMIX_SERVER_URI4": "x.0;tcp4://10.0.0.9:4001"},
        {"OMPI_COMM_WORLD_SIZE": "2", "PMIX_SERVER_URI2": "x.0;usock:/tmp/x"},
        {"SLURM_STEP_NUM_TASKS": "2", "SLURM_TASK_PID": str(os.getppid())},
        {EXIT_FILE_VARIABLE: ours},
        {INVITED_VARIABLE: "1", "PMI_RANK": "7"},
    ):
        assert left_of(env) == env
    os.close(reader)
    os.close(writer)


def test_signals_that_a_parent_has_blocked_are_not() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        inherited.make_own_state({})
        assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
