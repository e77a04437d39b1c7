"""`mallob-py doctor`: problems of this machine, each with advice.

`look` reads all facts once into a `Machine`; the checks are functions of a `Machine` alone. A finding is
good, a warning, or a fault: something that makes our commands fail. Exit code 1: there are faults.

At its start, `serve` reports the problems that `look_here` finds within milliseconds. So modules that only
other checks need are imported in functions.
"""

from __future__ import annotations

import dataclasses
import math
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mallob_py import __version__
from mallob_py.runtime.memory import rooms
from mallob_py.runtime.processes import python
from mallob_py.runtime.remote_shell import SLURM_JOB, for_any_step, is_host_name, shell_to

if TYPE_CHECKING:
    from mallob_py.cli.study_options import DoctorOptions

_GB = 1 << 30
_HOST_PATIENCE_S = 8.0
_SHM_LEAST_BYTES = 256 << 20
_DISK_LEAST_BYTES = 256 << 20
_DESCRIPTORS_LEAST = 1024
_PROCESSES_LEAST = 256
_WATCHES_LEAST, _INSTANCES_LEAST = 1024, 16
_CLOCK_OFF_MAX_S = 2.0
#: variables that make a solver's library use several threads per worker
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
#: distribution with an engine or an interface -> extra that installs it; None: it is always installed
_ENGINES = {
    "python-sat": None,
    "pycryptosat": "cryptominisat",
    "z3-solver": "smt",
    "cvc5": "smt",
    "bitwuzla": "smt",
    "starlette": "web",
    "cpmpy": "cpmpy",
    "numba": "fast",
    "matplotlib": "plot",
}
_NATIVE = "mallob-py-native"


class Level(Enum):
    GOOD = "ok"
    WARNING = "warning"
    FAULT = "fault"


class Finding(NamedTuple):
    """One finding about the machine; `advice` says what to do, or is empty if all is well."""

    level: Level
    subject: str
    text: str
    advice: str = ""


class FolderSeen(NamedTuple):
    """The folder of the service, or the lowest existing folder above it.

    `error`: why the folder cannot be written, or "". `owner`: another user who owns it, or "".
    """

    path: str
    free_bytes: int = 1 << 40
    error: str = ""
    owner: str = ""


class HostSeen(NamedTuple):
    """Another host. `error`: why the remote shell gets no answer, or ""; `ahead_s`: its clock minus ours.

    `version`: the version of mallob-py at our path on that host, "": none. `blocked`: the directions in which
    no connection can be made.
    """

    name: str
    error: str = ""
    ahead_s: float = 0.0
    version: str = __version__
    blocked: tuple[str, ...] = ()
    shell: str = "ssh"


@dataclass(frozen=True, slots=True)
class Machine:
    """All facts about the machine; `math.inf` means no limit, None unknown."""

    variables: Mapping[str, str]
    #: the MPI library's name, or why it cannot be loaded
    mpi: str
    mpi_is_missing: bool
    mpiexec: str | None
    #: bytes of /dev/shm, total and free
    shared_memory: tuple[int, int] | None
    memory_bytes: tuple[int, int] | None
    descriptors: float
    processes: float
    inotify_watches: int | None
    inotify_instances: int | None
    #: why no further inotify instance can be made; "" if one can
    inotify_error: str
    #: why the host's own name cannot be resolved; "" if it can
    name_error: str
    cores_present: int
    cores_usable: int
    #: CPU time that control groups allow, in cores
    cores_by_group: float
    #: installed versions of the relevant distributions
    versions: Mapping[str, str]
    #: why the temporary folder cannot be written; "" if it can
    temporary: str
    folder: FolderSeen | None = None
    hosts: Sequence[HostSeen] = ()


def run_doctor(options: DoctorOptions) -> int:
    findings = list(examine(look(options.api_dir, options.hosts)))
    width = max(len(finding.subject) for finding in findings)
    for level, subject, text, advice in findings:
        print(f"{level.value:<8} {subject:<{width}}  {text}")
        if advice:
            print(f"{'':<8} {'':<{width}}  -> {advice}")
    faults = sum(finding.level is Level.FAULT for finding in findings)
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    told = ((faults, "fault"), (warnings, "warning"))
    print(", ".join(f"{count} {word}{'s' * (count != 1)}" for count, word in told))
    return 1 if faults else 0


# --- reading the facts ------------------------------------------------------------------------


