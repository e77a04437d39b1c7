"""`doctor` examines the machine and prints a line with a remedy for each fault."""

import dataclasses
import errno
import math
import os
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from other_user import NOBODY, as_nobody, folder_for_all, needs_root
from small_disks import fill, small_disk

from mallob_py.cli import doctor
from mallob_py.cli.doctor import FolderSeen, HostSeen, Level, Machine, examine, look
from mallob_py.cli.main import main

GB = 1 << 30
SOUND = Machine(
    variables={},
    mpi="MPICH Version: 5.0",
    mpi_is_missing=False,
    mpiexec="/usr/bin/mpiexec",
    shared_memory=(8 * GB, 7 * GB),
    memory_bytes=(16 * GB, 12 * GB),
    descriptors=math.inf,
    processes=30_000,
    inotify_watches=65_536,
    inotify_instances=128,
    inotify_error="",
    name_error="",
    cores_present=8,
    cores_usable=8,
    cores_by_group=math.inf,
    versions={"python-sat": "1.9"},
    temporary="",
    folder=FolderSeen("/data/api/jobs.0"),
)


def test_nothing_is_wrong_with_a_sound_machine() -> None:
    findings = list(examine(SOUND))
    assert {finding.level for finding in findings} == {Level.GOOD}
    assert not any(finding.advice for finding in findings)


