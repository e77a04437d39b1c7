"""A service with all its processes and files: started, killed, stopped, and its story told."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mallob_py.runtime.world.session_folder import shared_folder, sweep
from mallob_py.service.telemetry.event_log import parts_of, runs_of
from soaking.processes import MARK, Wrong, command_line, marked_processes, parent_of, wait_until

#: six ranks start, on a machine that may be busy with other things
READY_DEADLINE_S = 180.0
STOP_DEADLINE_S = 60.0


class Service:
    """`mallob-py serve` in a folder of its own; all its processes inherit a mark."""

    def __init__(self, folder: Path, ranks: int, clients: int, options: Sequence[str]) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        #: the names of those after a start, or before a stop
        self._sessions: set[str] = set()
        #: what we have killed, in order
        self.kills: list[str] = []
        #: by rank's process: not before then is its fork server killed again
        self.spared_until_s: dict[int, float] = {}
        self.api_dir, self.log_dir = folder / "api", folder / "logs"
        self.output_path = folder / "output"
        (folder / "tmp").mkdir()
        command = [sys.executable, "-m", "mallob_py.cli.main", "serve", "-n", str(ranks)]
        command += ["--clients", str(clients), "--api-dir", str(self.api_dir)]
        command += ["--log-dir", str(self.log_dir), *options]
        programs = Path(__file__).parents[2] / "tests/ranks/programs"
        environment = {
            MARK: self.mark,
            "TMPDIR": str(folder / "tmp"),
            "MALLOB_PY_RANKS_PER_HOST": "2",
            "MALLOB_PY_APPS": "FAIL=rank_apps:Fail",
            "PYTHONPATH": os.pathsep.join([str(programs), os.environ.get("PYTHONPATH", "")]),
        }
        self._command, self._environment = command, os.environ | environment
        #: how often its ranks have been started
        self.lives = 0
        self.start()

    def start(self) -> None:
        with open(self.output_path, "a") as output:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        self.lives += 1
        wait_until(self._is_ready, "the service accepts jobs", READY_DEADLINE_S)
        self._note_session()

    @property
    def output(self) -> str:
        return self.output_path.read_text()

    def _is_ready(self) -> bool:
        self.check_alive()
        return self.output.count("accepting jobs") >= self.lives

    def check_alive(self) -> None:
        if (code := self.process.poll()) is not None:
            raise Wrong(f"the service ended with code {code}")
        if self.output.count("accepting jobs") > self.lives:
            raise Wrong("the ranks were started again, though some were left over")

    def box(self, client: int) -> Path:
        return self.api_dir / f"jobs.{client}"

    def drop(self, client: int, file_name: str, content: str) -> None:
        hidden = self.box(client) / "in" / f"~{file_name}"
        hidden.write_text(content)
        hidden.rename(hidden.with_name(file_name))

    def note_kill(self, what: str) -> None:
        self.kills.append(f"{time.time():.3f}: {what}")

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Those of these names in the logs of all ranks since the last start, as far as written."""
        found = []
        marks = [f'"event":"{name}"' for name in names]
        for path in (path for run in runs_of(self.log_dir)[-1:] for path in parts_of(run)):
            for line in path.read_text().splitlines():
                if any(mark in line for mark in marks):
                    with contextlib.suppress(json.JSONDecodeError):
                        found.append(json.loads(line))
        return found

    def stop(self) -> None:
        self._note_session()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise Wrong("the service does not end") from None
        if code != 0:
            raise Wrong(f"the service ended with code {code}")
        wait_until(lambda: not marked_processes(self.mark), "no process is left", STOP_DEADLINE_S)
        if left := self._session_folders():
            raise Wrong(f"left in shared memory: {left}")
        if "Traceback" in self.output:
            raise Wrong("a traceback in the output")

    def _note_session(self) -> None:
        """Folders of a session are named after the process that has made them, and after the session."""
        ours = {str(pid) for pid in marked_processes(self.mark)}
        for path in shared_folder().glob("mallob-py.*-*"):
            maker, _, session = path.name.removeprefix("mallob-py.").partition("-")
            if maker in ours:
                self._sessions.add(session)

    def _session_folders(self) -> list[Path]:
        """Ours in shared memory."""
        sweep(shared_folder())  # as the next session would: nobody did for hosts that have lost all ranks
        return [path for each in self._sessions for path in shared_folder().glob(f"mallob-py.*-{each}")]

    def descriptions(self) -> list[str]:
        """The files of jobs in shared memory, such as `7` of job 7."""
        return [str(file) for folder in self._session_folders() for file in folder.glob("[0-9]*")]

    def kill(self) -> None:
        while pids := marked_processes(self.mark):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        self.process.wait()

    def tell(self, identity: str | None) -> None:
        """The story of what went wrong."""
        print(f"--- output\n{self.output[-8000:]}")
        lines: list[dict[str, Any]] = []
        for path in self.log_dir.rglob("*.jsonl"):
            for text in path.read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    lines.append(json.loads(text))
        lines.sort(key=lambda line: float(line["t"]))
        jobs = {line["job"] for line in lines if f"{line.get('user')}.{line.get('name')}" == identity}
        print("--- in shared memory", *self.descriptions(), sep="\n")
        print("--- last kills", *self.kills[-60:], sep="\n")
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


def _stack_of(pid: int) -> str:
    spy = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if spy is None:
        return ""
    dump = subprocess.run([spy, "dump", "--pid", str(pid)], capture_output=True, text=True, check=False)
    return dump.stdout + dump.stderr
