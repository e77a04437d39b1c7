"""More jobs than ranks, none of which ends by itself: a formula is answered, and the jobs share evenly."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import needs_mpiexec, serving
from waiting import poll_until

pytestmark = needs_mpiexec

SAT, UNSAT, UNKNOWN = 10, 20, 0


def test_a_formula_is_answered_while_more_jobs_than_ranks_go_on_for_ever(tmp_path: Path) -> None:
    with serving(tmp_path, ranks=2) as service:
        names = ["one", "two", "three", "four"]
        endless = {name: service.submit(name, application="SLEEP") for name in names}
        for name in names:
            job = service.await_event("accepted", name=name)["job"]
            service.await_event("started", job=job)
        assert service.ask("satisfiable", literals=[1, 2, 0, -1, 0])["result"]["resultcode"] == SAT
        assert service.ask("contradiction", literals=[1, 0, -1, 0])["result"]["resultcode"] == UNSAT
        assert not any(path.exists() for path in endless.values())

        def turns() -> int:
            return min(
                sum(event["job"] == job for event in service.events("resumed"))
                for job in (service.await_event("accepted", name=name)["job"] for name in names)
            )

        poll_until(lambda: turns() >= 4, "each job has had some turns")
        for name in names:
            service.interrupt(name)
        used = [service.reply(endless[name])["stats"]["used_pe_seconds"] for name in names]
        assert max(used) - min(used) <= 3.0, used
        assert min(used) >= 0.5, used
        assert service.stop() == 0
        assert "Traceback" not in service.output


@pytest.mark.parametrize("limit", ["cpu-limit", "wallclock-limit"])
def test_limits_end_jobs_that_have_turns(tmp_path: Path, limit: str) -> None:
    with serving(tmp_path, ranks=1) as service:
        fields = {limit.replace("-", "_"): "2s"}
        paths = [service.submit(name, application="SLEEP", **fields) for name in ("one", "two")]
        for path in paths:
            reply = service.reply(path)
            assert reply["result"]["resultcode"] == UNKNOWN
            stats = reply["stats"]
            assert stats["used_pe_seconds"] <= 2.5
            assert stats["used_wallclock_seconds"] >= 1.9


def test_a_formula_is_answered_where_more_jobs_go_on_for_ever_than_can_be_kept(tmp_path: Path) -> None:
    """Those that have had their turn are given up for it, and begin anew later."""
    names = [f"endless{number}" for number in range(22)]
    with serving(tmp_path, "--residents", "0", ranks=1) as service:
        endless = {name: service.submit(name, application="SLEEP") for name in names}
        first = service.await_event("given up")["job"]
        assert service.ask("satisfiable", literals=[1, 2, 0, -1, 0])["result"]["resultcode"] == SAT
        poll_until(
            lambda: sum(event["job"] == first for event in service.events("started")) >= 2,
            "a job that was given up has begun anew",
        )
        assert not any(path.exists() for path in endless.values())
        for name in names:
            service.interrupt(name)
        for name in names:
            stats = service.reply(endless[name])["stats"]
            assert stats["used_pe_seconds"] <= stats["used_wallclock_seconds"] + 0.1
        assert service.stop() == 0
        assert "Traceback" not in service.output