@pytest.mark.parametrize(
    ("changes", "level", "subject", "words"),
    [
        ({"mpi": "No module named 'mpi4py'", "mpi_is_missing": True}, Level.FAULT, "MPI", "mallob-py[mpich]"),
        ({"mpiexec": None}, Level.WARNING, "mpiexec", "module"),
        ({"shared_memory": None}, Level.FAULT, "/dev/shm", "tmpfs"),
        ({"shared_memory": (64 << 20, 64 << 20)}, Level.FAULT, "/dev/shm", "--shm-size"),
        ({"shared_memory": (8 * GB, 1 << 20)}, Level.WARNING, "/dev/shm", "remove"),
        ({"memory_bytes": (16 * GB, GB // 8)}, Level.WARNING, "memory", "end other programs"),
        ({"descriptors": 256}, Level.FAULT, "descriptors", "ulimit -n"),
        ({"processes": 20}, Level.FAULT, "processes", "pids.max"),
        ({"inotify_watches": 8}, Level.WARNING, "inotify", "max_user_watches"),
        ({"inotify_watches": None}, Level.WARNING, "inotify", "polled"),
        ({"name_error": "h: unknown"}, Level.WARNING, "host name", "/etc/hosts"),
        ({"cores_by_group": 1.5}, Level.WARNING, "cores", "-n 1"),
        ({"cores_usable": 1}, Level.WARNING, "cores", "--bind-to none"),
        ({"variables": {"OMP_NUM_THREADS": "8"}}, Level.WARNING, "OMP_NUM_THREADS", "unset"),
        ({"variables": {"PMI_RANK": "0"}}, Level.WARNING, "PMI_RANK", "shell"),
        ({"versions": {}}, Level.FAULT, "python-sat", "pip install"),
        ({"temporary": "No space left on device"}, Level.FAULT, "temporary files", "TMPDIR"),
        ({"inotify_error": "Too many open files"}, Level.WARNING, "inotify", "max_user_instances"),
        ({"folder": FolderSeen("/data", error="No space left on device")}, Level.FAULT, "api-dir", "room"),
        ({"folder": FolderSeen("/data", free_bytes=9 << 20)}, Level.WARNING, "api-dir", "--keep"),
        ({"folder": FolderSeen("/data/api", owner="anna")}, Level.WARNING, "api-dir", "as anna"),
        (
            {"folder": FolderSeen("/data/api", error="Permission denied", owner="anna")},
            *(Level.FAULT, "api-dir", "as anna"),
        ),
        ({"hosts": (HostSeen("n1", "Permission denied"),)}, Level.FAULT, "n1", "ssh n1 true"),
        ({"hosts": (HostSeen("n1", "", 40.0),)}, Level.WARNING, "n1", "time server"),
        ({"hosts": (HostSeen("n1", "no", shell="srun"),)}, Level.FAULT, "n1", "in the allocation"),
        ({"hosts": (HostSeen("-n1", "no name", shell=""),)}, Level.FAULT, "-n1", "such as node2"),
        ({"hosts": (HostSeen("n1", version=""),)}, Level.FAULT, "n1", "install mallob-py"),
        ({"hosts": (HostSeen("n1", version="0.0.9"),)}, Level.FAULT, "n1", "install mallob-py"),
        ({"hosts": (HostSeen("n1", blocked=("from n1 to here",)),)}, Level.FAULT, "n1", "firewall"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(
    changes: dict[str, Any], level: Level, subject: str, words: str
) -> None:
    findings = [one for one in examine(dataclasses.replace(SOUND, **changes)) if one.level is not Level.GOOD]
    (finding,) = findings
    assert (finding.level, finding.subject) == (level, subject)
    assert words in finding.advice


def test_this_machine_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    machine = look(str(tmp_path / "no/api"), ["nowhere.invalid"])
    assert machine.cores_usable >= 1
    assert "python-sat" in machine.versions
    assert not machine.mpi_is_missing, machine.mpi
    assert machine.folder is not None
    assert (machine.folder.path, machine.folder.error) == (str(tmp_path), "")
    assert [host.error for host in machine.hosts] == ["there is no ssh here"]


def test_a_shell_that_cannot_be_started_is_no_missing_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=full))
    (seen,) = look(str(tmp_path), ["n1"]).hosts
    assert seen.error == f"{seen.shell} cannot be started: Resource temporarily unavailable"


def test_a_machine_with_a_fault_ends_the_command_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = dataclasses.replace(SOUND, descriptors=10)
    monkeypatch.setattr("mallob_py.cli.doctor.look", lambda api_dir, hosts: broken)
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 fault, 0 warnings"
    assert any(line.startswith("fault") and "descriptors" in line for line in lines)


def _ssh(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program on the PATH in place of ssh."""
    (folder / "ssh").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("MALLOB_PY_BELL_ADDRESS", "localhost")


@pytest.mark.parametrize(
    ("script", "level", "words"),
    [
        ("exec sh -s", Level.GOOD, "answers"),
        ("echo time for tea; echo port 99999; exec sh -s", Level.GOOD, "answers"),
        ("sed 's/time.time()/time.time()+40/' | sh -s", Level.WARNING, "its clock is off by +"),
        (
            "sed 's/ localhost [0-9]*/ localhost 1/' | sh -s",
            Level.FAULT,
            "no connection from localhost to here",
        ),
        (
            "sed 's/getsockname()\\[1\\]/getsockname()[1] * 0 + 1/' | sh -s",
            Level.FAULT,
            "from here to localhost",
        ),
        ("sed 's/mallob_py.__version__/0/' | sh -s", Level.FAULT, "has mallob-py 0 at our path"),
        ("echo 'no python' >&2; cat >/dev/null; echo mallob-py none", Level.FAULT, "has no mallob-py"),
        ("echo 'Host key verification failed.' >&2; exit 255", Level.FAULT, "Host key verification failed."),
        ("exit 3", Level.FAULT, "ssh ends with code 3"),
    ],
)
def test_another_host_is_looked_at_from_there_and_from_here(
    script: str, level: Level, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ssh(tmp_path, monkeypatch, script)
    seen = doctor.seen(("localhost",))
    (finding,) = doctor.check_hosts(dataclasses.replace(SOUND, hosts=seen))
    assert finding.level is level, finding
    assert words in finding.text


def test_a_host_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ssh(tmp_path, monkeypatch, "sleep 1000 & sleep 1000")
    monkeypatch.setattr(doctor, "_HOST_PATIENCE_S", 0.1)
    (host,) = doctor.seen(("localhost",))
    assert host.error == "no answer within 0 s"


def test_a_start_of_the_service_tells_what_is_wrong_here(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = dataclasses.replace(SOUND, descriptors=64, inotify_watches=0, versions={}, mpi_is_missing=True)
    monkeypatch.setattr(doctor, "look_here", lambda: broken)
    lines = list(doctor.problems_here())
    assert [line.partition(":")[0] for line in lines] == ["descriptors", "inotify"]
    assert all(" -> " in line for line in lines)


def _about_folder(api_dir: Path) -> tuple[Level, str]:
    found = examine(dataclasses.replace(SOUND, folder=doctor.folder_seen(api_dir)))
    return next((one.level, one.text) for one in found if one.subject == "api-dir")


def test_a_folder_of_the_service_without_room_is_a_fault(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        assert _about_folder(disk / "api") == (Level.WARNING, f"{disk}, 1 MB free")
        fill(disk)
        assert _about_folder(disk / "api") == (Level.FAULT, f"{disk}: No space left on device")


@needs_root
def test_a_folder_of_another_user_is_told() -> None:
    with folder_for_all() as place:
        folder = place / "api/jobs.0"
        folder.mkdir(parents=True)
        assert as_nobody(lambda: _about_folder(place / "api")) == (Level.FAULT, f"{folder} belongs to root")
        assert as_nobody(lambda: _about_folder(place / "another"))[0] is Level.GOOD
        os.chown(folder, NOBODY, NOBODY)
        assert _about_folder(place / "api") == (Level.WARNING, f"{folder} belongs to nobody")


def test_a_user_without_inotify_instances_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("inotify_simple.INotify", refuse)
    assert [line for line in doctor.problems_here() if "no further instance" in line]
