"""Malleable programs that hang, lie, flood or break off: the scheduler goes on without waiting for them."""

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_live import RIGID, Make, Scheduler, scheduler_maker
from waiting import poll_until

#: program that announces that it takes orders; `order()` returns the scheduler's next connection
PROGRAM = """
import os, socket, sys, time
server = socket.socket(socket.AF_UNIX)
server.bind(os.environ["JOB_SOCKET"])
server.listen()

def tell(text):
    with socket.socket(socket.AF_UNIX) as scheduler:
        scheduler.connect(os.environ["SCHEDULER_SOCKET"])
        scheduler.sendall(text)

ready = f"APGAS-Ready:{os.environ['JOB_SOCKET']}\\n".encode()
tell(ready)

def order():
    connection, _ = server.accept()
    print(connection.makefile().readline().split()[0], flush=True)
    return connection

"""
#: a program's name -> what the program does with the order to shrink, and what the scheduler prints about it
PROGRAMS = {
    "hangs": ("held = order()", "no answer"),
    "nonsense": ("order().sendall(b'yes, yes\\n')", "released 'yes, yes'"),
    "no text": ("order().sendall(b'\\xff\\xfe\\n')", "can't decode byte 0xff"),
    "flood": (
        "connection = order()\ntry:\n    while True: connection.sendall(b'x' * 65536)\nexcept OSError: pass",
        "chunk",
    ),
    "breaks off": ("order().close()", "broke off"),
    "is gone": ("server.close()", "Connection refused"),
    "without socket": ("server.close(); os.unlink(os.environ['JOB_SOCKET'])", "No such file or directory"),
}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    yield from scheduler_maker(tmp_path)


def submit(scheduler: Scheduler, folder: Path, body: str) -> int:
    (folder / "program.py").write_text(PROGRAM + textwrap.dedent(body) + "\nwhile True: time.sleep(600)\n")
    return scheduler.submit(
        "JOB_CLASS malleable; REQUIRED_TIME 600000; MIN_NODES 1; MAX_NODES 2",
        f"exec {sys.executable} {folder}/program.py\n",
    )


def states(scheduler: Scheduler) -> list[str]:
    return [line.state for line in scheduler.queue().running]


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROGRAMS)
def test_who_does_not_carry_out_an_order_is_rigid_from_then_on(make: Make, tmp_path: Path, kind: str) -> None:
    body, said = PROGRAMS[kind]
    scheduler = make("--policy", "elastic:cooldown-s=5,start=code", slots=2)
    bad = submit(scheduler, tmp_path, body)
    poll_until(lambda: states(scheduler) == ["runs, takes orders"], scheduler.story)
    rigid = scheduler.submit(RIGID, "echo done\n")
    poll_until(lambda: "counts as rigid from now on: " in scheduler.story(), scheduler.story)
    assert said in scheduler.story()
    assert [(one.job, one.state, one.nodes) for one in scheduler.queue().running] == [(bad, "runs", 2)]
    scheduler.cancel(bad)
    assert scheduler.ended(rigid).state == "exit code 0"


@pytest.mark.slow
def test_a_job_that_has_failed_cannot_say_that_it_is_ready_again(make: Make, tmp_path: Path) -> None:
    scheduler = make("--policy", "elastic:cooldown-s=5,start=code", slots=2)
    body = """
    order().close()
    while True:
        tell(ready)
        print("ready again", flush=True)
        time.sleep(0.1)
    """
    bad = submit(scheduler, tmp_path, body)
    poll_until(lambda: states(scheduler) == ["runs, takes orders"], scheduler.story)
    rigid = scheduler.submit(RIGID, "echo done\n")
    poll_until(lambda: scheduler.output(bad).count("ready again") > 3, scheduler.story)
    assert states(scheduler) == ["runs"]
    scheduler.cancel(bad)
    assert scheduler.ended(rigid).state == "exit code 0"
    assert scheduler.story().count("counts as rigid") == 1


FLOOD = """
words = (
    b"x" * (1 << 20), b"\\n\\n\\n", b"{}\\n", b"{" * (1 << 20) + b"\\n", b"\\xff\\n",
    ready, b"APGAS-Ready:/\\n",
)
connections = []
try:
    while True:
        one = socket.socket(socket.AF_UNIX)
        one.connect(os.environ["SCHEDULER_SOCKET"])
        connections.append(one)
        if len(connections) >= 600:
            break
        one.sendall(b"x" * 100)
except OSError as error:
    pass
print("flooded", flush=True)
while True:
    for text in words:
        try:
            tell(text)
        except OSError:
            pass
    print("again", flush=True)
"""


@pytest.mark.slow
def test_a_job_that_floods_the_scheduler_takes_nothing_from_others(make: Make, tmp_path: Path) -> None:
    scheduler = make("--policy", "easy", slots=3)
    bad = submit(scheduler, tmp_path, FLOOD)
    poll_until(lambda: scheduler.output(bad).count("again") > 2, scheduler.story)
    for _ in range(3):
        assert poll_until(lambda: ended(scheduler)) == "exit code 0"
    scheduler.kill()
    scheduler.start()
    scheduler.cancel(bad)
    assert scheduler.ended(bad).state == "cancelled"


def ended(scheduler: Scheduler) -> str:
    job = scheduler.submit(RIGID, "echo done\n")
    return scheduler.ended(job).state


@pytest.mark.slow
def test_a_job_that_forks_away_is_ended_with_all_that_it_has_started(make: Make, tmp_path: Path) -> None:
    scheduler = make("--policy", "easy", slots=2)
    body = """
    import signal, subprocess
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            os.environ.clear()
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(601)"], env={})
            with open("left", "a") as left:
                print(os.getpid(), file=left, flush=True)
            time.sleep(602)
    """
    bad = submit(scheduler, tmp_path, body)
    left = tmp_path / "left"
    poll_until(lambda: left.exists() and len(left.read_text().split()) == 3, scheduler.story)
    scheduler.cancel(bad)
    assert scheduler.ended(bad).state == "cancelled"
    assert not any(Path(f"/proc/{pid}").exists() for pid in left.read_text().split())
    assert not scheduler.processes_of(bad)
