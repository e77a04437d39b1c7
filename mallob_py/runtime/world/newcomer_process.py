"""The processes of ranks that join: on this host, or on another host by a remote shell.

A remote shell starts a guard on the other host (this module's `main`), and the guard starts the rank. One
line of JSON on the guard's standard input holds the command and the rank's invitation, so the invitation's
secret is on no command line. The shell lives as long as the rank, and killing the shell ends the rank.

Guarantees: when the shell ends, and thus closes the guard's standard input, no process of the rank is left on
the other host; when the rank ends, guard and shell end. The shell outlives the process that started it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from mallob_py.launchers import EXIT_FILE_VARIABLE, INVITED_VARIABLE, PREFIXES
from mallob_py.runtime.notices import tell
from mallob_py.runtime.processes import StopRequests, bare_python, die_with, import_places, no_orphans, python
from mallob_py.runtime.remote_shell import for_any_step
from mallob_py.runtime.world import words_process
from mallob_py.runtime.world.doorbell import BELL_ADDRESS_VARIABLE
from mallob_py.runtime.world.failure_detector import HOST_NAME_VARIABLE

#: prefixes of variables that newcomers must not get: those for ranks of MPI's world, and the exit file's. A
#: newcomer may outlive the launcher's ranks, and its exit code in the file would count as the world's
_OF_MPI = (*PREFIXES, EXIT_FILE_VARIABLE)
#: prefix of the variables that are passed to other hosts, except `_OF_THIS_HOST`
_TAKEN_ALONG = "MALLOB_PY_"
_OF_THIS_HOST = (BELL_ADDRESS_VARIABLE, HOST_NAME_VARIABLE)
_LINE_BYTES_MAX = 1 << 20
_LAST_WORDS_S = 1.0
#: longest wait of the guard, which may be long, because every event ends the wait
_LOOK_S = 3600.0


class Site(NamedTuple):
    """The host of a rank to start. `shell`: the command that runs commands on it; empty: this host."""

    host: str
    shell: tuple[str, ...] = ()


class NewcomerProcess:
    """The process started for one rank: the rank itself, or its remote shell."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        host: str,
        words: tuple[Path, subprocess.Popen[bytes]] | None = None,
    ) -> None:
        """`words`: the file with the end of the shell's standard error, and the process that writes it."""
        self._process = process
        self._host = host
        self._words = words
        self.pid = process.pid

    def kill(self) -> None:
        """Kill the process and all processes that it started on this host."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self, until_s: float) -> None:
        """Wait for the end of the process, at most until `until_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, until_s - time.monotonic()))

    def how_ended(self) -> str:
        """Return a phrase that says how the process ended; must be called once, after its end."""
        code = self._process.wait()
        if self._words is None:
            return "was lost"
        words, writer = self._words
        # Processes that the shell left behind may hold the writer's input open.
        with contextlib.suppress(subprocess.TimeoutExpired):
            writer.wait(_LAST_WORDS_S)
        lines = []
        with contextlib.suppress(OSError), open(words, "rb") as said:
            lines = said.read(2 * words_process.KEPT_BYTES).decode(errors="replace").split("\n")
        words.unlink(missing_ok=True)
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"has ended on {self._host}: {last or f'its remote shell has exit code {code}'}"


class Begin(msgspec.Struct, frozen=True):
    """Order to the guard: run `mallob-py ARGUMENTS...` in `folder`, with this environment and invitation."""

    arguments: list[str]
    folder: str
    environment: dict[str, str]
    invitation: bytes


def start(site: Site, invitation: bytes, words: Path) -> NewcomerProcess:
    """Run this process's command again on `site`, as a rank that joins. Raises OSError.

    A remote shell's standard error is passed to ours, and the end of this text is kept in the file `words`.
    """
    env = _newcomers_environment(os.environ)
    if not site.shell:
        return NewcomerProcess(_start_rank(sys.argv[1:], env, invitation), site.host)
    taken = {name: value for name, value in env.items() if name.startswith(_TAKEN_ALONG)}
    for name in _OF_THIS_HOST:
        taken.pop(name, None)
    taken |= import_places() | {HOST_NAME_VARIABLE: site.host}
    begin = Begin(sys.argv[1:], os.getcwd(), taken, invitation)
    command = [*site.shell, *python(), "-m", __name__]
    # The shell has its input open for writing, too, so that the input does not end before the shell.
    reader, writer = os.pipe()
    both = os.open(f"/proc/self/fd/{reader}", os.O_RDWR | os.O_CLOEXEC)
    try:
        _fill(writer, _line_of(begin))
        tee = subprocess.Popen(
            [*bare_python(), words_process.__file__, words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert tee.stdin is not None
        with tee.stdin:
            shell = subprocess.Popen(
                command, stdin=both, stderr=tee.stdin, env=for_any_step(env), start_new_session=True
            )
    finally:
        for each in (reader, writer, both):
            os.close(each)
    return NewcomerProcess(shell, site.host, (words, tee))


def _line_of(begin: Begin) -> bytes:
    # msgspec encodes no names that are not UTF-8, such as those of folders.
    return json.dumps(msgspec.to_builtins(begin)).encode() + b"\n"


def read_begin(line: bytes) -> Begin:
    """Return the order in a line of standard input. Raises ValueError."""
    return msgspec.convert(json.loads(line), type=Begin)


def _fill(pipe: int, line: bytes) -> None:
    """Write a line into an empty pipe that no process reads yet. Raises OSError if the line is too long."""
    os.set_blocking(pipe, False)
    with contextlib.suppress(OSError):  # the user may not have such a large pipe: the write will be short
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, len(line))
    if len(line) > _LINE_BYTES_MAX or os.write(pipe, line) < len(line):
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))


def _newcomers_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a newcomer: without variables for ranks started by MPI's launcher."""
    kept = {name: value for name, value in env.items() if not name.startswith(_OF_MPI)}
    return kept | import_places() | {INVITED_VARIABLE: "1"}


def _start_rank(
    arguments: list[str], env: Mapping[str, str], invitation: bytes, begin: Callable[[], None] | None = None
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [*python(), "-m", "mallob_py.cli.main", *arguments],
        stdin=subprocess.PIPE,
        env=env,
        preexec_fn=begin,
        start_new_session=True,  # a terminal's Ctrl-C must reach only the process that started all ranks
    )
    assert process.stdin is not None
    process.stdin.write(invitation)  # an invitation fits into a pipe's buffer
    process.stdin.close()
    return process


# --- code on the other host -------------------------------------------------------------------


def main() -> int:
    try:
        begin = read_begin(_first_line())
        os.chdir(begin.folder)
    except ValueError as error:
        tell(f"standard input does not say what to run: {error}")
        return 2
    except OSError as error:
        tell(f"{error.filename}, the folder in which the service runs, cannot be entered: {error.strerror}")
        return 2
    guard = os.getpid()
    with StopRequests() as stops, no_orphans():
        env = os.environ | begin.environment
        rank = _start_rank(begin.arguments, env, begin.invitation, lambda: die_with(guard, signal.SIGKILL))
        end = os.pidfd_open(rank.pid)
        while stops.first is None:
            readable = stops.wait(_LOOK_S, end, 0)
            if end in readable or (0 in readable and not os.read(0, 1 << 10)):
                break
        code = rank.poll()
    return 128 + signal.SIGHUP if code is None else code if code >= 0 else 128 - code


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < _LINE_BYTES_MAX and (more := os.read(0, 1 << 16)):
        line += more
    return line


if __name__ == "__main__":
    sys.exit(main())
