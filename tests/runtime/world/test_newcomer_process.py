"""What a joining rank inherits from the rank that starts it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import DEADLINE_S

from mallob_py.launchers import EXIT_FILE_VARIABLE, INVITED_VARIABLE
from mallob_py.runtime.world import newcomer_process, words_process
from mallob_py.runtime.world.newcomer_process import Site


class FakePopen:
    """A stand-in for Popen that starts no process."""

    pid = 1

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env


def test_who_joins_on_this_host_knows_nothing_of_the_launchers_exit_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[dict[str, str]] = []

    def start(_arguments: list[str], env: dict[str, str], _invitation: bytes) -> FakePopen:
        started.append(env)
        return FakePopen(env)

    monkeypatch.setattr(newcomer_process, "_start_rank", start)
    monkeypatch.setenv(EXIT_FILE_VARIABLE, str(tmp_path / "exit-code"))
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("KEPT", "1")
    newcomer_process.start(Site("here"), b"", tmp_path / "words")
    (env,) = started
    assert EXIT_FILE_VARIABLE not in env
    assert "PMI_RANK" not in env
    assert env["KEPT"] == env[INVITED_VARIABLE] == "1"


def test_a_command_that_is_longer_than_a_pipe_usually_holds_comes_to_the_other_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = [f"/a/folder/with/many/formulas/{number:05}.cnf" for number in range(5000)]
    monkeypatch.setattr(sys, "argv", ["mallob-py", *arguments])
    shell = ("sh", "-c", f"head -n 1 > '{tmp_path}/line'")
    newcomer_process.start(Site("node2", shell), b"", tmp_path / "words").how_ended()
    assert newcomer_process.read_begin((tmp_path / "line").read_bytes()).arguments == arguments


def test_names_that_are_not_utf8_come_to_the_other_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["mallob-py", folder])
    shell = ("sh", "-c", f"head -n 1 > '{tmp_path}/line'")
    newcomer_process.start(Site("node2", shell), b"\xff", tmp_path / "words").how_ended()
    begin = newcomer_process.read_begin((tmp_path / "line").read_bytes())
    assert (begin.arguments, begin.folder, begin.invitation) == ([folder], folder, b"\xff")


def test_a_command_that_no_pipe_holds_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["mallob-py", "x" * (2 << 20)])
    with pytest.raises(OSError, match="Argument list too long"):
        newcomer_process.start(Site("node2", ("true",)), b"", tmp_path / "words")


def test_of_what_a_joined_rank_says_all_is_passed_on_and_only_the_end_is_kept(tmp_path: Path) -> None:
    said = b"".join(b"line %d\n" % number for number in range(10_000))
    words = tmp_path / "words"
    program = [sys.executable, "-I", "-S", words_process.__file__, words]
    passed_on = subprocess.run(program, input=said, capture_output=True, check=True, timeout=DEADLINE_S)
    assert passed_on.stderr == said
    kept = words.read_bytes()
    assert words_process.KEPT_BYTES <= len(kept) <= 2 * words_process.KEPT_BYTES
    assert said.endswith(kept)


def test_what_cannot_be_kept_is_passed_on_all_the_same(tmp_path: Path) -> None:
    program = [sys.executable, "-I", "-S", words_process.__file__, tmp_path / "nowhere" / "words"]
    assert (
        subprocess.run(program, input=b"said", capture_output=True, check=True, timeout=DEADLINE_S).stderr
        == b"said"
    )
