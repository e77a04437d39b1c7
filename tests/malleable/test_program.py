"""A real program that takes the orders of a scheduler over its socket."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import DEADLINE_S, poll_until

from mallob_py.malleable.sockets import connect, listen

ROOT = Path(__file__).parents[2]
PROGRAM = """
import subprocess, sys
from mallob_py import malleable

class Handler:
    def pre_shrink(self, count):
        if count == 3:
            raise RuntimeError("three are too many")
        return processes.places[-count:]
    def post_shrink(self, now, removed):
        print("shrunk to", now, flush=True)
    def pre_grow(self, count):
        pass
    def post_grow(self, now, continued, added):
        print("grown to", now, flush=True)

def sleeper(place):
    return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])

processes = malleable.PlaceProcesses(sleeper)
print("defined", malleable.define_malleable_handler(Handler(), processes), flush=True)
for line in sys.stdin:
    if line == "disable\\n":
        malleable.disable_malleable_handler()
        print("disabled", flush=True)
processes.end(processes.places)
"""


class Program:
    """A running program, and the scheduler's ends of its sockets."""

    def __init__(self, folder: Path) -> None:
        self.orders = str(folder / ("x" * 120) / "orders.sock")
        self.notices = str(folder / "scheduler.sock")
        os.mkdir(os.path.dirname(self.orders))
        node_file = folder / "nodes"
        node_file.write_text("localhost\n" * 4)
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=dict(os.environ)
            | {
                "PYTHONPATH": path,
                "NODE_FILE": str(node_file),
                "JOB_SOCKET": self.orders,
                "SCHEDULER_SOCKET": self.notices,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def order(self, line: str) -> list[str]:
        """Give an order; return the words of the answer."""
        with connect(self.orders, DEADLINE_S) as connection, connection.makefile("rw") as lines:
            lines.write(f"{line}\n")
            lines.flush()
            return lines.read().split()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program(tmp_path)
    yield program
    _, errors = program.process.communicate(timeout=DEADLINE_S)
    assert program.process.returncode == 0, errors


def notice(server: socket.socket) -> str:
    server.settimeout(DEADLINE_S)
    connection, _ = server.accept()
    with connection, connection.makefile() as lines:
        return lines.readline()


def test_a_program_shrinks_grows_and_becomes_rigid(program: Program) -> None:
    with listen(program.notices) as server:
        assert program.says() == "defined True"
        assert notice(server) == f"APGAS-Ready:{program.orders}\n"
    assert program.order("shrink 2") == ["localhost"] * 2
    assert program.says() == "shrunk to 2"
    assert program.order("dance 2") == []
    assert program.order("grow 1 localhost") == []
    assert program.says() == "grown to 3"
    with listen(program.notices) as server:
        program.tell("disable")
        assert notice(server) == f"APGAS-Unready:{program.orders}\n"
    assert program.says() == "disabled"
    assert not os.path.exists(program.orders)


def test_a_program_waits_for_a_scheduler_that_starts_anew(program: Program) -> None:
    assert program.says() == "defined True"
    poll_until(lambda: os.path.exists(program.orders))
    with listen(program.notices) as server:
        assert notice(server).startswith("APGAS-Ready:")


def test_a_handler_that_raises_ends_the_orders_and_not_the_program(program: Program) -> None:
    with listen(program.notices) as server:
        assert program.says() == "defined True"
        notice(server)
    assert program.order("shrink 3") == []
    poll_until(lambda: not os.path.exists(program.orders))
    program.tell("disable")
    assert program.says() == "disabled"


@pytest.fixture
def scheduler_address() -> tuple[str, int]:
    """Return an address for the scheduler whose port is also free at the program's address."""
    while True:
        with socket.create_server(("127.0.0.2", 0)) as server:
            address: tuple[str, int] = server.getsockname()
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", address[1])):
                return address


def test_over_ip_orders_are_taken_from_the_schedulers_address_only(
    scheduler_address: tuple[str, int],
) -> None:
    ip, port = scheduler_address
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_SOCKET")}
    environment |= {"PYTHONPATH": path, "NODES": "4", "SCHEDULER_IP": ip, "SCHEDULER_PORT": str(port)}
    with (
        socket.create_server(scheduler_address) as server,
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as program,
    ):
        assert program.stdout is not None
        assert program.stdout.readline() == "defined True\n"
        assert notice(server) == "APGAS-Ready:127.0.0.1\n"

        def order(origin: str) -> list[str]:
            with (
                socket.create_connection(("127.0.0.1", port), DEADLINE_S, (origin, 0)) as connection,
                connection.makefile("r") as lines,
                contextlib.suppress(OSError),
            ):
                connection.sendall(b"shrink 1\n")
                return lines.read().split()
            return []

        assert order("127.0.0.3") == []
        assert order(ip) == ["localhost"]
        assert program.stdout.readline() == "shrunk to 3\n"
        _, errors = program.communicate("disable\n", DEADLINE_S)
    assert (program.returncode, errors.count("\n")) == (0, 1)
    assert "refused: it came from 127.0.0.3; only the scheduler's host 127.0.0.2 may give orders" in errors


def test_without_a_scheduler_a_program_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "NODES": "2"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="disable\n",
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["defined", "False", "disabled"]
