"""A real Slurm on this machine: munge, slurmctld and two slurmd that play nodes, in a folder of its own.

Needs root and the programs (Debian: slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins
libpmi2-0); no systemd, no configuration of the system. All processes, those of jobs included,
inherit a mark by which they are killed at the end.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from faults.processes import command_line, parent_of
from running import MARK, kill_marked, marked_processes
from waiting import poll_until

NODES = 2
CPUS_PER_NODE = 4
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "squeue", "sinfo")
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def what_is_missing() -> str | None:
    """Return why no cluster can be made here; None: one can."""
    if os.geteuid() != 0:
        return "needs root to start Slurm's daemons"
    missing = [program for program in PROGRAMS if shutil.which(program, path=_PATH) is None]
    if missing:
        return f"needs Slurm: no {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge ...)"
    return None


class Cluster:
    """A running Slurm. `run` runs Slurm's commands in `environment`, which jobs inherit, too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = uuid.uuid4().hex
        self.environment = {
            **os.environ,
            "PATH": _PATH,
            "SLURM_CONF": str(folder / "slurm.conf"),
            MARK: self._mark,
        }
        for variable in [name for name in self.environment if name.startswith(("SLURM_", "PMI"))]:
            if variable != "SLURM_CONF":
                del self.environment[variable]

    def start(self) -> None:
        folder = self._folder
        for name in ("state", "munge", *(f"{part}/n{node}" for part in ("spool", "tmp") for node in (1, 2))):
            (folder / name).mkdir(parents=True)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        (folder / "slurm.conf").write_text(_configuration(folder))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\n")
        munge = folder / "munge"
        self._daemon(
            "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge}/socket",
            f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed",
        )  # fmt: skip
        self._wait_until((munge / "socket").exists)
        self._daemon("slurmctld", "-D")
        for node in range(1, NODES + 1):
            self._daemon("slurmd", "-D", "-N", f"n{node}")
        self._wait_until(lambda: self._idle_nodes() == NODES)

    def run(self, *command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
        """Return the output of a command; raise its failure."""
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self.environment | dict(env or {}),
            cwd=cwd,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def granted(self, *options: str) -> str:
        """Return the number of an allocation without a command."""
        done = subprocess.run(
            ["salloc", "--no-shell", "--immediate=30", *options],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, timeout=60, check=False, env=self.environment,
        )  # fmt: skip
        found = re.search(r"Granted job allocation (\d+)", done.stderr)
        assert found, done.stderr
        return found[1]

    def processes(self) -> list[int]:
        """Return all processes of the cluster and its jobs."""
        return marked_processes(self._mark)

    def lose_node(self, name: str) -> None:
        """Kill at once all processes of a node: tasks, the daemons of their steps, and the node's daemon."""
        at_home = f"SLURMD_NODENAME={name}".encode()
        tasks = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                if at_home in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    tasks.append(pid)
        daemons = [pid for pid in self.processes() if command_line(pid).startswith(f"slurmd -D -N {name}")]
        steps = {parent for parent in map(parent_of, tasks) if "slurmstepd" in command_line(parent)}
        assert tasks
        assert steps
        assert daemons
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in {*daemons, *steps, *tasks}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def stop(self) -> None:
        kill_marked(self._mark)

    def log(self) -> str:
        """Return the last lines of the daemons' logs."""
        return "\n".join(f"{path}: {path.read_text()[-2000:]}" for path in self._folder.glob("*.log"))

    def _daemon(self, *command: str) -> None:
        with open(self._folder / f"{command[0]}.log", "a") as log:
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )

    def _idle_nodes(self) -> int:
        done = subprocess.run(
            ["sinfo", "-h", "-N", "-o", "%T"],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
        )
        return done.stdout.split().count("idle")

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        poll_until(condition, lambda: f"Slurm comes up: {self.log()}")


@contextlib.contextmanager
def virtual_cluster() -> Iterator[Cluster]:
    """Yield a cluster that is ready; none of its processes outlives the block."""
    # A short path, because munge's socket lies below it.
    folder = Path(tempfile.mkdtemp(prefix="mallob-slurm."))
    folder.chmod(0o755)
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    """Return ports below the range of automatic ports: the daemons bind them a little later."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    free: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(free) < count:
            port = random.randrange(10_000, first)
            with contextlib.suppress(OSError):
                stack.enter_context(socket.socket()).bind(("", port))
                free.append(port)
    return free


def _configuration(folder: Path) -> str:
    # MPICH names shared memory after the job's number, and killed ranks leave it behind: two clusters on this
    # machine must not use the same numbers.
    host = socket.gethostname().split(".")[0]
    controller, *nodes = _free_ports(1 + NODES)
    lines = [
        f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS_PER_NODE}"
        for number, port in enumerate(nodes, 1)
    ]
    return f"""\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmctldPort={controller}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp/%n
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=pmi2
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0,permit_job_expansion
KillWait=30
MinJobAge=300
FirstJobId={random.randrange(10_000, 60_000_000)}
{chr(10).join(lines)}
PartitionName=main Nodes=n[1-{NODES}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""
