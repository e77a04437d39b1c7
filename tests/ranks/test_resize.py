"""Ranks that leave by order on a running service: the others go on, and nothing of the leaving ranks is
left.
"""

import os
import signal
from pathlib import Path

import pytest
from faults.processes import parent_of
from running import Finished, Running, needs_mpiexec, run, serving
from test_bags_move import APPS, SUM, naps_until
from test_rank_losses import IS_MPICH, await_ranks, client_rank, is_fork_server, ranks_of, workers_of
from waiting import poll_until

SURVIVE = ("--rank-loss", "survive")
pytestmark = [
    needs_mpiexec,
    pytest.mark.slow,
    pytest.mark.skipif(not IS_MPICH, reason="other launchers end all ranks when one does"),
]


def resize(service: Running, change: str) -> Finished:
    return run("resize", change, "--api-dir", service.api_dir)


def test_ranks_leave_by_order_and_jobs_go_on(tmp_path: Path) -> None:
    with serving(tmp_path, *SURVIVE, "--warm", "0", ranks=4) as service:
        running = service.submit("running", application="SLEEP")
        poll_until(lambda: set(workers_of(service).values()) == {0, 1, 2, 3}, "all ranks have a worker")
        ranks = ranks_of(service)
        client = client_rank(service, ranks)
        one = resize(service, "-1")
        assert (one.code, one.err) == (0, "")
        assert one.out.startswith("3 ranks, before 4; it took ")
        await_ranks(service, {rank: pid for rank, pid in ranks.items() if rank != 3})
        assert 3 not in workers_of(service).values()
        two = resize(service, "=1")
        assert (two.code, two.err) == (0, "")
        await_ranks(service, {client: ranks[client]})
        service.interrupt("running")
        assert service.reply(running)["result"]["outcome"] == "interrupted"
        assert service.ask("later", application="NOOP")["result"]["resultcode"] == 10
        assert service.output.count("accepting jobs") == 1
        poll_until(lambda: "has left" in service.output, "it is told")
        assert "was lost" not in service.output
        assert service.stop() == 0
        assert service.processes() == []


def test_a_client_moves_when_its_rank_is_to_leave(tmp_path: Path) -> None:
    with serving(tmp_path, *SURVIVE, ranks=3) as service:
        running = service.submit("running", application="SLEEP")
        held = service.submit("held", application="NOOP", dependencies=["u.running"])
        service.await_event("started")
        ranks = ranks_of(service)
        client = client_rank(service, ranks)
        drained = run("drain", str(client), "--grace", "0", "--api-dir", service.api_dir)
        assert (drained.code, drained.err) == (0, "")
        assert drained.out.startswith("2 ranks, before 3")
        await_ranks(service, {rank: pid for rank, pid in ranks.items() if rank != client})
        assert client_rank(service, ranks) != client
        service.interrupt("running")
        assert service.reply(running)["result"]["outcome"] == "interrupted"
        assert service.reply(held)["result"]["resultcode"] == 10
        assert service.output.count("accepting jobs") == 1
        assert service.stop() == 0


def test_a_bag_job_is_exact_though_ranks_leave_while_it_runs(tmp_path: Path) -> None:
    with serving(tmp_path, *SURVIVE, ranks=4, env=APPS) as service:
        bag = service.submit("bag", application="NAPS", configuration=naps_until(tmp_path / "go"))
        service.await_event("started", index=3)
        assert resize(service, "-1").code == 0
        root = next(event["rank"] for event in service.events("started") if event["index"] == 0)
        drained = run("drain", str(root), "--grace", "0", "--api-dir", service.api_dir)
        assert drained.code == 0 or "has to stay" in drained.err or "no rank" in drained.err, drained.err
        service.await_event("left")  # logged when a worker has handed over its work
        (tmp_path / "go").touch()
        assert service.reply(bag)["result"]["value"] == SUM
        assert service.stop() == 0


def test_ranks_that_all_die_are_started_again_as_many_as_were_ordered(tmp_path: Path) -> None:
    def kill_ranks() -> None:
        forked = {pid for pid in service.processes() if is_fork_server(pid)}
        ranks = set(map(parent_of, forked)) - forked - {0}
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in ranks:
                os.kill(pid, number)

    def starts() -> int:
        return service.output.count("3 ranks, accepting jobs")

    with serving(tmp_path, *SURVIVE, ranks=2) as service:
        assert resize(service, "+1").code == 0
        kill_ranks()
        poll_until(lambda: starts() == 1, lambda: service.output)
        kill_ranks()  # the started ranks do not know the earlier order
        poll_until(lambda: starts() == 2, lambda: service.output)
        assert service.stop() == 0


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    with serving(tmp_path, "--rank-loss", "restart", ranks=2) as service:
        refused = resize(service, "-1")
        assert refused.code == 2
        assert "--rank-loss survive" in refused.err
        assert len(refused.err.splitlines()) == 1
        assert service.ask("later", application="NOOP")["result"]["resultcode"] == 10
        assert service.stop() == 0
    gone = resize(service, "-1")
    assert gone.code == 2
    assert "no service is running" in gone.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_only_who_runs_the_service_may_give_orders(tmp_path: Path) -> None:
    with serving(tmp_path, *SURVIVE, ranks=2) as service:
        (service.api_dir / "orders").chmod(0)
        refused = resize(service, "-1")
        assert "only the user who runs the service" in refused.err
