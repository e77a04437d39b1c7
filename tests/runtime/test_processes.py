"""numpy starts no threads in ranks and fork servers, unless the user asks for them; forks have titles."""

import os
import signal
import subprocess
import sys

import pytest
from waiting import DEADLINE_S

from mallob_py.runtime.processes import left_of, signals_held_back

_COUNT = """
import os
from mallob_py.runtime.processes import want_no_numeric_threads
want_no_numeric_threads()
import numpy
print(len(os.listdir("/proc/self/task")), os.environ["OMP_NUM_THREADS"])
"""


def _counted(**environment: str) -> list[str]:
    inherited = {name: one for name, one in os.environ.items() if not name.endswith("_NUM_THREADS")}
    return subprocess.run(
        [sys.executable, "-c", _COUNT],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    ).stdout.split()


def test_numpy_starts_no_threads() -> None:
    assert _counted() == ["1", "1"]


def test_what_the_user_has_set_stays() -> None:
    assert _counted(OMP_NUM_THREADS="2")[1] == "2"


@pytest.mark.parametrize("length", [5, 4000])
def test_a_fork_can_have_a_title_of_its_own_in_the_place_of_the_command_line(length: int) -> None:
    program = f"""if True:
    import os
    from mallob_py.runtime.processes import set_title
    before = open("/proc/self/environ", "rb").read()
    if os.fork() == 0:
        set_title("x" * {length})
        assert open("/proc/self/environ", "rb").read() == before
        print(open("/proc/self/cmdline").read().rstrip("\\0"), flush=True)
        os._exit(0)
    os.wait()
    print(open("/proc/self/cmdline").read().split("\\0")[1])
    """
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    title, own = done.stdout.splitlines()
    assert title == "x" * min(length, len("\0".join(command)))
    assert own == "-c"


def test_a_child_that_is_started_meanwhile_holds_back_the_same_signals_from_its_begin_on() -> None:
    with signals_held_back(signal.SIGUSR1):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.1)"])
    child.send_signal(signal.SIGUSR1)
    assert child.wait(DEADLINE_S) == 0


def test_a_child_that_does_not_end_is_not_waited_for_and_one_that_has_is_buried() -> None:
    ended, lasting = (subprocess.Popen(["sleep", seconds]) for seconds in ("0", "1000"))
    try:
        assert left_of([ended.pid]) == set()
        assert left_of([ended.pid, lasting.pid], timeout_s=0.01) == {lasting.pid}
    finally:
        os.kill(lasting.pid, signal.SIGKILL)
    assert left_of([lasting.pid], DEADLINE_S) == set()
