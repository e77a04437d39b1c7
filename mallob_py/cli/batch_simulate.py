"""`mallob-py batch simulate TRACE --policy P...`: policies side by side on one trace."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import msgspec

from mallob_py.batch.energy import Power, energy_of
from mallob_py.batch.job import Workload
from mallob_py.batch.metrics import Metrics, metrics_of
from mallob_py.batch.page import Result, page
from mallob_py.batch.pictures import draw_gantt, draw_utilisation
from mallob_py.batch.policy import Policy
from mallob_py.batch.registry import policy_of
from mallob_py.batch.schedule_files import write_schedule
from mallob_py.batch.simulator import Outcome, simulate
from mallob_py.cli.batch_options import BatchSimulateOptions
from mallob_py.cli.batch_trace import WithProgress, load, worded
from mallob_py.experiments.output import Output
from mallob_py.text_table import format_table

_HEADER = (
    "policy", "jobs", "makespan [s]", "wait [s]", "longest", "turnaround [s]", "slowdown", "bounded", "busy",
)  # fmt: skip


def run(options: BatchSimulateOptions) -> int:
    with worded(options.trace):
        policies = [policy_of(text) for text in options.policy]
        workload = load(options)
        power = Power(options.idle_watts, options.busy_watts)
        metrics, results = list[Metrics](), list[Result]()
        for policy in policies:
            outcome = _played(workload, policy)
            metrics.append(metrics_of(outcome))
            if options.output:
                folder = Path(options.output) / _folder_names(options.policy)[len(results)]
                results.append(_written(outcome, metrics[-1], folder, power))
        if options.output:
            index = Path(options.output) / "index.html"
            index.write_text(page(_title(workload), results, power), encoding="utf-8")
            print(f"wrote {index}", file=sys.stderr)
    print(msgspec.json.encode(metrics).decode() if options.json else _table(workload, metrics))
    return 0


def _played(workload: Workload, policy: Policy) -> Outcome:
    if not sys.stderr.isatty():
        return simulate(workload, policy)
    shown = WithProgress(policy, workload)
    try:
        return simulate(workload, shown)
    finally:
        shown.done()


def _written(outcome: Outcome, metrics: Metrics, folder: Path, power: Power) -> Result:
    write_schedule(outcome, folder, power)
    output = Output(folder, "simulation")
    output.keep(outcome.policy, metrics)
    output.figure("utilisation", lambda figure: draw_utilisation(outcome, figure))
    output.figure("gantt", lambda figure: draw_gantt(outcome, figure))
    # A grid or thousands of boxes are smaller as PNG, a curve looks better as SVG.
    pictures = [folder / "utilisation.svg", folder / "gantt.png"]
    return Result(metrics, energy_of(outcome, power), [path for path in pictures if path.exists()])


def _folder_names(policies: tuple[str, ...]) -> list[str]:
    """A name for each that is one on all file systems: easy:depth=10 is easy-depth-10."""
    names = list[str]()
    for text in policies:
        name = plain = re.sub(r"[^A-Za-z0-9_.+]+", "-", text).strip("-.")
        number = 1
        while name in names:
            number += 1
            name = f"{plain}-{number}"
        names.append(name)
    return names


def _title(workload: Workload) -> str:
    return f"{workload.name}: {len(workload.jobs)} jobs, {workload.nodes} nodes"


def _table(workload: Workload, results: list[Metrics]) -> str:
    rows = [
        (
            one.policy,
            one.jobs,
            one.makespan_s,
            one.wait_s,
            one.wait_max_s,
            one.turnaround_s,
            one.slowdown,
            one.bounded_slowdown,
            one.utilisation,
        )
        for one in results
    ]
    return f"{_title(workload)}\n\n{format_table(_HEADER, rows)}"
