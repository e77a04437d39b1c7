"""`mallob-py batch serve --slurm` in an allocation of a real Slurm with two virtual nodes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gated_bags
import pytest
from virtual_cluster import CPUS_PER_NODE, Cluster, virtual_cluster, what_is_missing
from waiting import poll_until

from mallob_py.batch.live import requests
from mallob_py.batch.live.machines import cores_by_nodes
from mallob_py.batch.live.nodes import NodeState

ROOT = Path(__file__).parents[2]


def test_groups_of_nodes_have_as_many_cores_as_slurm_says() -> None:
    said = "JobId=3 X=1\n   NodeList=n[1-3]\n     Nodes=n[1-2] CPU_IDs=0-3,6 Mem=0\n     Nodes=n3 CPU_IDs=2\n"
    assert cores_by_nodes(said) == [("n[1-2]", 5), ("n3", 1)]


def test_outside_an_allocation_the_scheduler_says_what_it_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mallob_py.cli.main"]
    command += ["batch", "serve", "--slurm", "--dir", str(tmp_path)]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    assert "--slurm works only inside an allocation" in done.stderr


needs_slurm = pytest.mark.skipif(what_is_missing() is not None, reason=str(what_is_missing()))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with virtual_cluster() as one:
        yield one


class Batch:
    """The scheduler in an allocation, as slurm/batch.sbatch starts it."""

    def __init__(self, cluster: Cluster, folder: Path, nodes: int) -> None:
        self.cluster = cluster
        self.folder = folder
        self.batch_dir = folder / "batch"
        command = folder / "venv/bin/mallob-py"
        command.parent.mkdir(parents=True)
        command.write_text(
            f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m mallob_py.cli.main "$@"\n'
        )
        command.chmod(0o755)
        settings = {"VENV": str(folder / "venv"), "BATCH_DIR": str(self.batch_dir), "POLICY": "fcfs"}
        said = cluster.run(
            "sbatch", "--parsable", f"--nodes={nodes}", ROOT / "slurm/batch.sbatch", env=settings, cwd=folder
        )
        self.job = said.split(";")[0].strip()
        poll_until(self.is_up, self.story)

    def is_up(self) -> bool:
        try:
            requests.ask(self.batch_dir, requests.Nodes())
        except requests.LiveError:
            return False
        return True

    def story(self) -> str:
        output = "".join(path.read_text() for path in self.folder.glob("mallob-py-batch-*.out"))
        return f"{output}\n{self.cluster.log()}"

    def nodes(self) -> dict[str, requests.NodeLine]:
        answer = requests.ask(self.batch_dir, requests.Nodes())
        assert isinstance(answer, requests.NodeLines)
        return {line.name: line for line in answer.nodes if line.state is not NodeState.GONE}

    def submit(self, nodes: int, body: str) -> int:
        return self.submit_with(f"REQUIRED_TIME 600000; NODES {nodes}", body)

    def submit_with(self, headers: str, body: str) -> int:
        script = "#!/bin/bash\n" + "".join(f"#{line}\n" for line in headers.split("; ")) + body
        environment = {"PATH": self.cluster.environment["PATH"]}
        answer = requests.ask(self.batch_dir, requests.Submit(script, "job", str(self.folder), environment))
        assert isinstance(answer, requests.Done)
        return answer.job

    def output(self, job: int) -> str:
        paths = [self.batch_dir / part / str(job) / "output" for part in ("jobs", "ended")]
        return "".join(path.read_text() for path in paths if path.exists())

    def state(self, job: int) -> str:
        """Wait until a job has ended; return its state."""

        def ended() -> str:
            answer = requests.ask(self.batch_dir, requests.Queue(100, 100))
            assert isinstance(answer, requests.Jobs)
            return next((line.state for line in answer.ended if line.job == job), "")

        return poll_until(ended, self.story)

    def end(self) -> None:
        self.cluster.run("scancel", self.job)
        poll_until(lambda: "JobState=CANCELLED" in self.cluster.run("scontrol", "show", "job", self.job))


#: script that prints the node where Slurm has started its guard, and the node of its slots
WHERE = "echo $(tr '\\0' '\\n' < /proc/$PPID/environ | sed -n s/^SLURMD_NODENAME=//p) $(sort -u $NODE_FILE)\n"


@pytest.mark.slow
@needs_slurm
def test_jobs_run_on_the_nodes_of_the_allocation_each_on_the_node_of_its_slots(
    cluster: Cluster, tmp_path: Path
) -> None:
    batch = Batch(cluster, tmp_path, 2)
    try:
        assert {name: len(line.jobs) for name, line in batch.nodes().items()} == {
            "n1": CPUS_PER_NODE,
            "n2": CPUS_PER_NODE,
        }
        step = 'srun --overlap --mpi=none -N1 -n1 -w n2 sh -c "echo step on \\$SLURMD_NODENAME"\n'
        large = batch.submit(2 * CPUS_PER_NODE, f"echo $(sort -u $NODE_FILE)\n{step}exit 3\n")
        assert batch.state(large) == "exit code 3"
        assert batch.output(large) == "n1 n2\nstep on n2\n"
        go = tmp_path / "go"
        waits = f"until [ -e {go} ]; do sleep 0.05; done\n"
        jobs = [batch.submit(CPUS_PER_NODE, f"{WHERE}{waits}") for _ in range(2)]
        poll_until(lambda: sorted(map(batch.output, jobs)) == ["n1 n1\n", "n2 n2\n"], batch.story)
        requests.ask(batch.batch_dir, requests.Cancel(jobs[0]))
        assert batch.state(jobs[0]) == "cancelled"
        go.touch()
        assert batch.state(jobs[1]) == "exit code 0"
    finally:
        batch.end()


@pytest.mark.slow
@needs_slurm
def test_an_allocation_takes_in_a_node_on_which_jobs_run_then(cluster: Cluster, tmp_path: Path) -> None:
    batch = Batch(cluster, tmp_path, 1)
    try:
        assert set(batch.nodes()) == {"n1"}
        with pytest.raises(
            requests.LiveError, match="n1 is where the allocation's own script runs; it must stay"
        ):
            requests.ask(batch.batch_dir, requests.GiveBack("n1"))
        with pytest.raises(requests.LiveError, match="salloc"):
            requests.ask(batch.batch_dir, requests.TakeIn(9))
        requests.ask(batch.batch_dir, requests.TakeIn(1))
        assert {name: len(line.jobs) for name, line in batch.nodes().items()} == {
            "n1": CPUS_PER_NODE,
            "n2": CPUS_PER_NODE,
        }
        go = tmp_path / "go"
        waits = f"until [ -e {go} ]; do sleep 0.05; done\n"
        jobs = [batch.submit(CPUS_PER_NODE, f"{WHERE}{waits}") for _ in range(2)]
        poll_until(lambda: sorted(map(batch.output, jobs)) == ["n1 n1\n", "n2 n2\n"], batch.story)
        go.touch()
        assert {batch.state(job) for job in jobs} == {"exit code 0"}
    finally:
        batch.end()


@pytest.mark.slow
@needs_slurm
def test_a_node_is_given_back_when_its_jobs_have_ended(cluster: Cluster, tmp_path: Path) -> None:
    batch = Batch(cluster, tmp_path, 2)
    try:
        go = tmp_path / "go"
        waits = f"until [ -e {go} ]; do sleep 0.05; done\n"
        jobs = [batch.submit(CPUS_PER_NODE, f"{WHERE}{waits}") for _ in range(2)]
        poll_until(lambda: sorted(map(batch.output, jobs)) == ["n1 n1\n", "n2 n2\n"], batch.story)
        requests.ask(batch.batch_dir, requests.GiveBack("n2"))
        assert batch.nodes()["n2"].state is NodeState.LEAVING
        go.touch()
        assert {batch.state(job) for job in jobs} == {"exit code 0"}
        poll_until(lambda: set(batch.nodes()) == {"n1"}, batch.story)
        assert "NumNodes=1 " in cluster.run("scontrol", "show", "job", batch.job)
        last = batch.submit(1, WHERE)
        assert batch.state(last) == "exit code 0"
        assert batch.output(last) == "n1 n1\n"
    finally:
        batch.end()


@pytest.mark.slow
@needs_slurm
def test_a_bag_asks_for_slots_of_its_node_and_gives_them_back_in_its_tail(
    cluster: Cluster, tmp_path: Path
) -> None:
    batch = Batch(cluster, tmp_path, 1)
    try:
        command = [sys.executable, "-m", "mallob_py.cli.main"]
        path = f"{ROOT}:{ROOT / 'apps'}"
        job = batch.submit_with(gated_bags.HEADERS, gated_bags.body(command, tmp_path, path))
        poll_until(
            lambda: "3 ranks go on" in batch.output(job), lambda: f"{batch.story()}\n{batch.output(job)}"
        )
        other = batch.submit(CPUS_PER_NODE - 1, WHERE)
        (tmp_path / "tail").touch()
        # The other job starts and ends while the bag waits.
        assert batch.state(other) == "exit code 0"
        assert "1 rank goes on" in batch.output(job)
        (tmp_path / "go").touch()
        assert batch.state(job) == "exit code 0"
        assert f'"value":{gated_bags.COUNT},' in batch.output(job)
    finally:
        batch.end()
