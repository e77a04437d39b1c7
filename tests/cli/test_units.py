"""The systemd units that `mallob-py service install` writes."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest
from other_user import folder_for_all, needs_root

from mallob_py.cli import options, units
from mallob_py.cli.client_options import ServiceInstallOptions
from mallob_py.cli.main import main
from mallob_py.cli.option_sources import OptionError
from mallob_py.cli.rank_options import ServeOptions
from mallob_py.service.jobs.users import read_user_rules


def parsed(*words: str) -> ServiceInstallOptions:
    told = options.parse("service install", words, {})
    assert isinstance(told, ServiceInstallOptions)
    return told


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "say one of --user and --system"),
        (["--user", "--system"], "say one of --user and --system"),
        (["--system"], "--system needs --account NAME"),
        (["--user", "--account", "a"], "--account goes with --system"),
    ],
)
def test_contradictions_are_told(words: list[str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        parsed(*words)


def test_a_unit_of_the_system_is_restricted_to_the_folders_of_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "my 100%.toml"
    config.write_text('api-dir = "/data/api"\n[serve]\nlog-dir = "/data/l ogs"\nresults-dir = "/r"\n')
    text = units.unit_text(parsed("--system", "--account", "mallob", "--config", str(config)))
    assert f'serve --config "{tmp_path}/my 100%%.toml" --api-dir /data/api\n' in text
    assert 'ReadWritePaths=-/data/api "-/data/l ogs" -/r -/tmp -/var/tmp\n' in text
    for line in ("User=mallob", "ProtectSystem=strict", "LimitNOFILE=65536", "Restart=on-failure"):
        assert f"\n{line}\n" in text


def test_a_unit_of_a_user_needs_no_privileges() -> None:
    text = units.unit_text(parsed("--user", "--web"))
    assert "Protect" not in text
    assert "User=" not in text
    assert " web --api-dir " in text
    assert "WantedBy=default.target" in text


@pytest.mark.parametrize("why", [subprocess.TimeoutExpired("verify", 60), BlockingIOError(11, "no process")])
def test_a_check_that_cannot_be_made_finds_no_fault(
    why: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(subprocess, "run", Mock(side_effect=why))
    assert main(["service", "install", "--user"]) == 0
    told = capsys.readouterr()
    assert "systemctl --user enable --now mallob-py\n" in told.out
    assert told.err == ""


@needs_root
def test_an_account_must_be_able_to_run_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with folder_for_all() as place:
        monkeypatch.setattr(units, "_SYSTEM_FOLDER", place)
        monkeypatch.setattr(units, "_verified", lambda path, options: [])
        program = place / "python"
        program.write_text("#!/bin/sh\necho No module named mallob_py >&2; exit 1\n")
        monkeypatch.setattr(units, "python", lambda: [str(program)])
        for mode, why in ((0o700, "Permission denied"), (0o755, "No module named mallob_py")):
            program.chmod(mode)
            assert main(["service", "install", "--system", "--account", "nobody"]) == 2
            assert f"--account nobody cannot run {program} ({why}); install" in capsys.readouterr().err
        program.write_text("#!/bin/sh\n")
        assert main(["service", "install", "--system", "--account", "nobody"]) == 0
        assert (place / "mallob-py.service").exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("scope", ["--user", "--system"])
def test_systemd_finds_nothing_wrong(scope: str, tmp_path: Path) -> None:
    account = ["--account", "daemon"] if scope == "--system" else []
    unit = tmp_path / "mallob-py-try.service"
    unit.write_text(units.unit_text(parsed(scope, *account, "--api-dir", f"{tmp_path}/a b$c")))
    env = dict(os.environ) | {"XDG_RUNTIME_DIR": str(tmp_path), "SYSTEMD_LOG_LEVEL": "notice"}
    command = ["systemd-analyze", scope, "verify", str(unit)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert not [line for line in done.stderr.splitlines() if unit.name in line], done.stderr


def test_a_unit_is_written_and_replaced_but_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    unit = tmp_path / "systemd/user/mallob-py.service"
    assert main(["service", "install", "--user", "--api-dir", "/one"]) == 0
    assert "systemctl --user enable --now mallob-py\n" in capsys.readouterr().out
    assert main(["service", "install", "--user", "--api-dir", "/two"]) == 0
    assert "--api-dir /two" in unit.read_text()
    unit.write_text("[Unit]\n")
    assert main(["service", "install", "--user"]) == 2
    assert "is not ours" in capsys.readouterr().err
    assert unit.read_text() == "[Unit]\n"
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/nowhere")
    assert main(["service", "install", "--user"]) == 2
    assert capsys.readouterr().err.endswith("No such file or directory; --print shows the unit\n")
    assert main(["service", "install", "--user", "--unit", "../x"]) == 2
    assert main(["service", "install", "--user", "--print", "--api-dir", "a\nb"]) == 2


def test_the_configuration_of_the_document_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PMI_SIZE", raising=False)
    text = (Path(__file__).parents[2] / "docs/for-a-group.md").read_text()
    for name, content in re.findall(r"^```toml\n# (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(content)
    serve = options.parse("serve", ["--config", str(tmp_path / "mallob-py.toml")], {})
    assert isinstance(serve, ServeOptions)
    assert (serve.keep_s, serve.pes, serve.ranks) == (30 * 86400.0, None, 2)
    assert serve.users == "/etc/mallob-py-users.toml"
    rules = read_user_rules(tmp_path / "mallob-py-users.toml")
    assert rules.of("alice").weight == 2.0
    unit = units.unit_text(parsed("--system", "--account", "m", "--config", str(tmp_path / "mallob-py.toml")))
    assert "ReadWritePaths=-/data/api -/data/logs -/tmp" in unit
