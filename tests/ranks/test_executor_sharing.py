"""Objects kept in workers: one copy per host, whatever happens to calls, workers and the caller."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import called
import numpy as np
import pytest
from running import Running, environment, needs_mpiexec, serving
from waiting import DEADLINE_S, poll_until

from mallob_py import Executor
from mallob_py.api.calls.lane import LINGER_S

pytestmark = needs_mpiexec
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("service"), "--preload", "CALLS", ranks=2) as running:
        yield running


def mapped_by(pid: int) -> set[str]:
    """Return the shared regions that a process has mapped; empty if there is no such process."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {line.split()[4] for line in lines if "memfd:mallob-py-shared" in line}


def test_calls_use_the_memory_of_the_caller(executor: Executor) -> None:
    shared = executor.share(np.arange(100_000))
    outcomes = list(executor.map(called.of_shared, [shared] * 300, range(300)))
    assert [number for number, _ in outcomes] == list(range(300))
    for pid in {pid for _, pid in outcomes}:
        assert mapped_by(pid) == mapped_by(os.getpid()) != set()
    assert list(executor.map(lambda place: int(shared.value[place]), range(50))) == list(range(50))
    assert int(shared.value[9]) == 9


def test_a_call_cannot_change_what_is_shared(executor: Executor) -> None:
    shared = executor.share({"array": np.zeros(3)})

    def change(_: int) -> None:
        shared.value["array"][0] = 1.0

    with pytest.raises(ValueError, match="read-only"):
        list(executor.map(change, [0]))


def test_a_handle_that_is_dropped_serves_its_calls_and_then_no_more(executor: Executor) -> None:
    futures = [
        executor.submit(called.of_shared, executor.share(np.arange(base, base + 9000)), 3)
        for base in range(5)
    ]
    lazy = executor.map(
        (lambda shared: lambda place: int(shared.value[place]))(executor.share(np.arange(9000))),
        itertools.count(),
        buffersize=2,
    )
    assert [future.result()[0] for future in futures] == [3, 4, 5, 6, 7]
    assert list(itertools.islice(lazy, 20)) == list(range(20))
    lazy.close()
    del lazy
    pids = {os.getpid(), *(future.result()[1] for future in futures)}
    poll_until(lambda: not any(map(mapped_by, pids)), "nobody has the objects")


def test_another_executor_does_not_know_a_handle(executor: Executor, service: Running) -> None:
    shared = executor.share(np.arange(9000))
    with Executor(service.api_dir) as other, pytest.raises(LookupError, match="is another executor"):
        other.submit(called.of_shared, shared, 3).result()


def test_a_call_shares_with_its_inner_calls(executor: Executor) -> None:
    assert list(executor.map(called.shares_within, range(4))) == [190 + 20 * place for place in range(4)]


def test_a_killed_worker_costs_nothing_but_its_call(executor: Executor, tmp_path: Path) -> None:
    shared = executor.share(np.arange(9000))
    assert executor.submit(called.killed_with_shared, shared, str(tmp_path / "once")).result() == 7


def test_nothing_is_left_in_memory_when_the_caller_is_killed(service: Running, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, time, called, numpy as np\n"
        "from mallob_py import Executor\n"
        "with Executor(sys.argv[1]) as executor:\n"
        "    shared = executor.share(np.arange(100_000))\n"
        "    pids = {pid for _, pid in executor.map(called.of_shared, [shared] * 50, range(50))}\n"
        "    print(*pids, flush=True)\n"
        "    executor.submit(time.sleep, 1000).result()\n"
    )
    env = environment(str(tmp_path), {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])})
    command = [sys.executable, str(program), str(service.api_dir)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        pids = [*map(int, caller.stdout.readline().split()), caller.pid]
        assert set.union(*map(mapped_by, pids))
        caller.send_signal(signal.SIGKILL)
    poll_until(lambda: not any(map(mapped_by, pids)), "nobody has the object", DEADLINE_S + LINGER_S)
