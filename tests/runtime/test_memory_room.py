"""The memory that is left, read from copies of the kernel's files."""

import os
from pathlib import Path

import pytest

from mallob_py.runtime.memory import Reserve, Room, oom_kills, rooms
from mallob_py.runtime.workers.starved import MemoryKills

MB = 1 << 20
NO_LIMIT_OF_VERSION_1 = 9223372036854771712
HOST = Room(600 * MB, 1000 * MB)


class Kernel:
    """Stand-ins for /proc and the folder of control groups."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.groups = folder / "proc", folder / "cgroup"
        self.write(self.proc / "self/cgroup", "")
        self.write(
            self.proc / "meminfo", f"MemTotal: {1000 << 10} kB\nMemAvailable: {600 << 10} kB\nHuge: 0\n"
        )

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def group_1(self, path: str, limit_bytes: int, used_bytes: int, idle_bytes: int = 0) -> None:
        folder = self.groups / "memory" / path
        self.write(folder / "memory.limit_in_bytes", f"{limit_bytes}\n")
        self.write(folder / "memory.usage_in_bytes", f"{used_bytes}\n")
        self.write(folder / "memory.stat", f"inactive_file 1\ntotal_inactive_file {idle_bytes}\n")

    def group_2(self, path: str, limit: object, used_bytes: int, idle_bytes: int = 0) -> None:
        folder = self.groups / path
        self.write(folder / "memory.max", f"{limit}\n")
        self.write(folder / "memory.current", f"{used_bytes}\n")
        self.write(folder / "memory.stat", f"anon 5\ninactive_file {idle_bytes}\n")

    def kills(self) -> int:
        return oom_kills(self.proc, self.groups)

    def rooms(self) -> list[Room]:
        return rooms(self.proc, self.groups)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_without_groups_it_is_what_the_host_has_available(kernel: Kernel) -> None:
    assert kernel.rooms() == [HOST]


def test_a_group_has_what_its_limit_leaves_and_its_idle_caches(kernel: Kernel) -> None:
    kernel.write(kernel.proc / "self/cgroup", "0::/slurm/job\n")
    kernel.group_2("slurm/job", 100 * MB, 70 * MB, idle_bytes=20 * MB)
    assert kernel.rooms() == [HOST, Room(50 * MB, 100 * MB)]


def test_the_limits_of_the_groups_above_count_too(kernel: Kernel) -> None:
    kernel.write(kernel.proc / "self/cgroup", "0::/slurm/job/step\n")
    kernel.group_2("slurm/job/step", "max", 10 * MB)
    kernel.group_2("slurm/job", 200 * MB, 150 * MB)
    kernel.group_2("slurm", 500 * MB, 490 * MB)
    assert kernel.rooms() == [HOST, Room(50 * MB, 200 * MB), Room(10 * MB, 500 * MB)]


def test_groups_of_version_1_are_found_beside_those_of_version_2(kernel: Kernel) -> None:
    kernel.write(kernel.proc / "self/cgroup", "9:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n")
    kernel.group_1("a/b", 100 * MB, 70 * MB, idle_bytes=20 * MB)
    kernel.group_1("a", NO_LIMIT_OF_VERSION_1, 70 * MB)
    assert kernel.rooms() == [HOST, Room(50 * MB, 100 * MB)]


def test_a_container_that_shows_its_group_as_the_root_of_all_is_understood(kernel: Kernel) -> None:
    kernel.write(kernel.proc / "self/cgroup", "4:memory:/docker/1234\n")
    kernel.group_1("", 100 * MB, 70 * MB)
    assert kernel.rooms() == [HOST, Room(30 * MB, 100 * MB)]


def test_a_kernel_that_tells_nothing_leaves_nothing_to_watch(tmp_path: Path) -> None:
    assert rooms(tmp_path, tmp_path) == []


def test_this_host_has_memory() -> None:
    host, *_ = rooms()
    assert 0 < host.left_bytes <= host.total_bytes


def test_a_reserve_is_a_size_or_a_share() -> None:
    assert Reserve(size_bytes=5).of(1000) == 5
    assert Reserve(share=0.05).of(1000) == 50


# --- processes that the kernel killed ----------------------------------------------------------


def test_kills_for_want_of_memory_are_seen_on_the_host_and_in_groups_of_both_versions(kernel: Kernel) -> None:
    assert kernel.kills() == 0
    kernel.write(kernel.proc / "self/cgroup", "4:memory:/a/b\n0::/c\n")
    counts = [
        (kernel.proc / "vmstat", "pgfault 7\noom_kill {}\n"),
        (kernel.groups / "memory/a/b/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"),
        (kernel.groups / "memory/a/memory.oom_control", "oom_kill {}\n"),
        (kernel.groups / "c/memory.events", "low 0\noom 3\noom_kill {}\n"),
    ]
    before = 0
    for number, (path, text) in enumerate(counts, 2):
        kernel.write(path, text.format(0))
        assert kernel.kills() == before
        kernel.write(path, text.format(number))
        assert kernel.kills() == before + number
        before += number


def test_a_kernel_that_tells_no_kills_is_as_one_without_any(kernel: Kernel) -> None:
    kernel.write(kernel.proc / "vmstat", "oom_kill\n")
    kernel.write(kernel.proc / "self/cgroup", "0::/\n")
    assert kernel.kills() == 0


def test_kills_are_counted_with_few_reads_and_not_before_the_first_look(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.write(kernel.proc / "vmstat", "".join(f"n{n} 1\n" for n in range(900)) + "oom_kill 3\n")
    kernel.write(kernel.proc / "self/cgroup", "4:memory:/a\n")
    kernel.write(kernel.groups / "memory/a/memory.oom_control", "oom_kill 2\n")
    assert kernel.kills() == 5
    reads, read = list[int](), os.open
    monkeypatch.setattr(os, "open", lambda *given: reads.append(1) or read(*given))
    kills = MemoryKills(kernel.kills)
    assert not reads
    kills.look(0.0)
    # one file of the host, the list of the process's groups, and one file for each of two groups
    assert len(reads) == 4
    assert not kills.explain(1.0)
