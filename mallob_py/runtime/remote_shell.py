"""Commands that start a program on another host: ssh, srun in an allocation, or the user's own command.

Secrets go to the program's standard input, not into the command, which other users see.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

#: command that gives up a host that is silent for half a minute, even while a program runs there
SSH = (
    "ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
    "-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3",
)  # fmt: skip
#: pattern of host names; no host name looks like an option
HOST_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.@-]*"
#: variable that Slurm sets inside an allocation
SLURM_JOB = "SLURM_JOB_ID"
#: Slurm's variables that hold for every step of an allocation, even after the allocation has changed
_LASTING = ("SLURM_CONF", SLURM_JOB, "SLURM_JOBID")


def is_host_name(text: str) -> bool:
    return re.fullmatch(HOST_NAME, text) is not None


def command_words(text: str) -> tuple[str, ...]:
    """Split a user's command into words, to which the caller adds a host. Raises ValueError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    if not words:
        raise ValueError("the command is empty; give a command such as ssh -T")
    return tuple(words)


def slurm_step(job: str, host: str) -> list[str]:
    """Return the command that starts a step on a host; the step may use all CPUs of `job` there."""
    return [
        "srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none",
        "--mpi=none", "--chdir=/", "--unbuffered", "--quiet", "--nodelist", host,
    ]  # fmt: skip


def shell_to(host: str, env: Mapping[str, str], command: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the command to reach a host: the given command, else a Slurm step if inside Slurm, else ssh."""
    if command is None and (job := env.get(SLURM_JOB)):
        return tuple(slurm_step(job, host))
    return (*(SSH if command is None else command), host)


def for_any_step(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without Slurm's settings of this step, which `srun` would obey."""
    return {name: value for name, value in env.items() if not name.startswith("SLURM") or name in _LASTING}
