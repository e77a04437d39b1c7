"""Two hosts whose network breaks: namespaces with an address each, joined by a virtual cable."""

import contextlib
import ctypes
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import ROOT, Running, marked_processes, mpiexec, needs_mpiexec
from test_rank_losses import IS_MPICH, await_generation, is_fork_server, parent_of
from waiting import poll_until

SHELL = ROOT / "tests/ranks/other_network.sh"
_PIDFD_GETFD = 438
_libc = ctypes.CDLL(None, use_errno=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _may_have_networks() -> bool:
    """Tell whether this process may make network namespaces, which root in containers often may not."""
    if os.geteuid() != 0:
        return False
    name = f"mallob-py-{os.getpid()}"
    added = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return added


class TwoHosts:
    """Two hosts; their addresses are also the names of their namespaces."""

    def __init__(self, net: str) -> None:
        self.addresses = f"{net}.1", f"{net}.2"

    def cut(self) -> None:
        """Send all packets to an Ethernet address that does not exist, so that they are lost without an
        error.
        """
        for here, there in (self.addresses, self.addresses[::-1]):
            _ip(
                "-n",
                here,
                "neigh",
                "replace",
                there,
                "lladdr",
                "02:00:00:00:00:01",
                "dev",
                "cable",
                "nud",
                "permanent",
            )

    def heal(self) -> None:
        for here, there in (self.addresses, self.addresses[::-1]):
            _ip("-n", here, "neigh", "del", there, "dev", "cable")


def _has_carrier(host: str) -> bool:
    # Until the kernel reports the cable, up to a second later, MPICH's UCX finds only the loopback device.
    shown = subprocess.run(
        ["ip", "-n", host, "-json", "link", "show", "cable"], check=True, capture_output=True
    )
    return bool(json.loads(shown.stdout)[0]["operstate"] == "UP")


@contextlib.contextmanager
def _two_hosts(net: str) -> Iterator[TwoHosts]:
    hosts = TwoHosts(net)
    first, second = hosts.addresses
    try:
        for each in hosts.addresses:
            _ip("netns", "add", each)
        _ip("link", "add", "cable", "netns", first, "type", "veth", "peer", "name", "cable", "netns", second)
        for each in hosts.addresses:
            _ip("-n", each, "addr", "add", f"{each}/24", "dev", "cable")
            for device in ("lo", "cable"):
                _ip("-n", each, "link", "set", device, "up")
        poll_until(lambda: all(map(_has_carrier, hosts.addresses)), "the cable is plugged in")
        yield hosts
    finally:
        for each in hosts.addresses:
            subprocess.run(["ip", "netns", "del", each], capture_output=True, check=False)


pytestmark = [
    needs_mpiexec,
    pytest.mark.slow,
    pytest.mark.skipif(not IS_MPICH, reason="other launchers end all ranks when one dies"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip, of Debian's iproute2"),
]


@contextlib.contextmanager
def _serving(folder: Path, hosts: TwoHosts, *options: str) -> Iterator[Running]:
    """Yield a service with two ranks on each host."""
    first, second = hosts.addresses
    on_first = [
        "ip",
        "netns",
        "exec",
        first,
        "unshare",
        "--uts",
        "sh",
        "-c",
        'hostname "$0" && exec "$@"',
        first,
    ]
    launch = [
        mpiexec(), "-iface", "cable", "-launcher", "rsh", "-launcher-exec", str(SHELL),
        "-hosts", f"{first}:2,{second}:2", "-n", "4",
    ]  # fmt: skip
    service = Running(
        folder, "--rank-loss", "survive", "--warm", "0", *options, ranks=4, prefix=[*on_first, *launch]
    )
    try:
        service.await_ready()
        yield service
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            hosts.heal()
        service.kill()


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    if not _may_have_networks():
        pytest.skip("needs the right to make network namespaces, as root has it")
    with _two_hosts(f"10.{os.getpid() // 256 % 256}.{os.getpid() % 256}") as both:
        yield both


def rank_processes(service: Running) -> set[int]:
    forked = {pid for pid in marked_processes(service.mark) if is_fork_server(pid)}
    return {parent_of(pid) for pid in forked} - forked - {0}


def sockets_of(pid: int) -> dict[str, str]:
    """Return descriptor -> name of a process's sockets."""
    folder, found = f"/proc/{pid}/fd", {}
    for descriptor in os.listdir(folder):
        with contextlib.suppress(OSError):
            found[descriptor] = os.readlink(f"{folder}/{descriptor}")
    return {descriptor: name for descriptor, name in found.items() if name.startswith("socket:")}


def end_connections_of(pid: int) -> int:
    """Shut all TCP connections of a process, as a broken router would; return their number."""
    pidfd, ended = os.pidfd_open(pid), 0
    inherited = set(sockets_of(parent_of(pid)).values())
    try:
        for descriptor, name in sockets_of(pid).items():
            if name in inherited:  # a connection of mpiexec
                continue
            if (number := _libc.syscall(_PIDFD_GETFD, pidfd, int(descriptor), 0)) < 0:
                continue
            with socket.socket(fileno=number) as copy, contextlib.suppress(OSError):
                if copy.family == socket.AF_INET and copy.type == socket.SOCK_STREAM and copy.getpeername():
                    copy.shutdown(socket.SHUT_RDWR)
                    ended += 1
    finally:
        os.close(pidfd)
    return ended


class Client:
    """Submits jobs and removes each reply, so that a second reply to a job would be noticed."""

    def __init__(self, service: Running) -> None:
        self._service = service
        self._awaited: set[str] = set()
        self.taken: list[str] = []

    def submit(self, name: str, limit: str) -> None:
        self._awaited.add(f"u.{name}.json")
        self._service.submit(name, application="SLEEP", wallclock_limit=limit)

    def take(self) -> bool:
        """Remove the replies that have come; return whether all have come."""
        for path in (self._service.box() / "out").glob("[!.~]*.json"):
            json.loads(path.read_text())
            self.taken.append(path.name)
            path.unlink()
        return self._awaited <= set(self.taken)

    def await_all(self) -> None:
        poll_until(self.take, lambda: f"{self._awaited - set(self.taken)}\n{self._service.output}")

    def check(self) -> None:
        self.take()
        assert sorted(self.taken) == sorted(self._awaited)


def test_cut_connections_and_a_network_that_is_away_for_seconds_cost_nothing(
    tmp_path: Path, hosts: TwoHosts
) -> None:
    with _serving(tmp_path, hosts) as service:
        client = Client(service)
        for number in range(8):
            client.submit(f"job-{number}", "12s" if number == 0 else "2s")
        service.await_event("started")
        before = rank_processes(service)
        for _ in range(3):
            # Connections cut just before may not be back yet, so one existing connection is enough.
            poll_until(lambda: sum(map(end_connections_of, before)), "connections between the hosts")
            client.submit(f"after-{len(client.taken)}-{os.urandom(2).hex()}", "1s")
        hosts.cut()
        client.submit("meanwhile", "2s")
        until_s = time.monotonic() + 8.0  # longer than the time limit for unacknowledged data
        poll_until(lambda: client.take() or time.monotonic() > until_s)
        hosts.heal()
        client.await_all()
        assert rank_processes(service) == before
        assert service.events("generation") == []
        service.stop()  # its exit code is mpiexec's
        client.check()
        poll_until(lambda: service.processes() == [], "nothing is left")
        assert "Traceback" not in service.output


def test_parts_that_do_not_hear_each_other_go_on_and_the_lesser_ends_when_they_do(
    tmp_path: Path, hosts: TwoHosts
) -> None:
    with _serving(tmp_path, hosts, "--rank-timeout", "4s") as service:
        client = Client(service)
        for number in range(12):
            client.submit(f"job-{number}", f"{1 + number % 4}s")
        service.await_event("started")
        hosts.cut()
        await_generation(service, 2)
        poll_until(lambda: len(service.events("generation")) >= 4, "each part goes on")
        client.submit("meanwhile", "1s")
        hosts.heal()
        poll_until(
            lambda: service.output.count("the others go on without it") == 2,
            lambda: f"the lesser part ends\n{service.output}",
        )
        client.submit("later", "1s")
        client.await_all()
        assert len(rank_processes(service)) == 2
        service.stop()  # its exit code is mpiexec's
        client.check()
        poll_until(lambda: service.processes() == [], "nothing is left")
        assert "Traceback" not in service.output