def look(api_dir: str, hosts: Sequence[str] = ()) -> Machine:
    """Read all facts; other hosts are reached by ssh, or by srun in an allocation."""
    mpi, is_missing = _mpi()
    mpiexec = shutil.which("mpiexec", path=os.pathsep.join((os.path.dirname(python()[0]), _path())))
    return dataclasses.replace(
        look_here(),
        mpi=mpi,
        mpi_is_missing=is_missing,
        mpiexec=mpiexec,
        name_error=_name_error(),
        versions=dict(_versions()),
        folder=folder_seen(Path(api_dir)),
        hosts=seen(hosts),
    )


def look_here() -> Machine:
    """Read the facts that need no process, no import and no name server."""
    return Machine(
        variables=dict(os.environ),
        mpi="",
        mpi_is_missing=False,
        mpiexec="",
        shared_memory=_room("/dev/shm"),
        memory_bytes=_memory(),
        descriptors=_limit(resource.RLIMIT_NOFILE),
        processes=min(_limit(resource.RLIMIT_NPROC), _pids_of_group()),
        inotify_watches=_kernel_number("fs/inotify/max_user_watches"),
        inotify_instances=_kernel_number("fs/inotify/max_user_instances"),
        inotify_error=_inotify_error(),
        name_error="",
        cores_present=os.cpu_count() or 1,
        cores_usable=len(os.sched_getaffinity(0)),
        cores_by_group=_cores_of_group(),
        versions={},
        temporary=_write_error(None),
    )


def problems_here() -> Iterator[str]:
    """Yield a line for each problem that `look_here` finds and that affects a service."""
    machine = look_here()
    for check in (_check_shared_memory, _check_limits, _check_inotify, _check_temporary):
        for finding in check(machine):
            if finding.level is not Level.GOOD:
                yield f"{finding.subject}: {finding.text} -> {finding.advice}"


def _path() -> str:
    return os.environ.get("PATH", os.defpath)


def _mpi() -> tuple[str, bool]:
    """Load MPI in another process, which a bad library may crash; return (name, False) or (error, True)."""
    code = "from mpi4py import MPI; print(MPI.Get_library_version().split(chr(10))[0])"
    try:
        asked = subprocess.run(
            [*python(), "-c", code], capture_output=True, text=True, timeout=60, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error), True
    if asked.returncode:
        lines = asked.stderr.strip().splitlines()
        if asked.returncode < 0:
            return f"is ended by signal {-asked.returncode} ({signal.strsignal(-asked.returncode)})", True
        return lines[-1] if lines else f"ends with code {asked.returncode}", True
    return " ".join(asked.stdout.strip().rstrip("\0").split(",")[0].split()), False


def _room(path: str) -> tuple[int, int] | None:
    with suppress(OSError):
        told = os.statvfs(path)
        return told.f_frsize * told.f_blocks, told.f_frsize * told.f_bavail
    return None


def _memory() -> tuple[int, int] | None:
    known = rooms()
    if not known:
        return None
    least = min(known, key=lambda room: room.total_bytes)
    return least.total_bytes, min(room.left_bytes for room in known)


def _limit(which: int) -> float:
    hard = resource.getrlimit(which)[1]
    return math.inf if hard == resource.RLIM_INFINITY else hard


def _kernel_number(name: str) -> int | None:
    with suppress(OSError, ValueError):
        return int(Path("/proc/sys", name).read_text())
    return None


def _of_groups(file: str, controller: str) -> Iterator[str]:
    """Yield a file's content in this process's control group and each group above it, of cgroups 1 and 2."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            place = Path(group.lstrip("/"))
            for above in (place, *place.parents):
                with suppress(OSError):
                    yield (Path("/sys/fs/cgroup", controller * bool(controllers)) / above / file).read_text()


def _pids_of_group() -> float:
    limits = _of_groups("pids.max", "pids")
    return min((float(text) for text in limits if text.strip() != "max"), default=math.inf)


def _cores_of_group() -> float:
    shares = [text.split() for text in _of_groups("cpu.max", "cpu")]
    parts = (_of_groups(f"cpu.cfs_{name}_us", "cpu") for name in ("quota", "period"))
    shares += [list(pair) for pair in zip(*parts, strict=False) if int(pair[0]) > 0]
    return min((int(most) / int(period) for most, period in shares if most != "max"), default=math.inf)


def _name_error() -> str:
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        return f"{name}: {error.strerror}"
    return ""


def _versions() -> Iterator[tuple[str, str]]:
    from importlib import metadata

    for name in (*_ENGINES, _NATIVE):
        with suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


def _inotify_error() -> str:
    from inotify_simple import INotify

    try:
        INotify().close()
    except OSError as error:
        return f"{error.strerror}"
    return ""


def _write_error(folder: Path | None) -> str:
    """Return why no file can be written into `folder` (None: that of temporary files); "" if one can."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        return f"{error.strerror}"
    return ""


