"""`top` shows how many workers each job has, in any terminal."""

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from waiting import DEADLINE_S

from mallob_py.cli import main as main_module
from mallob_py.cli.jobs import waiting_text
from mallob_py.cli.status import picture
from mallob_py.cli.values import age_text
from mallob_py.protocol.placement import numbers_as_ranges
from mallob_py.service.telemetry.status import (
    JobProgress,
    JobStatus,
    ServiceStatus,
    UserStatus,
    remove_status,
    write_status,
)

SMALL = JobStatus(1, "bob", "small", "running", volume=1, demand=1, elapsed_s=5.0, application="SAT")
LARGE = JobStatus(2, "alice", "large", "running", volume=5, demand=8, elapsed_s=75.0, application="SAT")
OTHER = JobStatus(3, "bob", "other", "running", volume=2, demand=2, application="SLEEP")
QUEUED = JobStatus(4, "alice", "queued", "waiting", priority=3.0, demand=8)


def status_of(*jobs: JobStatus) -> ServiceStatus:
    users = {
        name: UserStatus(len(mine), sum(job.volume for job in mine))
        for name in sorted({job.user for job in jobs})
        if (mine := [job for job in jobs if job.user == name])
    }
    return ServiceStatus(
        *(time.time(), 4, 8, sum(job.volume for job in jobs), jobs),
        states=Counter(job.state for job in jobs),
        users=users,
    )


def text_of(*jobs: JobStatus, columns: int = 80, lines: int = 24) -> str:
    return "\n".join(lines_of(status_of(*jobs), columns, lines))


def lines_of(
    status: ServiceStatus, columns: int, lines: int, sort: str = "volume", is_reversed: bool = False
) -> list[str]:
    console = Console(file=io.StringIO(), width=columns)
    with console.capture() as capture:
        console.print(picture(status, columns, lines, sort, is_reversed))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_busy_and_idle_pes_the_queue_and_users_are_summed_up() -> None:
    text = text_of(SMALL, LARGE, OTHER, QUEUED)
    assert "8 of 8 busy, 0 idle" in text
    assert "3 running; 1 in the queue (1 waiting)" in text
    assert "alice 5, bob 3" in text


def test_the_largest_jobs_stand_first_and_the_queue_last() -> None:
    text = text_of(SMALL, QUEUED, OTHER, LARGE)
    positions = [text.index(name) for name in ("large", "other", "small", "queued")]
    assert positions == sorted(positions)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    wide = JobStatus(
        9, "u" * 60, "名" * 60, "running", 2**31 - 1, 2**31 - 1, 1e9, "APPLICATION", priority=1e-9
    )
    for line in lines_of(status_of(wide, LARGE), columns, 24):
        assert len(line) + line.count("名") <= columns


def test_more_jobs_than_lines_are_counted() -> None:
    jobs = [JobStatus(number, "u", f"job-{number}", "waiting") for number in range(100)]
    lines = lines_of(status_of(*jobs), 80, 24)
    assert len(lines) == 24
    shown = sum("job-" in line for line in lines)
    assert lines[-1] == f"... and {100 - shown} more jobs"


def test_jobs_that_the_status_does_not_list_are_counted() -> None:
    status = msgspec.structs.replace(status_of(LARGE), states={"running": 1, "waiting": 5000})
    assert lines_of(status, 80, 24)[-1] == "... and 5000 more jobs"


def test_short_names_leave_their_room_to_long_ones() -> None:
    line = next(line for line in text_of(JobStatus(1, "u", "n" * 70, "held")).splitlines() if "nnn" in line)
    assert len(line) == 80 - len("STATE") + len("held")
    assert "…" in line


def test_a_narrow_terminal_has_fewer_columns() -> None:
    header = next(line for line in text_of(LARGE, columns=44).splitlines() if "NAME" in line)
    assert header.split() == ["USER", "NAME", "VOL", "DEMAND", "AGE", "STATE"]


def test_how_far_a_job_is_stays_longer_than_what_it_is() -> None:
    far = msgspec.structs.replace(LARGE, progress=JobProgress(1.5e9, 2.5e6, unit="tasks"))
    header = next(line for line in text_of(far, columns=80).splitlines() if "NAME" in line)
    assert header.split() == ["ID", "USER", "NAME", "PRIORITY", "VOL", "DEMAND", "AGE", "STATE", "PROGRESS"]


def test_jobs_are_sorted_by_a_column_either_way() -> None:
    status = status_of(SMALL, LARGE, OTHER, QUEUED)
    for is_reversed in (False, True):
        text = "\n".join(lines_of(status, 80, 24, "name", is_reversed))
        positions = [text.index(name) for name in ("large", "other", "queued", "small")]
        assert positions == sorted(positions, reverse=is_reversed)


