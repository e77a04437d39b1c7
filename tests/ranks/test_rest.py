"""The loops of a real service and of its web server use no CPU time in any state in which they wait."""

import contextlib
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from faults.processes import command_line
from resting import await_rest, no_descriptors
from running import COMMAND, Running, needs_mpiexec, poll_until, serving, with_apps
from small_disks import fill, small_disk
from test_rank_losses import IS_MPICH
from waiting import remove_in_use
from web_process import WebServer

pytestmark = needs_mpiexec

needs_ranks_that_leave = pytest.mark.skipif(
    not IS_MPICH, reason="other launchers end all ranks when one dies"
)


def _is_rank(pid: int) -> bool:
    """Tell whether a process is a rank or has started the ranks; worker processes do not count."""
    return re.search(r"serve( |: rank)", command_line(pid)) is not None


def _ranks_of(service: Running) -> list[int]:
    return [pid for pid in service.processes() if _is_rank(pid)]


def test_a_service_rests_while_it_waits_for_a_disk_descriptors_or_its_folder(tmp_path: Path) -> None:
    env, until = with_apps(WAIT="rank_apps:Wait"), tmp_path / "go"
    places = ("--api-dir", f"{tmp_path}/disk/api", "--log-dir", f"{tmp_path}/disk/logs")
    with small_disk(tmp_path / "disk") as disk, serving(tmp_path, *places, ranks=2, env=env) as service:
        service.api_dir = disk / "api"
        service.ask("first", application="NOOP")
        ranks = _ranks_of(service)
        await_rest(*ranks)
        reply = service.submit("unwritten", application="WAIT", configuration={"until": str(until)})
        poll_until(lambda: not (service.box() / "in/unwritten.json").exists(), "it is taken")
        filling = fill(disk)
        until.touch()
        poll_until(lambda: "cannot write the reply u.unwritten" in service.output, lambda: service.output)
        await_rest(*ranks)
        assert not reply.exists()
        filling.unlink()
        service.reply(reply)
        with no_descriptors(*ranks):
            reply = service.submit("unopened", application="NOOP")
            poll_until(lambda: "Too many open files" in service.output, lambda: service.output)
            await_rest(*ranks)
        assert "result" in service.reply(reply)
        remove_in_use(service.box())
        poll_until(lambda: "was removed; it is made anew" in service.output, lambda: service.output)
        await_rest(*ranks)
        assert service.ask("last", application="NOOP")


def test_a_service_rests_while_its_newcomer_does_not_come_up(tmp_path: Path) -> None:
    with serving(tmp_path, ranks=2) as service:
        ranks = _ranks_of(service)
        known = set(service.processes())
        order = subprocess.Popen(
            [*COMMAND, "resize", "--api-dir", str(service.api_dir), "+1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        new = poll_until(lambda: {pid for pid in service.processes() if pid not in known and _is_rank(pid)})
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        await_rest(*ranks)
        assert order.poll() is None
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        order.kill()
        order.wait()


@contextlib.contextmanager
def _order(service: Running, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Give an order that removes ranks, and yield its command once the service has decided about the
    order.
    """
    order = subprocess.Popen(
        [*COMMAND, *words, "--api-dir", str(service.api_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        orders = service.api_dir / "orders"
        poll_until(lambda: any(b"departure" in path.read_bytes() for path in orders.glob("*.json")))
        yield order
    finally:
        order.kill()
        order.communicate()


@needs_ranks_that_leave
def test_a_service_rests_while_a_rank_that_is_to_leave_is_at_work(tmp_path: Path) -> None:
    env, until = with_apps(WAIT="rank_apps:Wait"), tmp_path / "go"
    with serving(tmp_path, "--rank-loss", "survive", ranks=2, env=env) as service:
        ranks = _ranks_of(service)
        wait = {"application": "WAIT", "configuration": {"until": str(until)}, "max-demand": 1}
        replies = [service.submit(f"job{number}", **wait) for number in range(2)]
        poll_until(lambda: len(service.events("started")) == 2, lambda: service.output)
        with _order(service, "drain", "1", "--grace", "1h") as order:
            for _ in range(2):
                await_rest(*ranks)
            assert order.poll() is None
            until.touch()
            assert order.wait() == 0
        assert all("result" in service.reply(reply) for reply in replies)


@needs_ranks_that_leave
def test_a_service_rests_while_it_has_halted_for_a_rank_that_hangs(tmp_path: Path) -> None:
    with serving(tmp_path, "--rank-loss", "survive", "--rank-timeout", "1h", ranks=3) as service:
        ranks = {pid: command_line(pid) for pid in _ranks_of(service)}
        (hung,) = (pid for pid, title in ranks.items() if re.search(r": rank 2\b", title))
        os.kill(hung, signal.SIGSTOP)
        try:
            with _order(service, "resize", "=2") as order:
                for _ in range(8):  # long enough that messages to the hanging rank wait
                    await_rest(*(pid for pid in ranks if pid != hung))
                assert order.poll() is None
                os.kill(hung, signal.SIGCONT)
                assert order.wait() == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(hung, signal.SIGCONT)
        assert service.ask("last", application="NOOP")


def test_a_web_server_rests_while_it_waits_for_callers_descriptors_or_its_folder(tmp_path: Path) -> None:
    api_dir = tmp_path / "api"
    api_dir.mkdir()
    web = WebServer(api_dir)
    try:
        pid = web.process.pid
        assert web.ask("GET", "/metrics").status == 200
        await_rest(pid)
        host, port = urlsplit(web.url).netloc.split(":")
        with no_descriptors(pid):
            callers = [socket.create_connection((host, int(port))) for _ in range(20)]
            await_rest(pid)
            for each in callers:
                each.close()
        assert "web_loop_turns_per_second" in web.ask("GET", "/metrics").text
        remove_in_use(api_dir)
        await_rest(pid)
    finally:
        web.process.terminate()
        assert web.process.stdout is not None
        said = web.process.stdout.read()
        web.process.wait()
    assert said.count("no connection can be accepted") == 1
    assert "Traceback" not in said