def folder_seen(api_dir: Path) -> FolderSeen:
    from mallob_py.service.client import user_name

    wanted = api_dir.absolute()
    place = next(one for one in (wanted / "jobs.0", wanted, *wanted.parents) if os.path.exists(one))
    room = _room(str(place))
    owner = place.stat().st_uid
    is_others = place.is_relative_to(wanted) and owner != os.geteuid()
    return FolderSeen(
        str(place), room[1] if room else 0, _write_error(place), user_name(owner) if is_others else ""
    )


def seen(hosts: Sequence[str]) -> tuple[HostSeen, ...]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max(1, min(16, len(hosts)))) as asking:
        return tuple(asking.map(_see, hosts))


#: program that Python at our path runs on the other host; `_heard` reads its output line by line
_THERE = """
import socket, sys, time
print("mallob-py time", time.time(), flush=True)
try:
    import mallob_py
    print("mallob-py version", mallob_py.__version__, flush=True)
except ImportError:
    pass
ours = socket.create_server(("", 0))
print("mallob-py port", ours.getsockname()[1], flush=True)
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 4).close()
except OSError:
    print("mallob-py blocked", flush=True)
ours.settimeout(5)
try:
    ours.accept()
except OSError:
    pass
print("mallob-py end", flush=True)
"""


def _see(host: str) -> HostSeen:
    if not is_host_name(host):
        return HostSeen(host, "is no name of a host", shell="")
    shell = [*shell_to(host, os.environ), "sh", "-s"]
    seen = HostSeen(host, shell=shell[0])
    with socket.create_server(("", 0)) as here:
        address = os.environ.get("MALLOB_PY_BELL_ADDRESS") or socket.gethostname()
        words = [*python(), "-c", _THERE, address, str(here.getsockname()[1])]
        try:
            asked = subprocess.Popen(
                shell,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=for_any_step(os.environ) if SLURM_JOB in os.environ else None,
                start_new_session=True,  # the shell must be killed with its children
            )
        except FileNotFoundError:
            return seen._replace(error=f"there is no {shell[0]} here")
        except OSError as error:
            return seen._replace(error=f"{shell[0]} cannot be started: {error.strerror}")
        giving_up = threading.Timer(2 * _HOST_PATIENCE_S, os.killpg, (asked.pid, signal.SIGKILL))
        giving_up.start()
        with asked:
            assert asked.stdin is not None
            with suppress(BrokenPipeError), asked.stdin as script:
                script.write(f"{shlex.join(words)} || echo mallob-py none\n")
            seen = _heard(seen, asked)
        if giving_up.finished.is_set() and asked.returncode:
            return seen._replace(error=f"no answer within {2 * _HOST_PATIENCE_S:.0f} s")
        giving_up.cancel()
        return seen


def _heard(seen: HostSeen, asked: subprocess.Popen[str]) -> HostSeen:
    """Read the output of the program on another host; connect to the program once its port is known."""
    assert asked.stdout is not None
    assert asked.stderr is not None
    told: dict[str, str] = {}
    blocked: list[str] = []
    ahead_s = 0.0
    for line in asked.stdout:
        ours, _, said = line.strip().partition(" ")
        if ours != "mallob-py":
            continue  # the line is a greeting of the host's shell
        key, _, value = said.partition(" ")
        told[key] = value
        if key == "time":
            ahead_s = float(value) - time.time()
        elif key == "port":
            try:
                socket.create_connection((seen.name.rpartition("@")[2], int(value)), 4).close()
            except OSError:
                blocked.append(f"from here to {seen.name}")
    if told.keys().isdisjoint(("time", "none")):
        last = asked.stderr.read().strip().splitlines()[-1:]
        return seen._replace(error=last[0] if last else f"{seen.shell} ends with code {asked.wait()}")
    if "blocked" in told:
        blocked.append(f"from {seen.name} to here")
    return seen._replace(ahead_s=ahead_s, version=told.get("version", ""), blocked=tuple(blocked))


# --- judging the facts ------------------------------------------------------------------------


def examine(machine: Machine) -> Iterator[Finding]:
    """Yield the findings, the most important first."""
    for check in _CHECKS:
        yield from check(machine)


