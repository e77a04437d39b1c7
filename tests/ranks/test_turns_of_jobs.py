"""More jobs than ranks, none of which ends by itself: a formula is answered, and the jobs share evenly."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from faults.processes import command_line
from running import Running, needs_mpiexec, serving, with_apps
from test_bags_move import APPS, SUM, naps_until
from waiting import poll_until

from mallob_py.protocol.config import Config
from mallob_py.service.telemetry.explanation import explain, explain_ended
from mallob_py.service.telemetry.status import look, read_live_status
from mallob_sat.generate import uniform

pytestmark = needs_mpiexec

SAT, UNSAT, UNKNOWN = 10, 20, 0


def stall_s(service: Running) -> float:
    """Return the time by which the longest stay of a worker at work exceeded a turn; busy machines cause such
    stays.
    """
    longest_s, since_s = 0.0, dict[int, float]()
    kinds = ("started", "resumed", "suspended", "stop")
    for event in sorted((one for kind in kinds for one in service.events(kind)), key=lambda one: one["t"]):
        rank, now_s = int(event["rank"]), float(event["t"])
        longest_s = max(longest_s, now_s - since_s.pop(rank, now_s))
        if event["event"] in ("started", "resumed"):
            since_s[rank] = now_s
    return max(0.0, longest_s - Config().slice_s - 0.5)


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
        assert max(used) - min(used) <= 3.0 + stall_s(service), used
        assert min(used) >= 0.5, used
        assert service.stop() == 0
        assert "Traceback" not in service.output


@pytest.mark.parametrize("limit", ["time-limit", "cpu-limit", "wallclock-limit"])
def test_limits_end_jobs_that_have_turns(tmp_path: Path, limit: str) -> None:
    with serving(tmp_path, ranks=1) as service:
        fields = {limit.replace("-", "_"): "2s"}
        paths = {name: service.submit(name, application="SLEEP", **fields) for name in ("one", "two")}
        for name, path in paths.items():
            reply = service.reply(path)
            assert reply["result"]["resultcode"] == UNKNOWN
            stats = reply["stats"]
            bounded = {"time-limit": "used_turns_seconds", "cpu-limit": "used_pe_seconds"}
            assert reply["result"]["outcome"] == limit
            assert stats[bounded.get(limit, "used_wallclock_seconds")] >= 1.9
            if limit != "wallclock-limit":
                assert stats["used_wallclock_seconds"] >= 2.5, "it has not rested"
            if limit == "time-limit":
                assert any("rested" in line for line in explain_ended(name, reply))
            assert stats["used_pe_seconds"] <= stats["used_wallclock_seconds"] + 0.1


def test_a_formula_is_answered_where_more_jobs_go_on_for_ever_than_can_be_kept(tmp_path: Path) -> None:
    """Jobs that have had their turn are given up for the formula, and begin anew later."""
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


def _reason(service: Running, identity: str) -> str:
    look(service.api_dir)
    status = read_live_status(service.api_dir)
    job = None if status is None else status.job(identity, 0)
    return "" if status is None or job is None else "\n".join(explain(status, job))


def test_a_job_from_a_pipe_waits_where_such_jobs_hold_all_places_and_others_do_not(tmp_path: Path) -> None:
    """Jobs that read a pipe are never given up; without residents, each PE keeps one such job."""
    hard = uniform(600, 2556, seed=1).text("far too hard")
    pipes = [tmp_path / f"pipe{number}" for number in range(3)]
    with serving(tmp_path / "service", "--residents", "0", ranks=1) as service:
        replies = []
        for number, pipe in enumerate(pipes):
            os.mkfifo(pipe)
            replies.append(service.submit(f"piped{number}", files=[str(pipe)]))
            pipe.write_text(hard)
            if number == 0:
                service.await_event("started")
        for number in (1, 2):
            poll_until(lambda held=number: "1 such job at work" in _reason(service, f"u.piped{held}"), "held")
        assert service.ask("satisfiable", literals=[1, 2, 0, -1, 0])["result"]["resultcode"] == SAT
        service.interrupt("piped2")
        assert service.reply(replies[2])["result"]["outcome"] == "interrupted"
        service.interrupt("piped0")
        assert service.reply(replies[0])["result"]["outcome"] == "interrupted"
        job = service.await_event("accepted", name="piped1")["job"]
        service.await_event("started", job=job)
        service.interrupt("piped1")
        assert service.reply(replies[1])["stats"]["used_pe_seconds"] > 0.0
        assert service.stop() == 0
        assert "Traceback" not in service.output


def test_a_tree_whose_last_worker_comes_and_goes_with_each_turn_reduces_on(tmp_path: Path) -> None:
    """Of five PEs, the job deserves two and a half: always two PEs, and a third PE in every other turn."""
    apps = with_apps(folder="tests/runtime/workers", ALLREDUCE="tree_apps:AllReduce")
    with serving(tmp_path / "service", ranks=5, env=apps) as service:
        names = [f"endless{number}" for number in range(5)]
        endless = [service.submit(name, application="SLEEP", max_demand=1) for name in names]
        for name in names:
            service.await_event("started", job=service.await_event("accepted", name=name)["job"])
        folder = tmp_path / "sizes"
        folder.mkdir()
        configuration = {"sizes": [2, 3, 2, 3, 2, 3], "folder": str(folder)}
        reply = service.ask("tree", application="ALLREDUCE", configuration=configuration, priority=5.0)
        assert reply["result"]["resultcode"] == 10, reply
        assert reply["result"]["solution"] == [0, 1, 2]
        assert not any(path.exists() for path in endless)
        for name in names:
            service.interrupt(name)
        for path in endless:
            service.reply(path)
        assert service.stop() == 0
        assert "Traceback" not in service.output


def test_a_bag_whose_last_worker_comes_and_goes_with_each_turn_counts_all(tmp_path: Path) -> None:
    """The last worker gives borrowed tasks back, or does them later."""
    with serving(tmp_path / "service", "--slice", "100ms", ranks=3, env=APPS) as service:
        names = [f"endless{number}" for number in range(3)]
        endless = [service.submit(name, application="SLEEP", max_demand=1) for name in names]
        for name in names:
            service.await_event("started", job=service.await_event("accepted", name=name)["job"])
        configuration = naps_until(tmp_path / "go")
        path = service.submit("bag", application="NAPS", configuration=configuration, priority=5.0)
        job = service.await_event("accepted", name="bag")["job"]

        def adopted() -> list[dict[str, Any]]:
            return [one for one in service.events("adopted") if (one["job"], one["index"]) == (job, 1)]

        poll_until(lambda: len(adopted()) >= 2, "its second worker has come again")
        (tmp_path / "go").touch()
        assert service.reply(path)["result"]["value"] == SUM
        for name in names:
            service.interrupt(name)
        for path in endless:
            service.reply(path)
        assert service.stop() == 0
        assert "Traceback" not in service.output


def _begun(folder: Path) -> list[int]:
    """Return the processes that have begun to work for a job."""
    return [int(path.name) for path in folder.iterdir()]


def _of(service: Running, event: str, name: str) -> list[dict[str, Any]]:
    job = service.await_event("accepted", name=name)["job"]
    return [one for one in service.events(event) if one["job"] == job]


def test_a_job_that_goes_from_rank_to_rank_keeps_its_process(tmp_path: Path) -> None:
    """Of four jobs on two ranks, one sometimes moves, and does not begin anew on the other rank."""
    apps = with_apps(BEGIN="rank_apps:Begin")
    names = ["one", "two", "three", "four"]  # the jobs still take turns after the first job has ended
    folders = {name: tmp_path / name for name in names}
    with serving(tmp_path / "service", "--slice", "100ms", ranks=2, env=apps) as service:
        for name, folder in folders.items():
            folder.mkdir()
            seconds = {"seconds": 0.5} if name == "one" else {}
            configuration = {"folder": str(folder), **seconds}
            service.submit(name, application="BEGIN", configuration=configuration, max_demand=1)
        poll_until(lambda: len(service.events("given")) >= 6, "processes have gone on at other ranks")
        reply = service.reply(service.box() / "out" / "u.one.json")
        assert reply["result"]["resultcode"] == SAT
        assert reply["result"]["solution"][0] in _begun(folders["one"])
        assert reply["stats"]["used_cpu_seconds"] >= 0.5
        for name in names[1:]:
            service.interrupt(name)
            service.reply(service.box() / "out" / f"u.{name}.json")
        for name in names:
            anew = len(_of(service, "started", name)) - len(_of(service, "given", name))
            assert len(_begun(folders[name])) <= 1 + max(1, anew), "one that has moved has begun anew"
        assert service.stop() == 0
        assert "Traceback" not in service.output


def test_bags_that_go_from_rank_to_rank_are_saved_when_the_service_is_stopped(tmp_path: Path) -> None:
    """A rank whose forked process runs a root of another rank ends only after this root has saved."""
    names = ["one", "two", "three", "four", "five"]
    with serving(tmp_path / "service", "--slice", "100ms", ranks=4, env=APPS) as service:
        for name in names:
            configuration = naps_until(tmp_path / "go")
            service.submit(name, application="NAPS", configuration=configuration, max_demand=1)
        poll_until(lambda: len(service.events("given")) >= 10, "processes have gone on at other ranks")
        assert service.stop() == 0
        assert not service.events("crashed")
    (tmp_path / "go").touch()
    restored = 0
    with serving(tmp_path / "service", ranks=4, env=APPS) as service:
        for name in names:
            result = service.reply(service.box() / "out" / f"u.{name}.json")["result"]
            assert result["value"] == SUM
            restored += result["tasks_restored"]
        assert restored > 0
        assert service.stop() == 0
        assert "Traceback" not in service.output


def test_when_a_rank_is_lost_no_process_is_left_that_it_had_or_had_forked(tmp_path: Path) -> None:
    apps = with_apps(BEGIN="rank_apps:Begin")
    names = [f"endless{number}" for number in range(5)]
    options = ("--slice", "100ms", "--rank-loss", "survive")
    with serving(tmp_path / "service", *options, ranks=4, env=apps) as service:
        for name in names:
            (folder := tmp_path / name).mkdir()
            configuration = {"folder": str(folder)}
            service.submit(name, application="BEGIN", configuration=configuration, max_demand=1)
        poll_until(lambda: len(service.events("given")) >= 4, "processes have gone on at other ranks")
        os.kill(_rank_process(service, 3), signal.SIGKILL)
        lost_s = float(service.await_event("generation", gone=[3])["t"])

        def go_on() -> bool:
            turns = service.events("started") + service.events("resumed")
            jobs = [event["job"] for event in turns if float(event["t"]) > lost_s + 1.0]
            return len({*jobs}) == len(names)

        poll_until(go_on, "all jobs have turns again")
        for name in names:
            service.interrupt(name)
            assert (
                service.reply(service.box() / "out" / f"u.{name}.json")["result"]["outcome"] == "interrupted"
            )
        begun = {pid for name in names for pid in _begun(tmp_path / name)}
        poll_until(lambda: not begun & set(service.processes()), "no process of a job is left")
        assert service.stop() == 0


def _rank_process(service: Running, number: int) -> int:
    return next(pid for pid in service.processes() if f": rank {number}" in command_line(pid))