def test_ranks_are_told_as_ranges() -> None:
    assert numbers_as_ranges((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"
    assert numbers_as_ranges(()) == ""


def test_ages_are_short_at_any_size() -> None:
    assert [age_text(age_s) for age_s in (0.0, 59.94, 187, 8100, 273600)] == [
        *("0.0s", "59.9s", "3:07", "2:15:00", "3d04h")
    ]


def test_progress_says_workers_and_age() -> None:
    assert waiting_text("alice.large", status_of(LARGE), 0, 1.0) == (
        "alice.large: running, 5 of 8 workers, 1:15"
    )
    far = msgspec.structs.replace(LARGE, progress=JobProgress(12, 0.5, total=40, unit="sources"))
    text = waiting_text("alice.large", status_of(far), 0, 1.0)
    assert text.endswith(", 12 of 40 sources (30%), 0.5/s")
    assert "handed in" in waiting_text("u.unknown", status_of(LARGE), 0, 1.0)
    assert "no service answers" in waiting_text("u.unknown", None, 0, 1.0)


def test_once_prints_plain_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_status(tmp_path, status_of(LARGE))
    assert main_module.main(["top", "--once", "--api-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "large" in printed
    assert "\x1b" not in printed


def test_once_without_a_service_has_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(["top", "--once", "--api-dir", str(tmp_path)]) == 1
    assert "no service is running" in capsys.readouterr().out


class Terminal:
    """`mallob-py top` in a terminal of its own."""

    def __init__(self, api_dir: Path, **variables: str) -> None:
        self.master, slave = pty.openpty()
        self.seen = ""
        self.resize(80, 24)
        command = [sys.executable, "-m", "mallob_py.cli.main", "top", "--api-dir", str(api_dir)]
        own = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
        environment = {key: value for key, value in os.environ.items() if key not in own}
        environment |= {"TERM": "xterm"} | variables
        self.process = subprocess.Popen(
            [*command, "--interval", "50ms"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def await_text(self, text: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        self.seen = ""
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            self.read()

    def read(self) -> bool:
        try:
            piece = os.read(self.master, 65536)
        except OSError:  # `top` has closed its end of the terminal
            return False
        self.seen += piece.decode(errors="replace")
        return bool(piece)

    def press(self, key: str) -> None:
        os.write(self.master, key.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        while self.read():
            pass
        return self.process.wait(DEADLINE_S)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_terminal_is_filled_follows_the_service_and_is_given_back(
    tmp_path: Path, number: signal.Signals
) -> None:
    write_status(tmp_path, status_of(LARGE))
    terminal = Terminal(tmp_path)
    try:
        terminal.await_text("large")
        remove_status(tmp_path)
        terminal.await_text("no service is running")
        write_status(tmp_path, status_of(QUEUED))
        terminal.await_text("queued")
        terminal.resize(30, 10)
        terminal.await_text("…")
        assert terminal.end(number) == 0
        assert terminal.seen.endswith("\x1b[?25h\x1b[?1049l")
        assert "Traceback" not in terminal.seen
    finally:
        terminal.close()


def test_q_leaves_the_view_and_the_terminal_is_as_before(tmp_path: Path) -> None:
    write_status(tmp_path, status_of(LARGE))
    terminal = Terminal(tmp_path)
    try:
        before = termios.tcgetattr(terminal.master)
        terminal.await_text("large")
        terminal.press("q")
        while terminal.read():
            pass
        assert terminal.process.wait(DEADLINE_S) == 0
        assert termios.tcgetattr(terminal.master) == before
    finally:
        terminal.close()


def test_keys_sort(tmp_path: Path) -> None:
    write_status(tmp_path, status_of(LARGE, SMALL))
    terminal = Terminal(tmp_path)
    try:
        terminal.await_text("small")
        order = re.compile(r"small.*large", re.DOTALL)
        terminal.press("u")  # sorted by user: alice, bob
        terminal.press("r")
        deadline = time.monotonic() + DEADLINE_S
        while not order.search(terminal.seen.rpartition("NAME")[2]):
            assert time.monotonic() < deadline, terminal.seen
            terminal.read()
    finally:
        terminal.close()


@pytest.mark.parametrize(("variables", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_states_have_colours_unless_nobody_wants_them(
    tmp_path: Path, variables: dict[str, str], is_coloured: bool
) -> None:
    write_status(tmp_path, status_of(LARGE))
    terminal = Terminal(tmp_path, **variables)
    try:
        terminal.await_text("q quits")
        assert ("\x1b[32mrunning" in terminal.seen) is is_coloured
    finally:
        terminal.close()
