"""A watched service with all its processes and files: starts, kills, stops, and reports of errors."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from faults.disks import Disks
from faults.foreign import Locks
from faults.processes import MARK, Wrong, command_line, marked_processes, parent_of, wait_until
from mallob_py.runtime.processes import python
from mallob_py.runtime.world.session_folder import shared_folder, sweep
from mallob_py.service.client import service_is_running
from mallob_py.service.telemetry.event_log import parts_of, runs_of

#: longest silence of a service whose ranks are restarted (the longest delay and a start)
DEADLINE_S = 180.0


class Seen:
    """What the files of a service show about it."""

    api_dir: Path
    log_dir: Path
    output_path: Path

    @property
    def output(self) -> str:
        return self.output_path.read_text(errors="replace")

    def box(self, client: int = 0) -> Path:
        return self.api_dir / f"jobs.{client}"

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Return the events with these names that all ranks have logged since the last start."""
        found = []
        marks = [f'"event":"{name}"' for name in names]
        runs = runs_of(self.log_dir) if self.log_dir.exists() else []
        for path in (path for run in runs[-1:] for path in parts_of(run)):
            for line in path.read_text().splitlines():
                if any(mark in line for mark in marks):
                    with contextlib.suppress(json.JSONDecodeError):
                        found.append(json.loads(line))
        return sorted(found, key=lambda one: float(one["t"]))


