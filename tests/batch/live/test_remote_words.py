"""A remote shell may print anything: a keeper reads at most a bounded piece at a time, and goes on."""

import asyncio
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mallob_py.batch.live import guard, remote
from mallob_py.batch.live.launch import Launch, RunEnd, Status
from mallob_py.batch.live.remote import Ready
from mallob_py.batch.live.requests import REQUEST_MAX_BYTES, Refused
from mallob_py.batch.live.server import _Server


class Words(io.BytesIO):
    """Output that records the length of the longest piece read from it."""

    longest = 0

    def _note(self, piece: bytes) -> bytes:
        self.longest = max(self.longest, len(piece))
        return piece

    def readline(self, size: int | None = -1, /) -> bytes:
        return self._note(super().readline(size))

    def __next__(self) -> bytes:
        return self._note(super().__next__())


@pytest.mark.parametrize(
    "noise", [b"x" * (20 << 20), b"[" * 100_000, b'{"type":"Ready","more":' + b"[" * 100_000]
)
def test_noise_of_a_remote_shell_is_taken_in_bounds_and_what_follows_is_heard(
    noise: bytes, tmp_path: Path
) -> None:
    words = Words(noise + b"\n" + msgspec.json.encode(Ready()) + b"\n")
    shell: Any = SimpleNamespace(stdin=io.BytesIO(), stderr=words)
    link = remote.Link(tmp_path, Launch([], "/", {}, 1.0), shell)
    link.hear()
    assert link.is_ready.is_set()
    assert len(link.said) <= 200
    assert words.longest <= 8 << 20


def test_a_guard_takes_in_no_more_than_a_script_and_an_environment_can_be() -> None:
    words = Words(b"x" * (100 << 20))
    assert guard.next_message(words) is None
    assert words.longest == 6 * REQUEST_MAX_BYTES


def test_a_request_that_is_nested_too_deeply_is_refused() -> None:
    server: Any = object.__new__(_Server)
    answer = asyncio.run(server._answer(b'{"type":"Cancel","job":1,"more":' + b"[" * 100_000))
    assert isinstance(answer, Refused)
    assert "not a request" in answer.error


def test_an_output_that_cannot_be_opened_is_no_fault_of_the_node(tmp_path: Path) -> None:
    output = str(tmp_path / "none" / "out")
    launch = Launch(["true"], "/", {}, 1.0, remote=["false"], output=output)
    why = f"{output}: No such file or directory"
    assert remote.keep_remotely(tmp_path, launch) == Status(RunEnd.NOT_STARTED, error=why)
