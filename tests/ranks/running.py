"""Common parts of the end-to-end tests: a service in processes of its own, and waits for the service's state.

All processes of a service (launcher, mpiexec, ranks, fork servers, workers) inherit a mark in
their environment, by which they are found and, at the latest at the end of a test, killed.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from faults.processes import processes_with
from faults.service import Seen
from waiting import DEADLINE_S, poll_until

from mallob_py.runtime.world.launch import find_launcher
from mallob_py.runtime.world.mpi import LaunchError
from mallob_py.runtime.world.session_folder import shared_folder
from mallob_py.service.telemetry.status import JobInterim, read_status

ROOT = Path(__file__).parents[2]
MARK = "MALLOB_PY_TEST_MARK"
COMMAND = (sys.executable, "-m", "mallob_py.cli.main")


def launcher_is_there() -> bool:
    try:
        find_launcher()
    except LaunchError:
        return False
    return True


needs_mpiexec = pytest.mark.skipif(not launcher_is_there(), reason="needs an mpiexec")


def environment(mark: str, further: Mapping[str, str] | None = None) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "apps"), os.environ.get("PYTHONPATH", "")])
    return dict(os.environ) | {"PYTHONPATH": path, MARK: mark} | dict(further or {})


def with_apps(folder: str = "tests/ranks/programs", **places: str) -> dict[str, str]:
    """Return an environment in which the tests' own applications in a folder are found by name."""
    path = [*(str(ROOT / part) for part in ("", "apps", folder)), os.environ.get("PYTHONPATH", "")]
    apps = ",".join(f"{name}={place}" for name, place in places.items())
    return {"MALLOB_PY_APPS": apps, "PYTHONPATH": os.pathsep.join(path)}


def marked_processes(mark: str) -> list[int]:
    """Return the living processes whose environment has this value of MARK."""
    return processes_with(MARK, mark)


def kill_marked(mark: str) -> None:
    """Kill processes until none is left, also processes that are being forked meanwhile."""
    kill_processes(MARK, mark)


def kill_processes(variable: str, value: str) -> None:
    """Kill the processes with this variable in their environment, except this process.

    All are stopped first, so that none can clean up after another. Returns when they hold no file or lock any
    more: a dying process's environment is unreadable before that.
    """
    ending: dict[int, int] = {}

    def nobody_left() -> bool:
        pids = [pid for pid in processes_with(variable, value) if pid != os.getpid()]
        for pid in pids:
            if pid not in ending:
                with contextlib.suppress(ProcessLookupError):
                    ending[pid] = os.pidfd_open(pid)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        return not pids and all(map(_has_ended, ending.values()))

    try:
        poll_until(nobody_left, "all processes killed")
    finally:
        for pidfd in ending.values():
            os.close(pidfd)


def _has_ended(pidfd: int) -> bool:
    polled = select.poll()
    polled.register(pidfd, select.POLLIN)
    return bool(polled.poll(0))


def session_folders_of(pids: Sequence[int]) -> list[Path]:
    """Return the folders in shared memory that one of these processes has made."""
    found = shared_folder().glob("mallob-py.*-*")
    return [folder for folder in found if int(folder.name.split(".")[1].split("-")[0]) in pids]


def shared_by_mpi(pids: Iterable[int]) -> set[str]:
    """Return the paths of MPICH's shared files in these processes; a removed path ends with "(deleted)"."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return {line.split(maxsplit=5)[5] for line in lines if "mpich_shm" in line}


def descriptions_of(pids: Sequence[int]) -> list[str]:
    """Return the names of descriptions in the processes' session folders, such as `7` for job 7."""
    return [file.name for folder in session_folders_of(pids) for file in folder.glob("[0-9]*")]