class Service(Seen):
    """A run of `mallob-py serve`, with restarts; an environment variable marks all of its processes."""

    def __init__(
        self,
        folder: Path,
        ranks: int,
        clients: int,
        options: Sequence[str],
        environment: Mapping[str, str] | None = None,
        disks: Disks | None = None,
        locks: Locks | None = None,
    ) -> None:
        """Start a service, which closes `disks` and `locks` at its end; `environment`: further variables."""
        self.folder = folder
        self._disks = disks
        self._locks = locks
        self.clients = clients
        self.mark = uuid.uuid4().hex
        #: names of all sessions that were alive at a start, a kill or a stop
        self._sessions: set[str] = set()
        self.api_dir, self.log_dir = folder / "api", folder / "logs"
        self.output_path = folder / "output"
        (folder / "tmp").mkdir(exist_ok=True)
        self._command = [*python(), "-m", "mallob_py.cli.main", "serve", "-n", str(ranks)]
        self._command += ["--clients", str(clients), "--api-dir", str(self.api_dir)]
        self._command += ["--log-dir", str(self.log_dir), *options]
        programs = Path(__file__).parents[2] / "tests/ranks/programs"
        self._environment = os.environ | {
            MARK: self.mark,
            "TMPDIR": str(folder / "tmp"),
            "MALLOB_PY_RANKS_PER_HOST": "2",
            "MALLOB_PY_APPS": "FAIL=rank_apps:Fail,LARGE=bag_apps:LargeNapsApplication",
            "PYTHONPATH": os.pathsep.join([str(programs), os.environ.get("PYTHONPATH", "")]),
        }
        self._environment |= environment or {}
        #: size of the output at the last start of all ranks
        self._began_bytes = 0
        #: how often all ranks have been started
        self.lives = 0
        self.start()

    # --- starts ---------------------------------------------------------------------------------------

    def start(self) -> None:
        with open(self.output_path, "ab") as output:
            self.begin_life()
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        self.lives += 1

    def start_if_ended(self) -> None:
        """Restart the service if its launching process has ended, for example because ranks never came up."""
        if self.process.poll() is not None:
            self.await_nobody("all ranks end with their launching process")
            self.start()

    def await_running(self) -> None:
        """Wait until the service accepts jobs. If it ends during its start, start it again."""

        def runs() -> bool:
            self.start_if_ended()
            return service_is_running(self.api_dir)

        wait_until(runs, "the service runs", DEADLINE_S)

    def await_ready(self) -> None:
        """Wait until the ranks of the last start accept jobs. Raises Wrong if the service ends before."""

        def is_ready() -> bool:
            self.check_alive()
            return self.output.count("accepting jobs") >= self.lives

        wait_until(is_ready, "the service accepts jobs", DEADLINE_S)
        self.note_processes()

    def await_start_by_itself(self) -> None:
        """Wait until the service has restarted all ranks, after all initial ranks were killed."""
        self.begin_life()
        self.lives += 1
        self.await_ready()

    def check_alive(self) -> None:
        """Raise Wrong if the service has ended or its ranks were started again."""
        if (code := self.process.poll()) is not None:
            raise Wrong(f"the service ended with code {code}")
        if self.output.count("accepting jobs") > self.lives:
            raise Wrong("the ranks were started again, though some were left")

    def await_nobody(self, what: str) -> None:
        wait_until(lambda: not marked_processes(self.mark), what, DEADLINE_S)

    def stop(self) -> None:
        """Stop the service. Raises Wrong if it fails to end in order or leaves anything behind."""
        self.note_processes()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise Wrong("the service does not end") from None
        if code != 0:
            raise Wrong(f"the service ended with code {code}")
        self.await_nobody("no process is left")
        if left := self._session_folders():
            raise Wrong(f"left in shared memory: {left}")
        if "Traceback" in self.output:
            raise Wrong("the output contains a traceback")

    def kill(self) -> None:
        while pids := marked_processes(self.mark):
            self.note_processes()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def close(self, is_kept: bool) -> None:
        """Kill all processes, and close locks and disks. `is_kept`: whether files stay for the user."""
        self.kill()
        if self._locks is not None:
            self._locks.close()
        if self._disks is not None:
            self._disks.close(is_kept)

    # --- files ----------------------------------------------------------------------------------------

    def begin_life(self) -> None:
        self._began_bytes = self.output_path.stat().st_size

    @property
    def output_of_life(self) -> str:
        """Return the output since the last start of all ranks; older output may name pids that are in use
        again.
        """
        return self.output_path.read_bytes()[self._began_bytes :].decode(errors="replace")

    def note(self, what: str) -> None:
        """Write a line into the output, between the service's lines."""
        with open(self.output_path, "a") as output:
            output.write(f"--- {time.time():.3f} {what}\n")

    def drop(self, file_name: str, content: str, client: int = 0) -> None:
        """Write a job file; on a full disk, wait for room."""
        hidden = self.box(client) / "in" / f"~{file_name}"
        while True:
            try:
                hidden.write_text(content)
                break
            except OSError as error:
                if error.errno != errno.ENOSPC or self._disks is None or not self._disks.is_full:
                    raise
                self._disks.look()
                time.sleep(0.02)
        hidden.rename(hidden.with_name(file_name))

    def note_processes(self) -> None:
        """Record the ranks' sessions, by the folders that ranks hold open (pids may be used again)."""
        for pid in marked_processes(self.mark):
            for path in _open_files(pid):
                if path.parent == shared_folder() and path.name.startswith("mallob-py."):
                    self._sessions.add(path.name.partition("-")[2].partition("-")[2])

    def _session_folders(self) -> list[Path]:
        """Return the session folders of this service in shared memory."""
        sweep(shared_folder())  # as the next session on this host would do
        self.note_processes()
        return [path for each in self._sessions for path in shared_folder().glob(f"mallob-py.*-{each}")]

    @property
    def holds_replies_up(self) -> bool:
        """Tell whether a disk delays replies, so that replies may appear in another order than jobs end."""
        return self._disks is not None and self._disks.holds_replies_up

    def descriptions(self) -> list[str]:
        """Return the files of jobs in shared memory, such as `7` of job 7, on hosts that still have a rank.

        A host has a rank if a process has a file of the host's session folder open.
        """
        hosts = {path.parent for pid in marked_processes(self.mark) for path in _open_files(pid)}
        kept = (folder for folder in self._session_folders() if folder in hosts)
        return [str(file) for folder in kept for file in folder.glob("[0-9]*")]

    def tell(self, identity: str | None) -> None:
        """Print a report on a violated guarantee."""
        print(f"--- output\n{self.output[-12000:]}")
        lines: list[dict[str, Any]] = []
        for path in self.log_dir.rglob("*.jsonl"):
            for text in path.read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    lines.append(json.loads(text))
        lines.sort(key=lambda line: float(line["t"]))
        jobs = {line["job"] for line in lines if f"{line.get('user')}.{line.get('name')}" == identity}
        print("--- in shared memory", *self.descriptions(), sep="\n")
        print(f"--- events of {identity} {jobs}")
        for line in lines:
            if line.get("job") in jobs or (identity and identity.partition(".")[2] in str(line.get("file"))):
                print(json.dumps(line))
        for path in sorted(self.api_dir.rglob("*")):
            if path.is_file() and path.parent.name in ("in", "journal", "api"):
                print(f"--- {path}\n{path.read_text(errors='replace')[:3000]}")
        for pid in marked_processes(self.mark):
            print(f"--- process {pid}: parent {parent_of(pid)}: {command_line(pid)}")
            print(_stack_of(pid), flush=True)


def _open_files(pid: int) -> list[Path]:
    found = []
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.append(Path(os.readlink(f"/proc/{pid}/fd/{descriptor}")))
    return found


def _stack_of(pid: int) -> str:
    spy = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if spy is None:
        return ""
    dump = subprocess.run([spy, "dump", "--pid", str(pid)], capture_output=True, text=True, check=False)
    return dump.stdout + dump.stderr
