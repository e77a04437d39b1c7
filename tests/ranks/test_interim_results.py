"""Interim results on real ranks: offers are seen while a job runs, and are its answer if it is ended."""

import json
import os
import pty
import signal
from collections.abc import Iterator

import pytest
from running import DEADLINE_S, Running, needs_mpiexec, poll_until, run, serving, started, with_apps
from waiting import growing

from mallob_py.service.telemetry.status import JobInterim

pytestmark = needs_mpiexec
APPS = with_apps(DESCEND="rank_apps:Descend")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("service"), ranks=4, env=APPS) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.output


def test_an_interrupted_job_is_answered_with_the_best_offer_of_any_worker(service: Running) -> None:
    path = service.submit("descends", application="DESCEND")
    best = JobInterim("cost", True, 5, 3)
    poll_until(lambda: service.interim("descends") == best, "another worker's offer and the root's bound")
    assert "cost 5, at least 3" in service.told("status")
    service.interrupt("descends")
    result = service.reply(path)["result"]
    assert result["outcome"] == "interrupted"
    assert (result["resultcode"], result["resultstring"], result["solution"]) == (10, "FOUND", [5])
    assert (result["complete"], result["value"], result["bound"]) == (False, 5, 3)


def test_a_job_at_its_limit_is_answered_with_the_best_offer(service: Running) -> None:
    for limit_s in growing(1.0):
        limits = {"wallclock_limit": f"{limit_s:g}s", "max_demand": 1}
        result = service.ask(f"limited-{limit_s:g}", application="DESCEND", **limits)["result"]
        assert result["outcome"] == "wallclock-limit"
        if result.get("value") == 7:
            break  # else the limit has come before the last offer
    assert result["resultcode"] == 10
    assert (result["complete"], result["value"], result["bound"]) == (False, 7, 3)


def test_run_prints_the_best_offer_at_its_limit() -> None:
    for limit_s in growing(1.0):
        at_limit = run("run", "DESCEND", "-n", "1", "--time-limit", f"{limit_s:g}", env=APPS)
        result = json.loads(at_limit.out)["result"]
        if result.get("value") == 7:
            break  # else the limit has come before the last offer
    assert (result["outcome"], result["value"], result["complete"]) == ("time-limit", 7, False)


def test_run_prints_the_best_offer_when_a_signal_ends_it() -> None:
    ours, theirs = pty.openpty()
    with started("run", "DESCEND", "-n", "1", env=APPS, stderr=theirs) as (process, _):
        os.close(theirs)
        shown = b""
        while b"cost 7, at least 3" not in shown:
            shown += os.read(ours, 1000)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=DEADLINE_S)
    os.close(ours)
    result = json.loads(out)["result"]
    assert (result["outcome"], result["value"], result["complete"]) == ("interrupted", 7, False)
    assert process.returncode == 128 + signal.SIGTERM