class Finished:
    """The output and the exit code of a command that ran to its end."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def answer(self) -> str:
        """Return the only `s` line."""
        (line,) = [line for line in self.out.splitlines() if line.startswith("s ")]
        return line

    @property
    def model(self) -> list[int]:
        """Return the literals of the `v` lines, without the closing 0."""
        words = [word for line in self.out.splitlines() if line.startswith("v") for word in line.split()[1:]]
        assert words[-1] == "0"
        return [int(word) for word in words[:-1]]


@contextlib.contextmanager
def started(
    *arguments: object,
    prefix: Sequence[str] = (),
    command: Sequence[str] = COMMAND,
    env: Mapping[str, str] | None = None,
    **further: Any,
) -> Iterator[tuple[subprocess.Popen[Any], str]]:
    """Start `mallob-py ...`; yield the process, and the value of MARK in the environment of its processes.

    At the end of the block, processes with this value must have ended or end soon; it is an error if they do
    not. `further`: arguments for Popen; by default, standard output and standard error are pipes of text.
    """
    mark = uuid.uuid4().hex
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options = {**pipes, "text": True, "start_new_session": True, **further}
    process = subprocess.Popen(
        [*prefix, *command, *map(str, arguments)], env=environment(mark, env), **options
    )
    try:
        yield process, mark
        poll_until(lambda: not marked_processes(mark), "no process is left")
    finally:
        kill_marked(mark)
        process.wait()


def run(*arguments: object, stdin: str | bytes | None = None, **further: Any) -> Finished:
    """Run `mallob-py ...` to its end (see `started`); `stdin` is its standard input."""
    if stdin is not None:
        further = {"stdin": subprocess.PIPE, **further}
    with started(*arguments, **further) as (process, _):
        out, err = process.communicate(stdin, timeout=DEADLINE_S)
    texts = [text.decode() if isinstance(text, bytes) else text or "" for text in (out, err)]
    return Finished(process.returncode, *texts)


def read_until(shown: str, process: subprocess.Popen[str]) -> None:
    """Read lines of standard output up to a line that contains `shown`."""
    assert process.stdout is not None
    for line in process.stdout:
        if shown in line:
            return
    raise AssertionError(f"it has not said {shown!r}")


def beside_each_other(command: Sequence[str], capacities: Sequence[int | str]) -> list[str]:
    """Return a command line, `mpiexec ... : ...`, that starts ranks of unequal capacity."""
    ranks = [["-n", "1", *command, "--pes", str(capacity)] for capacity in capacities]
    return [mpiexec(), *ranks[0], *(word for rank in ranks[1:] for word in (":", *rank))]


class Running(Seen):
    """A service that writes only below `folder`.

    With `capacities`, it runs under mpiexec, on ranks with these numbers of PEs.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        ranks: int = 3,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        capacities: Sequence[int] = (),
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.api_dir = folder / "api"
        self.log_dir = folder / "logs"
        self.output_path = folder / "output"
        self.pids: set[int] = set()
        temporary = folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        command = [
            *prefix, *COMMAND, "serve", "-n", str(len(capacities) or ranks),
            "--api-dir", str(self.api_dir), "--log-dir", str(self.log_dir), *options,
        ]  # fmt: skip
        with open(self.output_path, "w") as output:
            self.process = subprocess.Popen(
                beside_each_other(command, capacities) if capacities else command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(self.mark, {"TMPDIR": str(temporary)} | dict(env or {})),
                start_new_session=True,
            )

    def await_ready(self) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.output
            return "accepting jobs" in self.output

        poll_until(is_ready, "the service accepts jobs")
        self.pids |= set(marked_processes(self.mark))

    # --- submit jobs, await replies ---------------------------------------------------------

    def drop(self, file_name: str, content: bytes | str, client: int = 0) -> None:
        """Put a job file into `in/`, complete from the first moment on."""
        hidden = self.box(client) / "in" / f"~{file_name}"
        hidden.write_bytes(content.encode() if isinstance(content, str) else content)
        hidden.rename(hidden.with_name(file_name))

    def submit(self, name: str, client: int = 0, **fields: Any) -> Path:
        """Submit a job of user `u`; return the path of its reply. Underscores in fields stand for hyphens."""
        job = {"user": "u", "name": name} | {key.replace("_", "-"): value for key, value in fields.items()}
        self.drop(f"{name}.json", json.dumps(job), client)
        return self.box(client) / "out" / f"u.{name}.json"

    def interrupt(self, name: str, client: int = 0) -> None:
        self.drop(f"stop-{name}.json", json.dumps({"user": "u", "name": name, "interrupt": True}), client)

    def reply(self, path: Path, timeout_s: float = DEADLINE_S) -> dict[str, Any]:
        def is_there() -> bool:
            code = self.process.poll()
            assert code is None or path.exists(), f"the service ended with code {code}\n{self.output}"
            return path.exists()

        poll_until(is_there, f"{path.name}\n{self.output}", timeout_s)
        reply = json.loads(path.read_bytes())
        assert isinstance(reply, dict)
        return reply

    def ask(self, name: str, client: int = 0, **fields: Any) -> dict[str, Any]:
        """Submit a job and wait for its reply."""
        return self.reply(self.submit(name, client, **fields))

    # --- state of the service ----------------------------------------------------------

    def told(self, command: str, *arguments: object) -> str:
        """Return the output of a command about the service, such as `status`.

        The command is repeated, because a service that writes no status for some seconds, as on a busy
        machine, counts as absent.
        """

        def done() -> Finished | None:
            it = run(command, *map(str, arguments), "--api-dir", self.api_dir)
            assert it.code == 0 or "no service is running" in it.err, it.err
            return it if it.code == 0 else None

        return poll_until(done, f"{command}: the service is there").out

    def status(self) -> dict[str, Any]:
        """Return the output of `status --json`."""
        status = json.loads(self.told("status", "--json"))
        assert isinstance(status, dict)
        return status

    def interim(self, name: str) -> JobInterim | None:
        """Return the best offer of a live job, as the status has it."""
        status = read_status(self.api_dir)
        job = None if status is None else status.job(f"u.{name}", client=0)
        return None if job is None else job.interim

    def await_event(self, event: str, **fields: Any) -> dict[str, Any]:
        def matching() -> list[dict[str, Any]]:
            return [one for one in self.events(event) if fields.items() <= one.items()]

        return poll_until(matching, f"event {event} {fields}\n{self.output}")[0]

    def processes(self) -> list[int]:
        return marked_processes(self.mark)

    # --- end of the service ----------------------------------------------------------------

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Order a clean end, and wait for it; return the exit code."""
        self.pids |= set(self.processes())
        self.process.send_signal(number)
        code = self.process.wait(DEADLINE_S)
        if code != 0:
            print(self.output)  # shown with a failed test
        return code

    def kill(self) -> None:
        """Kill all processes at once."""
        kill_marked(self.mark)
        self.process.wait(DEADLINE_S)


@contextlib.contextmanager
def serving(
    folder: Path,
    *options: str,
    ranks: int = 3,
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    capacities: Sequence[int] = (),
) -> Iterator[Running]:
    """Yield a service that accepts jobs; none of its processes outlives the block."""
    service = Running(folder, *options, ranks=ranks, env=env, prefix=prefix, capacities=capacities)
    try:
        service.await_ready()
        yield service
    finally:
        service.kill()


def mpiexec() -> str:
    path = find_launcher().path
    assert shutil.which(path)
    return path
