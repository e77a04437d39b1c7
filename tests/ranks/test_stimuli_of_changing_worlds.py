"""Replays of a real service's recorded stimuli, while ranks join and are lost."""

import json
import os
import signal
from pathlib import Path

import pytest
from running import needs_mpiexec, run, serving
from test_growth import joined
from test_incremental import Chain
from test_rank_losses import IS_MPICH, await_generation
from test_resize import resize
from waiting import poll_until

pytestmark = [
    needs_mpiexec,
    pytest.mark.slow,
    pytest.mark.skipif(not IS_MPICH, reason="other launchers end all ranks when one dies"),
]


def test_logs_of_a_service_that_has_gained_and_lost_a_rank_lead_to_the_same_effects(tmp_path: Path) -> None:
    folder = tmp_path / "stimuli"
    options = ("--rank-loss", "survive", "--log-stimuli", str(folder), "--warm", "0")
    with serving(tmp_path, *options, ranks=2) as service:
        assert resize(service, "+1").code == 0
        assert service.ask("with three", application="NOOP")["result"]["resultcode"] == 10
        os.kill(joined(service)[2], signal.SIGKILL)
        poll_until(lambda: "generation 3" in service.output)
        assert service.ask("with two", application="NOOP")["result"]["resultcode"] == 10
        assert resize(service, "+1").code == 0
        assert service.ask("with another", application="NOOP")["result"]["resultcode"] == 10
        assert service.stop() == 0
    logs = sorted(folder.rglob("*.stimuli.jsonl"))
    assert [path.name for path in logs] == [f"{rank}.stimuli.jsonl" for rank in range(4)]
    played = run("simulate", "--replay", str(folder))
    assert played.code == 0, played.out
    assert played.out.count(", the same effects") == 5
    for path in logs[:2]:
        assert path.read_text().count("WorldChanged") == 3, "the log goes on over all changes"
    assert len(logs[3].read_text().splitlines()) > 3, "one that has joined is told something, too"


def test_logs_of_desks_that_have_lost_a_rank_lead_to_the_same_orders(tmp_path: Path) -> None:
    """The run has users with limits, a chain, dependencies, interruptions, a lost client and a drained
    rank.
    """
    folder, rules = tmp_path / "stimuli", tmp_path / "users.toml"
    rules.write_text("[default]\nactive-jobs = 6\n[users.u]\nweight = 2.0\n")
    options = ("--rank-loss", "survive", "--log-stimuli", str(folder), "--users", str(rules), "--warm", "0")
    with serving(tmp_path, *options, "--clients", "2", ranks=4) as service:
        chains = [Chain(service, "chain"), Chain(service, "more", seed=1)]
        for chain in chains:
            chain.ask()
        long = [service.submit(f"long{client}", client, application="SLEEP") for client in range(2)]
        other = {"user": "v", "name": "other", "application": "SLEEP", "wallclock-limit": "2s"}
        service.drop("other.json", json.dumps(other))
        held = [
            service.submit(f"held{client}", client, application="NOOP", dependencies=[f"u.long{client}"])
            for client in range(2)
        ]
        needing = service.submit("needing", 1, application="NOOP", after_ok=["u.long1"])
        many = [service.submit(f"n{number}", number % 2, application="NOOP") for number in range(20)]
        assert {service.reply(path)["result"]["resultcode"] for path in many} == {10}
        holder = int((service.box(1) / ".lock").read_text().split()[0])
        os.kill(holder, signal.SIGKILL)
        await_generation(service, 3)
        for chain in chains:
            chain.ask()
        assert resize(service, "-1").code == 0
        service.interrupt("nobody", 1)
        for client in range(2):
            service.interrupt(f"long{client}", client)
            assert service.reply(long[client])["result"]["outcome"] == "interrupted"
            assert service.reply(held[client])["result"]["resultcode"] == 10
        assert service.reply(service.box() / "out" / "v.other.json")["result"]["outcome"] == "wallclock-limit"
        assert service.reply(needing)["error"]["field"] == "after-ok"
        assert service.stop() == 0
    logs = sorted(folder.rglob("*.desk.jsonl"))
    assert {path.name.split(".")[1] for path in logs} == {"0", "1"}
    assert len(logs) >= 3, "the heir of client 1 has a log as well"
    played = run("simulate", "--replay", str(folder))
    assert played.code == 0, played.out
    assert played.out.count(", the same effects") == len(logs) + 4
    orders = "".join(path.read_text() for path in logs)
    for name in ("begin", "end_lacking", "interrupt", "set_terms", "tell_clients"):
        assert f'"order","depth":1,"name":"{name}"' in orders, name
    assert '"call","depth":2' in orders
