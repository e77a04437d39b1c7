"""Machines of a live scheduler: this host, the hosts of a node file, the nodes of a Slurm allocation."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from mallob_py.batch.live.nodes import LOCALHOST, NodesError, read_node_file
from mallob_py.runtime.remote_shell import SLURM_JOB, SSH, for_any_step, slurm_step

#: the longest time [s] that Slurm may take to grant nodes
GRANT_S = 10
_COMMAND_S = 60.0
_AGAIN_S, _AGAIN_MAX_S = 0.5, 10.0
_HERE = "SLURMD_NODENAME"


class _Fixed:
    """A machine whose nodes do not change while the scheduler runs."""

    environment: Mapping[str, str] = {}
    changes = False

    def check_give_back(self, host: str) -> None:
        raise NodesError(_FIXED)

    def give_back(self, hosts: Sequence[str]) -> None:
        raise NodesError(_FIXED)

    def take_in(self, count: int) -> None:
        raise NodesError(_FIXED)


_FIXED = (
    "only a scheduler in an allocation of Slurm (--slurm) can change its nodes; restart this one with"
    " another --nodes or --slots: jobs go on meanwhile, and --drain empties a node"
)


class ThisHost(_Fixed):
    """This host with a number of slots."""

    def __init__(self, slots: int, cores_per_slot: int = 0) -> None:
        """Offer `slots` slots. Raises NodesError if a slot would have fewer than `cores_per_slot` cores."""
        cores = len(os.sched_getaffinity(0))
        if slots * cores_per_slot > cores:
            each = "a core of its own" if cores_per_slot == 1 else f"{cores_per_slot} cores to divide"
            raise NodesError(f"--affinity: each of {slots} slots needs {each}, but there are {cores} cores")
        self._slots = slots

    def nodes(self) -> Mapping[str, int]:
        return {LOCALHOST: self._slots}

    def shell(self, host: str) -> list[str]:
        return []


class Hosts(_Fixed):
    """The hosts of a node file, reached by a remote shell, which is called as SHELL HOST PROGRAM..."""

    def __init__(self, path: Path, shell: Sequence[str] = SSH) -> None:
        """Read the node file. Raises NodesError, OSError."""
        self._nodes = read_node_file(path)
        self._shell = shell

    def nodes(self) -> Mapping[str, int]:
        return self._nodes

    def shell(self, host: str) -> list[str]:
        return [] if host == LOCALHOST else [*self._shell, host]


class Allocation:
    """The Slurm allocation in which the scheduler runs (`machine_nodes.Machine`); it may grow and shrink.

    Jobs are steps of the allocation (`srun --overlap`), each on its script's node. Its owner may give nodes
    back (`scontrol update NodeList=`). To take in nodes, a second allocation is made for it (`salloc
    --dependency=expand:JOB`), which then hands its nodes over (`scontrol update NumNodes=0`); `slurm.conf`
    must permit this (`SchedulerParameters=permit_job_expansion`). The node of the allocation's own script
    must stay. Slurm 22.05 without accounting changes an allocation only once.
    """

    changes = True

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Remove from the environment the variables that `srun` would obey. Raises NodesError."""
        job = environ.get(SLURM_JOB, "")
        if not job.isdecimal():
            raise NodesError(
                "--slurm works only inside an allocation, and SLURM_JOB_ID names none: start the scheduler by"
                " sbatch slurm/batch.sbatch, or within salloc"
            )
        self._job = job
        self._here = environ.get(_HERE, "")
        kept = for_any_step(environ)
        for name in environ.keys() - kept.keys():
            del environ[name]
        self.environment: Mapping[str, str] = {
            name: value for name, value in kept.items() if name.startswith("SLURM")
        }

    def nodes(self) -> Mapping[str, int]:
        """Return node -> number of the allocation's cores there. Raises NodesError."""
        details = _run("scontrol", "show", "job", "--details", self._job)
        if (names := re.search(r"^\s*NodeList=(\S+)", details, re.MULTILINE)) is None or names[1] == "(null)":
            raise NodesError(f"--slurm: the allocation {self._job} has no nodes (any more)")
        cores = {name: count for group, count in cores_by_nodes(details) for name in _hosts(group)}
        # Slurm does not report the cores of nodes taken in; `take_in` requested as many as on the largest
        # node.
        most = max(cores.values(), default=1)
        return {name: cores.get(name, most) for name in _hosts(names[1])}

    def shell(self, host: str) -> list[str]:
        return slurm_step(self._job, host)

    def check_give_back(self, host: str) -> None:
        """Check that a node may be given back. Raises NodesError if it must stay."""
        if host == self._here:
            raise NodesError(f"{host} is where the allocation's own script runs; it must stay")

    def give_back(self, hosts: Sequence[str]) -> None:
        """Give nodes back to Slurm. Raises NodesError."""
        rest = [name for name in self.nodes() if name not in hosts]
        _update(self._job, f"NodeList={','.join(rest)}")

    def take_in(self, count: int) -> None:
        """Add `count` further nodes, each with the most cores that a present one has. Raises NodesError."""
        before = self.nodes()
        cores = max(before.values())
        said = _run(
            "salloc", "--no-shell", f"--immediate={GRANT_S}", f"--dependency=expand:{self._job}",
            f"--nodes={count}", f"--ntasks={count}", f"--cpus-per-task={cores}",
            # Slurm could grant a present node again if allocations may share nodes.
            f"--exclude={','.join(before)}",
        )  # fmt: skip
        if (granted := re.search(r"Granted job allocation (\d+)", said)) is None:
            raise NodesError(f"salloc: {_last_line(said)}")
        try:
            _update(granted[1], "NumNodes=0")
        except NodesError:
            _run("scancel", granted[1])
            raise
        if self.nodes().keys() == before.keys():
            raise NodesError(
                f"Slurm has granted job {granted[1]}, but not added its nodes here: {said.strip()}"
            )


def _hosts(group: str) -> list[str]:
    return _run("scontrol", "show", "hostnames", group).split()


def cores_by_nodes(details: str) -> list[tuple[str, int]]:
    """Parse `scontrol show job --details`; return (group of nodes in Slurm's form, cores of each node)."""
    found = []
    for names, cores in re.findall(r"^\s*Nodes=(\S+) CPU_IDs=(\S+)", details, re.MULTILINE):
        spans = [span.partition("-") for span in cores.split(",")]
        found.append((names, sum(int(last or first) - int(first) + 1 for first, _, last in spans)))
    return found


def _update(job: str, change: str) -> None:
    """Change an allocation; retry, because Slurm may refuse soon after a job's start. Raises NodesError."""
    until_s = time.monotonic() + _AGAIN_MAX_S
    while True:
        try:
            _run("scontrol", "update", f"JobId={job}", change)
            return
        except NodesError as error:
            if "try again" not in str(error) or time.monotonic() > until_s:
                raise
        time.sleep(_AGAIN_S)


def _run(*command: str) -> str:
    """Return the output of a command. Raises NodesError."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NodesError(f"{command[0]} has not answered for {_COMMAND_S:g} s") from None
    except OSError as error:
        raise NodesError(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        raise NodesError(f"{' '.join(command[:3])}: {_last_line(done.stdout)}")
    return done.stdout


def _last_line(said: str) -> str:
    return (said.strip().splitlines() or ["it says nothing"])[-1][:300]
