"""The agreement policies of PECS 2023 on its workloads, beside the published results."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from mallob_py.batch.experiments.traces import missing
from mallob_py.batch.registry import policy_of
from mallob_py.batch.simulator import EventOrder, simulate
from mallob_py.batch.workload.elastisim import Statistics, read_elastisim, statistics_of
from mallob_py.experiments import frame
from mallob_py.experiments.frame import beside, grid
from mallob_py.experiments.output import Output

_FILES = {"rigid": "pecs23_S0_rigid_jobs.json.gz", "malleable": "pecs23_S0_malleable100_jobs.json.gz"}
#: (jobs, policy) -> wait, job time, turnaround [s], end [s], utilisation
PUBLISHED: dict[tuple[str, str], tuple[float, ...]] = {
    ("rigid", "rigid-easy:quirks=pecs23"): (209519.4583, 3357.7957, 212877.2566, 3008130, 0.8609),
    ("malleable", "agreement:quirks=pecs23"): (9874.8274, 7365.3145, 17240.1424, 2602540, 0.9666),
}
_COLUMNS = {"wait [s]": 0, "job time [s]": 1, "turnaround [s]": 2, "end [s]": 3, "utilisation": 4}
_REMARKS = """\
2,317 jobs on 128 nodes, seed S0; (P) marks published numbers. `quirks=pecs23` is the published program;
without it, estimates are in seconds, so that jobs may overtake, and any number of jobs may start per
decision."""


class Run(frame.Run, frozen=True):
    jobs: str
    policy: str


def run(output: Output, processes: int | None, traces: Path | None) -> None:
    """Write the table. The workloads must be in `traces`, or in a folder `oracle` in or beside `traces`."""
    folders = (traces, traces / "oracle", traces.parent / "oracle") if traces else ()
    folder = next((one for one in folders if (one / _FILES["malleable"]).exists()), None)
    if folder is None:
        raise missing("agreement", (f"{_FILES['malleable']} (also in a folder oracle in it or beside it)",))
    runs = [Run(*cell) for cell in PUBLISHED] + [Run("rigid", "rigid-easy")]
    runs += [
        Run("malleable", f"agreement:size={size},nodes={nodes}{quirks}")
        for quirks in (",quirks=pecs23", "")
        for size in ("min", "pref", "average")
        for nodes in ("agreed", "steal", "pool")
    ]
    found = output.play(partial(_play, folder), runs, processes, Run.name)

    def cell(one: Run, place: int) -> str:
        said = PUBLISHED.get((one.jobs, one.policy), ("",) * 5)[place]
        value = (
            found[one].wait_s, found[one].job_time_s, found[one].turnaround_s, found[one].end_s,
            found[one].utilisation,
        )[place]  # fmt: skip
        return beside(f"{value:.0f}" if place == 3 else f"{value:.4f}", said)

    rows = {f"{one.jobs}, {one.policy}": one for one in found}
    output.tables([grid("Agreement policies", "jobs, policy", rows, _COLUMNS, cell)], _REMARKS)


def _play(folder: Path, one: Run) -> Statistics:
    workload = read_elastisim(folder / _FILES[one.jobs])
    return statistics_of(simulate(workload, policy_of(one.policy), order=EventOrder.ELASTISIM))
