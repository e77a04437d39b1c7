"""`top` shows who has how many workers, in whatever terminal there is."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import Counter
from pathlib import Path

import pytest
from waiting import DEADLINE_S

from mallob_py.cli import main as main_module
from mallob_py.cli.status_text import age_text, clipped, progress_text, screen
from mallob_py.service.status_file import JobStatus, ServiceStatus, UserStatus, remove_status, write_status

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
    return "\n".join(screen(status_of(*jobs), columns, lines))


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
    wide = JobStatus(9, "u" * 60, "名" * 60, "running", 1e-9, 2**31 - 1, 2**31 - 1, 1e9, "APPLICATION")
    for line in screen(status_of(wide, LARGE), columns, 24):
        assert len(line) + line.count("名") <= columns


def test_more_jobs_than_lines_are_counted() -> None:
    jobs = [JobStatus(number, "u", f"job-{number}", "waiting") for number in range(100)]
    lines = screen(status_of(*jobs), 80, 24)
    assert len(lines) == 24
    shown = sum("job-" in line for line in lines)
    assert lines[-1] == f"... and {100 - shown} more jobs"


def test_a_text_is_cut_by_cells_of_the_terminal() -> None:
    assert clipped("abcdef", 6) == "abcdef"
    assert clipped("abcdef", 4) == "abc…"
    assert clipped("名名名", 4) == "名…"


def test_ages_are_short_at_any_size() -> None:
    assert [age_text(age_s) for age_s in (0.0, 59.94, 187, 8100, 273600)] == [
        *("0.0s", "59.9s", "3:07", "2:15:00", "3d04h")
    ]


def test_progress_says_workers_and_age() -> None:
    assert progress_text("alice.large", status_of(LARGE), 0, 1.0) == (
        "alice.large: running, 5 of 8 workers, 1:15"
    )
    assert "handed in" in progress_text("u.unknown", status_of(LARGE), 0, 1.0)
    assert "no service is running" in progress_text("u.unknown", None, 0, 1.0)


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

    def __init__(self, api_dir: Path) -> None:
        self.master, slave = pty.openpty()
        self.seen = ""
        self.resize(80, 24)
        command = [sys.executable, "-m", "mallob_py.cli.main", "top", "--api-dir", str(api_dir)]
        environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")} | {
            "TERM": "xterm"
        }
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
        except OSError:  # the other end is closed
            return False
        self.seen += piece.decode(errors="replace")
        return bool(piece)

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
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.master)
