"""What the ranks of a real service were told, over a rank that joined and was lost, played again."""

import os
import signal
from pathlib import Path

import pytest
from running import needs_mpiexec, run, serving
from test_growth import joined
from test_rank_losses import IS_MPICH
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
    assert played.out.count(", the same effects") == 4
    for path in logs[:2]:
        assert path.read_text().count("WorldChanged") == 3, "the log goes on over all changes"
    assert len(logs[3].read_text().splitlines()) > 3, "one that has joined is told something, too"
