"""A service in a control group whose memory runs short gives memory back, and its jobs go on."""

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.processes import command_line
from resting import await_rest
from running import Running, needs_mpiexec, poll_until, serving, with_apps

pytestmark = needs_mpiexec

MB = 1 << 20
RANKS = 3
APPS = with_apps(GLUTTON="rank_apps:Glutton")
#: control groups of version 1 and 2: folder for new groups, files for limit and usage
_VERSIONS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
)


class Group:
    """A control group made by the test."""

    def __init__(self, folder: Path, limit: str, usage: str) -> None:
        self.folder = folder
        self._limit = folder / limit
        self._usage = folder / usage

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return a prefix for a command that is to run in the group."""
        return ("sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh")

    def leave(self, size_bytes: int) -> None:
        """Set the limit this far above the memory in use."""
        self._limit.write_text(str(int(self._usage.read_text()) + size_bytes))


def _made() -> Group | None:
    for parent, limit, usage in _VERSIONS:
        folder = parent / f"mallob-py-test-{uuid.uuid4().hex}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            if (folder / limit).exists():
                return Group(folder, limit, usage)
            folder.rmdir()
    return None


@pytest.fixture
def group() -> Iterator[Group]:
    if (group := _made()) is None:
        pytest.skip("needs the right to make control groups with a limit of memory")
    yield group

    def is_removed() -> bool:
        with contextlib.suppress(OSError):
            group.folder.rmdir()
        return not group.folder.exists()

    poll_until(is_removed, "the group is empty")


@pytest.fixture
def service(group: Group, tmp_path: Path) -> Iterator[Running]:
    """Yield a service on three ranks with a memory reserve of 300 MB in its group."""
    options = ("--memory-reserve", "300m", "--warm", "0")
    with serving(tmp_path / "service", *options, ranks=RANKS, env=APPS, prefix=group.prefix) as running:
        yield running
        assert running.process.poll() is None, running.output
        assert running.ask("last", application="NOOP")["result"]["resultcode"] == 10
        assert running.stop() == 0
        assert "Traceback" not in running.output


def begin(service: Running, folder: Path, size_bytes: int) -> tuple[Path, dict[int, int]]:
    """Submit a job whose three workers take `size_bytes` each; return its reply's path and its processes."""
    folder.mkdir()
    configuration = {"size_bytes": size_bytes, "folder": str(folder)}
    path = service.submit("greedy", application="GLUTTON", configuration=configuration)
    poll_until(lambda: len(census(folder)) == RANKS, f"{RANKS} workers\n{service.output}")
    return path, census(folder)


def census(folder: Path) -> dict[int, int]:
    return {int(path.name): int(path.read_text()) for path in folder.glob("[0-9]*")}


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def end(service: Running, reply: Path) -> None:
    service.interrupt("greedy")
    assert service.reply(reply)["result"]["outcome"] == "interrupted"


def test_a_running_worker_that_is_no_root_is_paused_and_goes_on_when_there_is_memory(
    service: Running, group: Group, tmp_path: Path
) -> None:
    reply, before = begin(service, tmp_path / "census", 250 * MB)
    group.leave(200 * MB)
    paused = service.await_event("paused")
    assert paused["index"] in (1, 2)
    poll_until(lambda: not is_alive(before[paused["index"]]), "its process is gone")
    others = {pid for index, pid in before.items() if index != paused["index"]}
    assert all(map(is_alive, others))
    given = service.await_event("gave back memory")
    assert given["what"] == "a running worker"
    assert 250 * MB < given["bytes"] < 400 * MB
    service.await_event("enough memory")
    group.leave(1000 * MB)
    index = service.await_event("unpaused")["index"]
    assert index == paused["index"]
    poll_until(lambda: is_alive(census(tmp_path / "census")[index]), "it has another process")
    assert all(map(is_alive, others))
    lines = [line for line in service.output.splitlines() if "is short of memory" in line]
    assert len(lines) == 1, service.output
    assert "Lower --pes, --job-cache or --memory-limit" in lines[0]
    end(service, reply)


