"""Disks that are full, read-only or lose a file: the service says so in clear words and survives."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import ROOT, needs_mpiexec, poll_until, run, serving, with_apps
from small_disks import fill, small_disk

pytestmark = needs_mpiexec


@contextlib.contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """Make the folder unwritable, even for root, and although files in it are open."""
    try:
        done = subprocess.run(["chattr", "+i", folder], capture_output=True, text=True, check=False)
        problem = done.stderr if done.returncode else ""
    except FileNotFoundError:
        problem = "there is no chattr"
    if problem:
        pytest.skip(f"a folder cannot be made immutable here: {problem}")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", folder], check=True)


def test_on_a_full_disk_replies_wait_until_there_is_room_again(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk") as disk,
        serving(disk.parent / "service", "--api-dir", str(disk)) as service,
    ):
        inbox = disk / "jobs.0/in"
        for number in range(3):
            job = {"user": "u", "name": f"{number}", "application": "SLEEP", "wallclock-limit": "300ms"}
            (inbox / f"~{number}").write_text(json.dumps(job))
        filling = fill(disk)
        for number in range(3):
            (inbox / f"~{number}").rename(inbox / f"{number}.json")
        poll_until(lambda: "cannot write the reply u.0.json: No space left on device" in service.output)
        assert not list((disk / "jobs.0/out").iterdir())
        assert service.process.poll() is None
        filling.unlink()
        for number in range(3):
            assert (
                service.reply(disk / f"jobs.0/out/u.{number}.json")["result"]["outcome"] == "wallclock-limit"
            )
        assert list((disk / "jobs.0/journal").iterdir()) == []
        assert "Traceback" not in service.output
        assert service.stop() == 0


def test_a_job_interrupted_while_the_disk_is_full_is_interrupted_again_after_a_crash(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        with serving(tmp_path / "first", "--api-dir", str(disk)) as service:
            inbox = disk / "jobs.0/in"
            for name, fields in (("job", {"application": "SLEEP"}), ("stop", {"interrupt": True})):
                (inbox / f"~{name}").write_text(json.dumps({"user": "u", "name": "job"} | fields))
            filling = fill(disk)
            (inbox / "~job").rename(inbox / "job.json")
            service.await_event("started")
            (inbox / "~stop").rename(inbox / "stop.json")
            poll_until(lambda: "cannot write the reply u.job.json: No space left" in service.output)
            service.kill()
        filling.unlink()
        with serving(tmp_path / "second", "--api-dir", str(disk)) as service:
            assert service.reply(disk / "jobs.0/out/u.job.json")["result"]["outcome"] == "interrupted"
            assert list((disk / "jobs.0/journal").iterdir()) == []
            assert service.stop() == 0


def test_with_a_full_disk_for_logs_the_service_goes_on_and_says_so_once_per_rank(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        filling = fill(disk)
        with serving(tmp_path / "service", "--log-dir", str(disk), ranks=2) as service:
            for number in range(3):
                assert service.ask(f"{number}", application="NOOP")["result"]["resultcode"] == 10
            poll_until(lambda: "cannot be written: No space left on device" in service.output)
            filling.unlink()
            assert service.ask("later", application="NOOP")["result"]["resultcode"] == 10
            poll_until(lambda: '"later"' in "".join(path.read_text() for path in disk.rglob("*.jsonl")))
            assert service.stop() == 0
            assert service.output.count("No space left on device") <= 2
            assert "Traceback" not in service.output


def test_a_durable_service_takes_jobs_from_clients_that_are_durable_as_well(tmp_path: Path) -> None:
    with serving(tmp_path, "--durable", ranks=2) as service:
        formula = tmp_path / "formula.cnf"
        formula.write_text("p cnf 2 2\n1 2 0\n-1 0\n")
        paths = [service.submit(f"{number}", application="NOOP") for number in range(40)]
        done = run("submit", "--api-dir", service.api_dir, "--wait", formula)
        assert done.code == 0, done.err
        for path in paths:
            assert service.reply(path)["result"]["resultcode"] == 10
        sleeping = service.submit("sleeping", application="SLEEP")
        service.await_event("accepted", name="sleeping")
        service.interrupt("sleeping")
        assert service.reply(sleeping)["result"]["outcome"] == "interrupted"
        poll_until(lambda: not list((service.box() / "journal").iterdir()))
        assert (service.box() / ".durable").exists()
        assert service.stop() == 0


def test_a_damaged_journal_does_not_keep_the_service_from_its_start(tmp_path: Path) -> None:
    journal = tmp_path / "api/jobs.0/journal"
    journal.mkdir(parents=True)
    job = {"user": "u", "name": "whole", "application": "NOOP"}
    (journal / "1.job.broken.json").touch()
    (journal / "2.job.whole.json").write_text(json.dumps(job))
    (journal / "3.reply.u.lost.json").write_bytes(bytes(100))
    (journal / "4.revision.4.first.json").write_bytes(b'{"user"')
    with serving(tmp_path, ranks=2) as service:
        out = service.box() / "out"
        assert service.reply(out / "u.whole.json")["result"]["resultcode"] == 10
        assert "error" in service.reply(out / "broken.json.error.json")
        assert "submit it again" in service.reply(out / "u.lost.json")["error"]["message"]
        poll_until(lambda: not list(journal.iterdir()))
        assert len(list((service.box() / "refused").iterdir())) == 3
        complaints = [line for line in service.output.splitlines() if "is damaged" in line]
        assert len(complaints) == 3, service.output
        assert service.stop() == 0
        assert "Traceback" not in service.output


def test_a_journal_that_becomes_unwritable_holds_jobs_up_and_loses_none(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk") as disk,
        serving(
            tmp_path / "service", "--api-dir", str(disk), env=with_apps(WAIT="rank_apps:Wait")
        ) as service,
    ):
        journal, inbox = disk / "jobs.0/journal", disk / "jobs.0/in"
        for name in ("1", "2"):
            job = {
                "user": "u",
                "name": name,
                "application": "WAIT",
                "configuration": {"until": f"{tmp_path}/go"},
            }
            (inbox / f"~{name}").write_text(json.dumps(job))
        (inbox / "~1").rename(inbox / "1.json")
        service.await_event("started")
        with unwritable(journal):
            (inbox / "~2").rename(inbox / "2.json")
            (tmp_path / "go").touch()
            poll_until(lambda: "cannot write the reply u.1.json" in service.output)
            poll_until(lambda: "cannot move '2.json'" in service.output)
            assert service.process.poll() is None
        for name in ("1", "2"):
            assert service.reply(disk / f"jobs.0/out/u.{name}.json")["result"]["outcome"] == "result"
        assert "Traceback" not in service.output
        assert service.stop() == 0


def test_a_read_only_folder_is_refused_at_start_with_one_line(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        done = run("serve", "-n", "2", "--api-dir", disk / "api")
        assert done.code == 2
        assert "Read-only file system" in done.err
        assert "give another --api-dir" in done.err
        assert "Traceback" not in done.err


def test_ranks_of_a_durable_service_do_not_wait_for_a_disk_that_takes_seconds(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(
        "import os, time\n"
        "flush = os.fsync\n"
        "def slowly(descriptor):\n"
        "    time.sleep(1.5)\n"
        "    flush(descriptor)\n"
        "os.fsync = slowly\n"
    )
    env = {"PYTHONPATH": os.pathsep.join([str(slow), str(ROOT), str(ROOT / "apps")])}
    with serving(tmp_path, "--durable", "--rank-timeout", "3s", ranks=2, env=env) as service:
        # Several flushes in succession, each about half as long as a rank may be silent.
        replies = [service.submit(f"job-{number}", application="NOOP") for number in range(3)]
        for path in replies:
            assert service.reply(path)["result"]["resultcode"] == 10
        assert service.stop() == 0
        assert "does not answer" not in service.output
        assert service.output.count("accepting jobs") == 1
