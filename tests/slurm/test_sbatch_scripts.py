"""The scripts of `slurm/` under a real Slurm with two virtual nodes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from virtual_cluster import Cluster, virtual_cluster, what_is_missing
from waiting import poll_until

from mallob_py.runtime.world.launch import Flavour, find_launcher
from mallob_py.runtime.world.mpi import LaunchError
from mallob_sat.generate import pigeonhole

ROOT = Path(__file__).parents[2]

T = TypeVar("T")


def _what_is_missing() -> str | None:
    try:
        if find_launcher().flavour is not Flavour.HYDRA:
            return "the scripts' settings are for MPICH"
    except LaunchError as error:
        return str(error)
    return what_is_missing()


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_what_is_missing() is not None, reason=str(_what_is_missing())),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with virtual_cluster() as one:
        yield one


class Batch:
    """A folder from which scripts are submitted, and the jobs and services of these scripts."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.api_dir = folder / "api"
        self.box = self.api_dir / "jobs.0"
        self.job = ""
        command = folder / "venv/bin/mallob-py"
        command.parent.mkdir(parents=True)
        path = os.pathsep.join([str(ROOT), str(ROOT / "apps"), os.environ.get("PYTHONPATH", "")])
        command.write_text(
            f'#!/bin/sh\nPYTHONPATH="{path}" exec "{sys.executable}" -m mallob_py.cli.main "$@"\n'
        )
        command.chmod(0o755)
        # All nodes are one machine, but ranks of different nodes must not exchange messages by its memory.
        self._environment = {
            "VENV": str(folder / "venv"),
            "API_DIR": str(self.api_dir),
            "MALLOB_PY_RANKS_PER_HOST": "2",
            "MALLOB_PY_RANK_TIMEOUT": "5s",
        }

    def submit(self, script: str, *options: str, arguments: tuple[str, ...] = ()) -> str:
        said = self.cluster.run(
            "sbatch", "--parsable", *options, ROOT / "slurm" / script, *arguments,
            env=self._environment, cwd=self.folder,
        )  # fmt: skip
        self.job = said.split(";")[0].strip()
        return self.job

    def serve(self, *options: str) -> None:
        self.submit("serve.sbatch", *options)
        poll_until(lambda: "accepting jobs" in self.output, self.story)

    @property
    def output(self) -> str:
        return "".join(path.read_text() for path in self.folder.glob(f"mallob-py*-{self.job}.out"))

    @property
    def state(self) -> str:
        said = self.cluster.run("scontrol", "-o", "show", "job", self.job)
        found = re.search(r"JobState=(\w+)", said)
        assert found
        return found[1]

    def story(self) -> str:
        return f"job {self.job} {self.state}\n{self.output}\n{self.cluster.log()}"

    def await_end(self) -> str:
        def ended() -> str | None:
            state = self.state
            return None if state in ("PENDING", "RUNNING", "SIGNALING", "COMPLETING") else state

        return poll_until(ended, self.story) or ""

    def drop(self, file: str, **fields: Any) -> Path:
        job = {"user": "u", "name": file} | {key.replace("_", "-"): value for key, value in fields.items()}
        hidden = self.box / "in" / f"~{file}.json"
        hidden.write_text(json.dumps(job))
        hidden.rename(hidden.with_name(f"{file}.json"))
        return self.box / "out" / f"u.{job['name']}.json"

    def reply(self, path: Path) -> dict[str, Any]:
        poll_until(path.exists, self.story)
        reply = json.loads(path.read_bytes())
        assert isinstance(reply, dict)
        return reply

    def ranks(self) -> dict[int, str]:
        """Return process of a rank -> its node."""
        found = {}
        for pid in self.cluster.processes():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                values = dict(line.decode(errors="replace").split("=", 1) for line in lines if b"=" in line)
                if b"serve" in words and b"mallob_py.cli.main" in words and "PMI_RANK" in values:
                    found[pid] = values["SLURMD_NODENAME"]
        return found

    def command(self, *words: str) -> str:
        """Run a command of `mallob-py` for this service; return its output."""
        return self.cluster.run(self.folder / "venv/bin/mallob-py", *words, "--api-dir", self.api_dir)

    def logged(self, event: str) -> int:
        texts = [path.read_text() for path in (self.folder / "logs" / self.job).rglob("*.jsonl")]
        return sum(text.count(f'"event":"{event}"') for text in texts)

    def workers(self) -> int:
        """Return the number of busy PEs."""
        return int(json.loads(self.command("status", "--json"))["busy"])

    def check_clean_end(self) -> None:
        assert self.logged("stop") == 4, self.story()
        assert "Traceback" not in self.output
        assert not self.ranks()