def test_its_loops_rest_while_it_is_short(service: Running, group: Group, tmp_path: Path) -> None:
    reply, _ = begin(service, tmp_path / "census", 100 * MB)
    group.leave(250 * MB)
    poll_until(lambda: "is short of memory" in service.output, lambda: service.output)
    for _ in range(2):
        await_rest(*(pid for pid in service.processes() if "serve: rank" in command_line(pid)))
    assert not service.events("enough memory")
    end(service, reply)


def test_suspended_workers_are_given_up_before_running_ones(
    service: Running, group: Group, tmp_path: Path
) -> None:
    reply, before = begin(service, tmp_path / "census", 200 * MB)
    service.submit("other", application="SLEEP", priority=10.0, max_demand=2)
    poll_until(lambda: len(service.events("suspended")) >= 2, "two workers are suspended")
    group.leave(250 * MB)
    assert service.await_event("gave back memory")["what"] == "suspended workers"
    service.await_event("enough memory")
    poll_until(lambda: not all(map(is_alive, before.values())), "one that was suspended is gone")
    assert is_alive(before[0])
    assert not service.events("paused")
    group.leave(2000 * MB)
    service.interrupt("other")
    poll_until(
        lambda: all(map(is_alive, census(tmp_path / "census").values())), "there are all workers again"
    )
    end(service, reply)


def test_jobs_that_rest_are_given_up_for_memory_and_go_on(
    service: Running, group: Group, tmp_path: Path
) -> None:
    """Five jobs take turns on three ranks: resting jobs lose their processes, and get new ones later."""
    replies = {}
    for number in range(5):
        folder = tmp_path / f"census{number}"
        folder.mkdir()
        configuration = {"size_bytes": 100 * MB, "folder": str(folder)}
        replies[f"greedy{number}"] = service.submit(
            f"greedy{number}", application="GLUTTON", configuration=configuration, max_demand=1
        )
        poll_until(lambda at=folder: census(at), f"job {number} has had a turn\n{service.output}")
    jobs = [service.await_event("accepted", name=name)["job"] for name in replies]
    group.leave(250 * MB)
    assert service.await_event("gave back memory")["what"] == "suspended workers"
    group.leave(2000 * MB)
    service.await_event("enough memory")

    def turns() -> int:
        begun = service.events("resumed") + service.events("started")
        return min(sum(event["job"] == job for event in begun) for job in jobs)

    before = turns()
    poll_until(lambda: turns() >= before + 2, "each goes on")
    assert service.ask("small", application="NOOP")["result"]["resultcode"] == 10
    for name, path in replies.items():
        service.interrupt(name)
        assert service.reply(path)["result"]["outcome"] == "interrupted"


def test_a_worker_that_the_kernel_kills_rests_until_there_is_memory_and_small_jobs_go_on(
    service: Running, group: Group, tmp_path: Path
) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    for folder in (small, large):
        folder.mkdir()
    sizes = {small: 20 * MB, large: 400 * MB}
    replies = []
    for folder, size_bytes in sizes.items():
        configuration = {"size_bytes": size_bytes, "folder": str(folder)}
        replies.append(
            service.submit(folder.name, application="GLUTTON", configuration=configuration, max_demand=1)
        )
        if folder is small:
            poll_until(lambda: census(small), f"the small job works\n{service.output}")
            group.leave(200 * MB)
    assert "killed by signal 9 (SIGKILL) while memory was short" in service.await_event("crashed")["reason"]
    assert service.ask("beside", application="NOOP")["result"]["resultcode"] == 10
    assert not any(path.exists() for path in replies)
    group.leave(2000 * MB)
    poll_until(lambda: census(large), f"the large job works\n{service.output}")
    poll_until(lambda: is_alive(census(small)[0]), "the small job works")
    for folder, path in zip(sizes, replies, strict=True):
        service.interrupt(folder.name)
        assert service.reply(path)["result"]["outcome"] == "interrupted"
