"""The operator's command (`--on-end`) runs for each job that ends."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from running import needs_mpiexec, poll_until, serving

from mallob_py.cli.on_end import OnEnd
from mallob_py.service.telemetry.history import HistoryWriter
from mallob_py.service.telemetry.status import EndedJob

pytestmark = needs_mpiexec


def test_each_job_that_ends_has_the_command_run_once(tmp_path: Path) -> None:
    command = f'cat > "{tmp_path}/$MALLOB_PY_JOB.$MALLOB_PY_OUTCOME"; echo told >> {tmp_path}/times'
    env = {"BAD": str(tmp_path / "bad")}
    with serving(tmp_path, "--on-end", command, ranks=2, env=env) as service:
        service.ask("one", application="NOOP")
        service.ask("$(touch $BAD)", application="NOOP")
        service.ask("two", application="NOOP", files=["/no/such/file"])
        times = tmp_path / "times"
        poll_until(lambda: times.exists() and times.read_text().count("told") >= 3, "three jobs are told")
        assert service.stop() == 0
        poll_until(lambda: service.processes() == [], "nothing is left")
        assert times.read_text().count("told") == 3
        told = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("u.*")}
        assert told["u.one.result"]["name"] == "one"
        assert "u.$(touch $BAD).result" in told
        assert not (tmp_path / "bad").exists()
        assert (tmp_path / "u.two.refused").exists()


def test_the_line_of_a_job_with_a_long_error_is_whole(tmp_path: Path) -> None:
    told = tmp_path / "told"
    ends = OnEnd(tmp_path / "api", f"cat > {told}.part; mv {told}.part {told}")
    writer = HistoryWriter(tmp_path / "api" / "jobs.0")
    (tmp_path / "api" / "jobs.0").mkdir(parents=True)
    writer.add(EndedJob(1, "u", "long", "failed", 1.0, error="\N{SNOWMAN}\n" * 100_000))
    writer.flush()
    poll_until(lambda: ends.look() or told.exists(), "the command has run")
    assert len(json.loads(told.read_text())["error"]) == 200_000
    poll_until(lambda: ends.look() or ends.is_idle, "it has ended")


def test_a_job_whose_name_no_environment_can_hold_keeps_no_other_from_its_command(tmp_path: Path) -> None:
    told = tmp_path / "told"
    ends = OnEnd(tmp_path / "api", f"echo $MALLOB_PY_JOB >> {told}")
    (tmp_path / "api" / "jobs.0").mkdir(parents=True)
    writer = HistoryWriter(tmp_path / "api" / "jobs.0")
    for number, name in enumerate(("a\0b", "n" * 1_000_000, "other")):
        writer.add(EndedJob(number, "u", name, "result", 1.0))
    writer.flush()
    poll_until(lambda: ends.look() or ends.is_idle, "all that can be run has ended")
    assert told.read_text() == "u.other\n"


def test_a_command_that_fails_is_told(tmp_path: Path) -> None:
    with serving(tmp_path, "--on-end", "exit 3", ranks=1) as service:
        service.ask("one", application="NOOP")
        poll_until(lambda: "the command ended with code 3 for u.one" in service.output, "it is told")
        assert service.stop() == 0


def test_only_jobs_that_come_into_the_history_later_have_the_command_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreadable history, a file that is missing while it is renamed, and a clock set back do no harm."""
    told = tmp_path / "told"
    (folder := tmp_path / "api" / "jobs.0").mkdir(parents=True)
    writer = HistoryWriter(folder)

    def end(number: int, ended: float) -> None:
        writer.add(EndedJob(number, "u", f"job-{number}", "result", ended))
        writer.flush()

    end(1, 1000.0)
    ends = OnEnd(tmp_path / "api", command := f"echo $MALLOB_PY_JOB >> {told}")
    end(2, 1001.0)
    end(3, 10.0)
    ends.look()
    with monkeypatch.context() as trouble:
        trouble.setattr(Path, "glob", Mock(side_effect=OSError))
        ends.look()
        late = OnEnd(tmp_path / "api", command)
    ends.look()
    late.look()
    assert late.is_idle
    (folder / "history.jsonl").rename(folder / "hidden")
    ends.look()
    (folder / "hidden").rename(folder / "history.1.jsonl")
    end(4, 11.0)
    poll_until(lambda: ends.look() or ends.is_idle, "all commands have run")
    assert sorted(told.read_text().split()) == ["u.job-2", "u.job-3", "u.job-4"]