@pytest.fixture
def batch(cluster: Cluster, tmp_path: Path) -> Iterator[Batch]:
    one = Batch(cluster, tmp_path)
    yield one
    if one.job:
        cluster.run("scancel", one.job)
        one.await_end()


def test_a_service_on_two_nodes_answers_ends_at_scancel_and_goes_on_in_the_next_job(batch: Batch) -> None:
    formula = batch.folder / "pigeons.cnf"
    formula.write_text(pigeonhole(5).text("pigeons"))
    batch.serve()
    assert sorted(batch.ranks().values()) == ["n1", "n1", "n2", "n2"]
    unsatisfiable = batch.drop("unsatisfiable", files=[str(formula)])
    trivial = batch.drop("trivial", application="NOOP")
    long = batch.drop("long", application="SLEEP", wallclock_limit="1h")
    held = batch.drop("held", application="NOOP", dependencies=["u.long"])
    assert batch.reply(unsatisfiable)["result"]["resultcode"] == 20
    assert batch.reply(trivial)["result"]["resultcode"] == 10
    batch.cluster.run("scancel", batch.job)
    assert batch.await_end() == "CANCELLED"
    batch.check_clean_end()
    assert not long.exists()
    assert len(list((batch.box / "journal").iterdir())) == 2
    batch.serve()
    batch.drop("stop", name="long", interrupt=True)
    assert batch.reply(long)["result"]["outcome"] == "interrupted"
    assert batch.reply(held)["result"]["resultcode"] == 10
    assert list((batch.box / "journal").iterdir()) == []


def test_the_signal_before_the_time_limit_ends_the_service_cleanly(batch: Batch) -> None:
    # Slurm sends the signal up to a minute early, so perhaps soon after the start.
    batch.serve("--time=2", "--signal=B:TERM@75")
    long = batch.drop("long", application="SLEEP", wallclock_limit="1h")
    poll_until(lambda: batch.logged("accepted") or batch.state != "RUNNING", batch.story)
    assert batch.await_end() == "COMPLETED", batch.story()
    batch.check_clean_end()
    assert not long.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs"])
def test_a_rank_that_is_gone_has_the_service_started_again_within_the_job(
    number: signal.Signals, batch: Batch
) -> None:
    batch.serve("--export=ALL,RANK_LOSS=restart")
    path = batch.drop("running", application="SLEEP", wallclock_limit="1h")
    poll_until(lambda: batch.logged("started"), batch.story)
    os.kill(max(batch.ranks()), number)
    poll_until(lambda: batch.output.count("accepting jobs") == 2, batch.story)
    assert "restart 1 of at most 5" in batch.output
    batch.drop("stop", name="running", interrupt=True)
    assert batch.reply(path)["result"]["outcome"] == "interrupted"


def test_a_rank_that_dies_is_survived_by_those_on_its_node_and_on_others(batch: Batch) -> None:
    batch.serve()
    path = batch.drop("running", application="SLEEP", wallclock_limit="1h")
    poll_until(lambda: batch.logged("started"), batch.story)
    os.kill(max(batch.ranks()), signal.SIGKILL)
    poll_until(lambda: batch.logged("generation"), batch.story)
    batch.drop("stop", name="running", interrupt=True)
    assert batch.reply(path)["result"]["outcome"] == "interrupted"
    assert batch.output.count("accepting jobs") == 1, batch.story()


