"""The console script finds commands, imports them late and fails in one line."""

import contextlib
import errno
import os
import re
import subprocess
import sys
from typing import IO

import pytest
from waiting import DEADLINE_S

from mallob_py import __version__
from mallob_py.cli import main as main_module
from mallob_py.cli import options
from mallob_py.cli.main import outcome_of


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(["--version"]) == 0
    assert capsys.readouterr().out == f"mallob-py {__version__}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {command} " in listed for command in options.COMMANDS), listed


@pytest.mark.parametrize("command", list(options.COMMANDS))
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main_module.main([command, "--help"])
    assert caught.value.code == 0
    assert options.COMMANDS[command][0] in capsys.readouterr().out


def test_commands_of_two_words_are_listed_behind_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(["batch", "--help"]) == 0
    listed = capsys.readouterr().out
    assert all((f"  {name} " in listed) == name.startswith("batch ") for name in options.COMMANDS), listed
    for words, missing in ((["batch"], "a command is needed"), (["batch", "play"], "no command 'play'")):
        assert main_module.main(words) == 2
        line = capsys.readouterr().err
        assert line.startswith(f"mallob-py batch: {missing} (there are simulate, explain"), line
        assert line.count("\n") == 1


def test_help_of_a_command_may_stand_before_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main_module.main(["help", "batch", "submit"])
    assert "usage: mallob-py batch submit" in capsys.readouterr().out
    assert main_module.main(["help", "batch"]) == 0
    assert "batch submit" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["--version", "-V", "version"])
def test_the_version_is_told_however_one_asks(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main([word]) == 0
    assert capsys.readouterr().out.startswith("mallob-py ")


@pytest.mark.parametrize("command", ["solve", "run", "submit", "batch submit"])
def test_help_begins_with_what_the_command_is_about(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main_module.main([*command.split(), "--help"])
    groups = re.findall(r"^([a-z ]+):$", capsys.readouterr().out, re.MULTILINE)
    assert groups[:2] in (["options", "input"], ["options", "job"]), groups
    assert groups.index("output") < groups.index("configuration")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        *((["slove"], "solve"), (["btach"], "batch"), (["batch", "sumbit"], "submit")),
        (["submit", "f.cnf", "--wiat=3"], "--wait"),
        *((["ps"], "status"), (["sbatch", "x"], "batch submit"), (["batch", "squeue"], "queue")),
        *((["solve", "-t", "5", "f"], "--time-limit"), (["submit", "--timeout", "5"], "--time-limit")),
        *((["solve", "-j", "2", "f"], "--ranks"), (["batch", "serve", "-n", "2"], "--slots")),
        ([__file__], f"solve {__file__}' or 'submit {__file__}"),
    ],
)
def test_a_mistyped_word_gets_the_one_that_was_meant(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_module.main(arguments) == 2
    said = capsys.readouterr().err
    assert f"(did you mean {meant!r}?)".replace('"', "'") in said
    assert "(there are" not in said


@pytest.mark.parametrize(
    "arguments", [["solv"], ["solve"], ["serve", "--clients", "x"], ["report", "/nonexistent/logs"]]
)
def test_errors_are_one_line_and_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_module.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("mallob-py")


@pytest.mark.parametrize(
    ("doing", "without"),
    [
        pytest.param(
            "from mallob_py.cli import main, options; options.parse('serve', ['-n', '2'], {})",
            {"mpi4py", "numpy", "msgspec", "pysat", "mallob_py.cli.launching"},
            id="parsing options",
        ),
        pytest.param(
            "import mallob_py.cli.main, mallob_py.cli.launching",
            {"mpi4py", "numpy", "msgspec", "pysat", "mallob_py.runtime.rank"},
            id="launching ranks",
        ),
        pytest.param(
            "from mallob_py.cli import doctor; [*doctor.problems_here()]",
            {"importlib.metadata", "msgspec", "mallob_py.service.client"},
            id="looking for problems at the start of serve",
        ),
        pytest.param(
            "import mallob_py.cli.solve_rank, mallob_py.runtime.world.transport;"
            "from mallob_py.protocol.balancing import volumes_of;"
            "from mallob_py.protocol.messages import JobEvent;"
            "volumes_of({}, 8); volumes_of({1: JobEvent(1, 1, 8, 1.0, 0.0)}, 8)",
            {"numpy", "pysat", "_hashlib", "mallob_py.service.telemetry.status"},
            id="being a rank with one job at a time",
        ),
    ],
)
def test_what_is_slow_to_import_is_left_until_it_is_needed(doing: str, without: set[str]) -> None:
    code = f"{doing}; import sys; sys.exit(','.join(sorted({without} & set(sys.modules))) or 0)"
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["serve", "--help"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_who_leaves_early_is_no_error(arguments: list[str], unbuffered: str) -> None:
    reader = subprocess.Popen(
        [sys.executable, "-m", "mallob_py.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert reader.stdout is not None
    reader.stdout.close()
    reader.stdout = None
    _, complaints = reader.communicate(timeout=DEADLINE_S)
    assert (reader.returncode, complaints) == (0, b"")


def run_command(
    *arguments: str, stdout: int | IO[bytes] = subprocess.PIPE
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "mallob_py", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=DEADLINE_S,
        check=False,
    )


def assert_one_line(finished: subprocess.CompletedProcess[bytes], word: bytes) -> None:
    assert finished.returncode == 2
    assert finished.stderr.count(b"\n") == 1, finished.stderr
    assert finished.stderr.startswith(b"mallob-py")
    assert word in finished.stderr


@pytest.mark.parametrize(
    "arguments",
    [["solve"], ["report"], ["status", "--config"], ["solve", __file__, "--config"]],
    ids=" ".join,
)
def test_a_name_that_is_too_long_is_one_line(arguments: list[str]) -> None:
    assert_one_line(run_command(*arguments, "x" * 300), b"File name too long")


@pytest.mark.parametrize("name", ["/closed/file", b"/closed/file", None])
def test_a_file_that_may_not_be_touched_is_one_line_wherever_it_shows(
    name: str | bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        if name is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)

    with open(os.devnull, "w") as output, contextlib.redirect_stdout(output):
        assert outcome_of("mallob-py report", work) == 2
    expected = (
        "/closed/file: Permission denied" if name else "the output cannot be written: No space left on device"
    )
    assert capsys.readouterr().err == f"mallob-py report: {expected}\n"


def test_what_is_no_fault_of_a_file_keeps_its_traceback() -> None:
    def work() -> int:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        outcome_of("mallob-py report", work)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        assert_one_line(run_command(*arguments, stdout=full), b"No space left on device")


def test_closed_streams_are_no_error() -> None:
    command = f"{sys.executable} -m mallob_py --version <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], timeout=DEADLINE_S, check=False).returncode == 0


@pytest.mark.parametrize("encoding", ["ascii", "ascii:surrogateescape", "latin-1", "utf-8"])
def test_names_that_the_output_cannot_encode_are_printed_all_the_same(encoding: str) -> None:
    program = (
        "import sys; from mallob_py.cli import main\n"
        "text = '\\u65e5\\ud800'\n"
        "main._dispatch = lambda given: print(text) or print(text, file=sys.stderr) or 0\n"
        "sys.exit(main.main(['status']))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=DEADLINE_S,
    )
    shown = ("\u65e5" if encoding == "utf-8" else r"\u65e5").encode() + rb"\ud800" + b"\n"
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, shown, shown)
