"""Commands that start what follows them on another host: ssh, srun in an allocation, or the user's own.

What is to be kept secret goes to standard input, not into the command, which other users see.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

#: a host that does not answer is given up after half a minute, also while something runs there
SSH = (
    "ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
    "-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3",
)  # fmt: skip
#: none that a remote shell takes for an option
HOST_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.@-]*"
#: by which we are known to be inside an allocation
SLURM_JOB = "SLURM_JOB_ID"
#: what of Slurm's variables is true for every step of an allocation, also when that has changed
_LASTING = ("SLURM_CONF", SLURM_JOB, "SLURM_JOBID")


def is_host_name(text: str) -> bool:
    return re.fullmatch(HOST_NAME, text) is not None


def command_words(text: str) -> tuple[str, ...]:
    """A command of the user's, to which a host is added. Raises ValueError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    if not words:
        raise ValueError("it is empty; it is a command such as ssh -T")
    return tuple(words)


def slurm_step(job: str, host: str) -> list[str]:
    """Without a number of CPUs, a step may use all that we have on its node."""
    return [
        "srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none",
        "--mpi=none", "--chdir=/", "--unbuffered", "--quiet", "--nodelist", host,
    ]  # fmt: skip


def shell_to(host: str, env: Mapping[str, str], command: Sequence[str] | None = None) -> tuple[str, ...]:
    """This `command`, if it is given; else a step inside an allocation of Slurm, elsewhere ssh."""
    if command is None and (job := env.get(SLURM_JOB)):
        return tuple(slurm_step(job, host))
    return (*(SSH if command is None else command), host)


def for_any_step(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without what Slurm says of this step, by which `srun` would go."""
    return {name: value for name, value in env.items() if not name.startswith("SLURM") or name in _LASTING}