def test_a_node_that_is_lost_is_survived_and_slurm_keeps_the_rest_of_the_allocation(tmp_path: Path) -> None:
    with virtual_cluster() as cluster:
        batch = Batch(cluster, tmp_path)
        batch.serve()
        path = batch.drop("running", application="SLEEP", wallclock_limit="1h")
        poll_until(lambda: batch.logged("started"), batch.story)
        cluster.lose_node("n2")
        poll_until(lambda: batch.logged("generation"), batch.story)
        cluster.run("scontrol", "update", "nodename=n2", "state=down", "reason=lost")
        batch.drop("stop", name="running", interrupt=True)
        assert batch.reply(path)["result"]["outcome"] == "interrupted"
        assert batch.state == "RUNNING"
        assert batch.output.count("accepting jobs") == 1, batch.story()
        cluster.run("scancel", batch.job)
        assert batch.await_end() == "CANCELLED"
        assert not list((batch.box / "journal").iterdir())
        assert "Traceback" not in batch.output


# Without accounting, Slurm changes an allocation only once, hence two tests.


def test_a_service_takes_in_the_node_of_an_allocation_that_has_grown(batch: Batch) -> None:
    batch.serve("--nodes=1")
    assert sorted(batch.ranks().values()) == ["n1", "n1"]
    running = batch.drop("running", application="SLEEP", wallclock_limit="1h")
    poll_until(lambda: batch.workers() == 2, batch.story)
    further = batch.cluster.granted(
        f"--dependency=expand:{batch.job}", "--nodes=1", "--ntasks=2", "--exclude=n1"
    )
    batch.cluster.run("scontrol", "update", f"JobId={further}", "NumNodes=0")
    assert batch.command("resize", "+2", "--hosts", "n2").startswith("4 ranks, before 2")
    poll_until(lambda: batch.workers() == 4, batch.story)
    short = batch.drop("short", application="NOOP")
    assert batch.reply(short)["result"]["resultcode"] == 10
    batch.drop("stop", name="running", interrupt=True)
    assert batch.reply(running)["result"]["outcome"] == "interrupted"
    batch.cluster.run("scancel", batch.job)
    assert batch.await_end() == "CANCELLED"
    assert batch.output.count("accepting jobs") == 1, batch.story()
    assert "Traceback" not in batch.output
    assert not batch.ranks()


def test_an_allocation_gives_back_a_node_that_its_service_has_left(batch: Batch) -> None:
    batch.serve()
    running = batch.drop("running", application="SLEEP", wallclock_limit="1h")
    poll_until(lambda: batch.workers() == 4, batch.story)
    assert batch.command("drain", "n2", "--grace", "0").startswith("2 ranks, before 4")
    batch.cluster.run("scontrol", "update", f"JobId={batch.job}", "NodeList=n1")
    # The node is available for other jobs.
    other = batch.cluster.granted("--exclusive", "--nodes=1", "--nodelist=n2")
    batch.cluster.run("scancel", other)
    short = batch.drop("short", application="NOOP")
    assert batch.reply(short)["result"]["resultcode"] == 10
    batch.drop("stop", name="running", interrupt=True)
    assert batch.reply(running)["result"]["outcome"] == "interrupted"
    assert batch.state == "RUNNING"
    assert set(batch.ranks().values()) == {"n1"}
    batch.cluster.run("scancel", batch.job)
    assert batch.await_end() == "CANCELLED"
    assert batch.output.count("accepting jobs") == 1, batch.story()
    batch.check_clean_end()


def test_a_service_that_cannot_start_says_why_and_is_not_started_again(batch: Batch) -> None:
    batch.api_dir.write_text("a file where the folder should be")
    batch.submit("serve.sbatch")
    assert batch.await_end() == "FAILED"
    assert "give another --api-dir" in batch.output
    assert "restart" not in batch.output


def test_a_formula_is_solved_on_two_nodes(batch: Batch) -> None:
    formula = batch.folder / "pigeons.cnf"
    formula.write_text(pigeonhole(5).text("pigeons"))
    batch.submit("solve.sbatch", arguments=(str(formula),))
    batch.await_end()
    assert "s UNSATISFIABLE" in batch.output, batch.story()
    assert "4 ranks" in batch.output