def _check_mpi(machine: Machine) -> Iterator[Finding]:
    if machine.mpi_is_missing:
        advice = "python -m pip install 'mallob-py[mpich]', or load the module of your site's MPI"
        if any(finding.level is Level.FAULT for finding in _check_shared_memory(machine)):
            advice = "first see /dev/shm above, which MPI needs"
        yield Finding(Level.FAULT, "MPI", f"cannot be used: {machine.mpi}", advice)
        return
    yield Finding(Level.GOOD, "MPI", machine.mpi)
    if machine.mpiexec is None:
        yield Finding(
            Level.WARNING,
            "mpiexec",
            "is neither on the PATH nor beside Python",
            "load the module of your site's MPI; srun works without mpiexec",
        )


def _size(size_bytes: int) -> str:
    return f"{size_bytes / _GB:.1f} GB" if size_bytes >= _GB else f"{size_bytes >> 20} MB"


def _check_shared_memory(machine: Machine) -> Iterator[Finding]:
    if machine.shared_memory is None:
        yield Finding(
            Level.FAULT, "/dev/shm", "is missing", "mount a tmpfs there, or start the container with one"
        )
        return
    total, free = machine.shared_memory
    text = f"{_size(free)} free of {_size(total)}"
    if total < _SHM_LEAST_BYTES:
        advice = "start the container with --shm-size=1g or more: /dev/shm holds large inputs and messages"
        yield Finding(Level.FAULT, "/dev/shm", text, advice)
    elif free < _SHM_LEAST_BYTES:
        yield Finding(
            Level.WARNING, "/dev/shm", text, "remove files that other programs left there (ls -l /dev/shm)"
        )
    else:
        yield Finding(Level.GOOD, "/dev/shm", text)


def _check_memory(machine: Machine) -> Iterator[Finding]:
    if machine.memory_bytes is None:
        yield Finding(Level.WARNING, "memory", "the kernel names no size", "set --memory-limit yourself")
        return
    total, free = machine.memory_bytes
    text = f"{_size(free)} available of {_size(total)}"
    if free < total / 20 or free < _SHM_LEAST_BYTES:
        yield Finding(
            Level.WARNING,
            "memory",
            text,
            "end other programs, because workers are paused when less than --memory-reserve is free",
        )
    else:
        yield Finding(Level.GOOD, "memory", text)


def _check_limits(machine: Machine) -> Iterator[Finding]:
    for subject, limit, least, name in (
        ("descriptors", machine.descriptors, _DESCRIPTORS_LEAST, "ulimit -n 65536 (or LimitNOFILE=)"),
        ("processes", machine.processes, _PROCESSES_LEAST, "ulimit -u, pids.max or TasksMax="),
    ):
        text = "no limit" if limit == math.inf else f"at most {limit:.0f}"
        if limit < least:
            yield Finding(
                Level.FAULT, subject, text, f"raise this limit ({name}): each rank and worker uses part of it"
            )
        else:
            yield Finding(Level.GOOD, subject, text)


def _check_inotify(machine: Machine) -> Iterator[Finding]:
    watches, instances = machine.inotify_watches, machine.inotify_instances
    if watches is None or instances is None:
        yield Finding(
            Level.WARNING, "inotify", "is missing", "use a kernel with inotify; else folders are polled"
        )
    elif watches < _WATCHES_LEAST or instances < _INSTANCES_LEAST:
        yield Finding(
            Level.WARNING,
            "inotify",
            f"{watches} watches, {instances} instances per user",
            "by sysctl, raise fs.inotify.max_user_watches to 65536 and max_user_instances to 1024; else "
            "folders are polled",
        )
    elif machine.inotify_error:
        yield Finding(
            Level.WARNING,
            "inotify",
            f"no further instance for this user: {machine.inotify_error}",
            "end programs that watch folders, or by sysctl raise fs.inotify.max_user_instances to 1024; else "
            "folders are polled",
        )
    else:
        yield Finding(Level.GOOD, "inotify", f"{watches} watches, {instances} instances per user")


def _check_name(machine: Machine) -> Iterator[Finding]:
    if machine.name_error:
        advice = "add the host's name to /etc/hosts: ranks of several hosts find each other by this name"
        yield Finding(Level.WARNING, "host name", f"cannot be resolved ({machine.name_error})", advice)
    else:
        yield Finding(Level.GOOD, "host name", "can be resolved")


def _check_cores(machine: Machine) -> Iterator[Finding]:
    usable, allowed = machine.cores_usable, machine.cores_by_group
    text = f"{usable} of {machine.cores_present} may be used"
    if allowed < usable:
        most = max(1, math.floor(allowed))
        advice = f"start with -n {most}: more ranks would only share this time"
        yield Finding(Level.WARNING, "cores", f"{text}, but with CPU time for {allowed:g} cores", advice)
    elif usable == 1 < machine.cores_present:
        advice = (
            "this shell is bound to one core; start mpiexec with --bind-to none, srun with --cpu-bind=none"
        )
        yield Finding(Level.WARNING, "cores", text, advice)
    else:
        yield Finding(Level.GOOD, "cores", text)


