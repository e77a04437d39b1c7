"""Shells complete all commands and options of the table of options, and the manual page describes them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from mallob_py.cli import main as main_module
from mallob_py.cli.option_sources import table
from mallob_py.cli.options import COMMANDS


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main_module.main(["completion", "bash"]) == 0
    path = tmp_path / "completion"
    path.write_text(capsys.readouterr().out)
    return path


def completed(script: Path, *words: str) -> list[str]:
    """Return bash's completions of the last word."""
    line = " ".join(f"'{word}'" for word in words)
    program = f"""
        source {script}
        COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}
        function_name=$(complete -p mallob-py | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        $function_name mallob-py '{words[-1]}' '{words[-2]}'
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", program], capture_output=True, text=True, check=True, cwd=script.parent
    )
    return [word.strip() for word in done.stdout.split("\n") if word.strip()]


def test_commands_are_completed(script: Path) -> None:
    assert completed(script, "mallob-py", "s") == [
        "solve",
        "serve",
        "submit",
        "status",
        "simulate",
        "service",
    ]
    assert completed(script, "mallob-py", "batch", "s") == ["simulate", "serve", "submit"]
    assert completed(script, "mallob-py", "batch", "e") == ["explain", "experiment"]


def test_options_are_completed(script: Path) -> None:
    flags = {flag for spec, _ in table(COMMANDS["serve"][1]).values() for flag in spec.flags}
    wanted = {flag for flag in flags if flag.startswith("--re")}
    assert set(completed(script, "mallob-py", "serve", "--re")) == wanted
    assert "--restarts" in wanted


def test_values_are_completed(script: Path) -> None:
    assert completed(script, "mallob-py", "serve", "--rank-loss", "su") == ["survive"]
    assert completed(script, "mallob-py", "top", "--sort", "vo") == ["volume"]
    assert completed(script, "mallob-py", "completion", "z") == ["zsh"]


def test_files_are_completed(script: Path) -> None:
    (script.parent / "formula.cnf").touch()
    (script.parent / "folder").mkdir()
    assert {"formula.cnf", "folder"} <= {
        word.rstrip("/") for word in completed(script, "mallob-py", "check-proof", "fo")
    }
    assert [word.rstrip("/") for word in completed(script, "mallob-py", "status", "--api-dir", "fo")] == [
        "folder"
    ]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_the_script_for_zsh_is_a_script_of_zsh(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(["completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert script.startswith("#compdef mallob-py")
    subprocess.run(["zsh", "-n"], input=script, text=True, check=True)


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(["completion", "fish"]) == 2
    assert "'fish' is none of bash, zsh" in capsys.readouterr().err


def test_the_manual_page_tells_of_all_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(["man"]) == 0
    page = capsys.readouterr().out
    assert page.startswith('.TH MALLOB\\-PY "1"')
    plain = page.replace("\\-", "-").replace("\\fB", "").replace("\\fR", "").replace("\\fI", "")
    for command, (summary, options_class) in COMMANDS.items():
        assert f"mallob-py {command}" in plain
        assert summary in plain
        for spec, _ in table(options_class).values():
            assert (spec.flags[-1] if spec.flags else spec.metavar) in plain
    assert "EXIT STATUS" in plain


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff")
def test_groff_has_nothing_to_complain_of_the_manual_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(["man"]) == 0
    page = capsys.readouterr().out
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-ww"], input=page, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert "check-proof" in done.stdout
