"""Bags of tasks on real ranks: results are exact while workers come, go and die."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import ROOT, Running, needs_mpiexec, poll_until, serving

from mallob_py.service.telemetry.status import JobProgress, read_status

pytestmark = needs_mpiexec


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("service"), ranks=4) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.output


def test_the_count_is_exact_while_others_take_workers_away(service: Running) -> None:
    takers = itertools.count()
    for number in range(5):  # again if the count was found before a worker was taken
        queens = service.submit(f"breathing{number}", application="QUEENS", configuration={"n": 15})
        job = service.await_event("accepted", name=f"breathing{number}")["job"]
        while not queens.exists():
            taker = f"taker{next(takers)}"
            service.ask(taker, application="SLEEP", priority=3.0, wallclock_limit="50ms")
        assert service.reply(queens)["result"]["value"] == 2_279_184
        if any(event["job"] == job and event["index"] > 0 for event in service.events("suspended")):
            return
    pytest.fail("no worker was taken away")


def test_its_progress_is_told_while_it_runs(service: Running) -> None:
    path = service.submit("endless", application="QUEENS", configuration={"n": 25})

    def progress() -> JobProgress | None:
        status = read_status(service.api_dir)
        job = None if status is None else status.job("u.endless", client=0)
        return None if job is None else job.progress

    first = poll_until(progress, "the root tells")
    assert (first.unit, first.total) == ("tasks", None)
    poll_until(lambda: (now := progress()) and now.done > first.done and now.rate > 0, "it goes on")
    service.interrupt("endless")
    assert service.reply(path)["result"]["outcome"] == "interrupted"


def test_a_service_has_workers_write_down_what_they_lend(tmp_path: Path) -> None:
    folder = tmp_path / "loans"
    with serving(tmp_path, "--log-loans", str(folder), "--preload", "QUEENS", ranks=2) as service:
        replies = [service.ask(f"q{n}", application="QUEENS", configuration={"n": n}) for n in (9, 10)]
        assert service.stop() == 0
    logs = [path.read_text().splitlines() for path in folder.iterdir()]
    ends = [entry for log in logs for entry in map(json.loads, log) if entry["what"] == "finished"]
    assert sorted(end["done"] for end in ends) == [reply["result"]["tasks"] for reply in replies]
    checked = subprocess.run([sys.executable, ROOT / "scripts" / "loans.py", folder], check=False)
    assert checked.returncode == 0