def _check_variables(machine: Machine) -> Iterator[Finding]:
    for name in _THREADS:
        value = machine.variables.get(name, "1")
        if value != "1":
            advice = f"unset {name}, or set it to 1: each worker would use {value} threads"
            yield Finding(Level.WARNING, name, f"is {value}", advice)
    inherited = [
        name for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK") if name in machine.variables
    ]
    if inherited:
        advice = "from a shell outside of mpiexec and srun, start commands that have ranks of their own"
        yield Finding(Level.WARNING, inherited[0], "is set: this process is a rank itself", advice)


def _check_temporary(machine: Machine) -> Iterator[Finding]:
    if machine.temporary:
        yield Finding(
            Level.FAULT,
            "temporary files",
            machine.temporary,
            "free some room there, or set TMPDIR to another folder",
        )


def _check_folder(machine: Machine) -> Iterator[Finding]:
    if (folder := machine.folder) is None:
        return
    text = f"{folder.path}, {_size(folder.free_bytes)} free"
    if folder.owner:
        advice = f"run the service as {folder.owner}, or give another --api-dir"
        level = Level.FAULT if folder.error else Level.WARNING
        yield Finding(level, "api-dir", f"{folder.path} belongs to {folder.owner}", advice)
    elif folder.error:
        advice = "make room and make the folder writable, or give another --api-dir"
        yield Finding(Level.FAULT, "api-dir", f"{folder.path}: {folder.error}", advice)
    elif folder.free_bytes < _DISK_LEAST_BYTES:
        advice = "make room, or serve with --keep 30d: each job leaves a journal entry and a reply there"
        yield Finding(Level.WARNING, "api-dir", text, advice)
    else:
        yield Finding(Level.GOOD, "api-dir", text)


def _check_engines(machine: Machine) -> Iterator[Finding]:
    for name, extra in _ENGINES.items():
        if (version := machine.versions.get(name)) is not None:
            yield Finding(Level.GOOD, name, version)
        elif extra is None:
            yield Finding(
                Level.FAULT, name, "is missing", f"python -m pip install mallob-py, which installs {name}"
            )
        else:
            text = f"not installed (python -m pip install 'mallob-py[{extra}]' brings it)"
            yield Finding(Level.GOOD, name, text)
    has_native = _NATIVE in machine.versions
    text = "installed" if has_native else "not installed (native/README.md): PySAT's engines are used"
    yield Finding(Level.GOOD, "native CaDiCaL", text)


def check_hosts(machine: Machine) -> Iterator[Finding]:
    for host in machine.hosts:
        if host.error:
            advice = {
                "ssh": f"make `ssh {host.name} true` work without a password",
                "srun": f"make `srun --overlap -w {host.name} true` work: is the node in the allocation?",
            }.get(host.shell, "name hosts as ssh knows them, such as node2")
            yield Finding(Level.FAULT, host.name, host.error, advice)
            continue
        found = list(_problems_of(host))
        yield from found or [
            Finding(Level.GOOD, host.name, f"answers; its clock is off by {host.ahead_s:+.1f} s")
        ]


def _problems_of(host: HostSeen) -> Iterator[Finding]:
    if host.version != __version__:
        text = f"has mallob-py {host.version} at our path" if host.version else "has no mallob-py at our path"
        advice = f"install mallob-py {__version__} there, at {os.path.dirname(python()[0])}"
        yield Finding(Level.FAULT, host.name, text, advice)
    for direction in host.blocked:
        advice = "let the firewall pass TCP between these hosts, or set MALLOB_PY_BELL_ADDRESS to the address"
        yield Finding(Level.FAULT, host.name, f"no connection {direction}", f"{advice} that others can reach")
    if abs(host.ahead_s) > _CLOCK_OFF_MAX_S:
        advice = "synchronise both clocks with a time server; only displayed times depend on them"
        yield Finding(Level.WARNING, host.name, f"its clock is off by {host.ahead_s:+.1f} s", advice)


_CHECKS: tuple[Callable[[Machine], Iterator[Finding]], ...] = (
    _check_shared_memory,
    _check_mpi,
    _check_memory,
    _check_limits,
    _check_inotify,
    _check_name,
    _check_cores,
    _check_variables,
    _check_temporary,
    _check_folder,
    _check_engines,
    check_hosts,
)
