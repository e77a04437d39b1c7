"""`mallob-py batch simulate TRACE --policy P...`: policies side by side on one trace."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from mallob_py.batch.job import Workload
from mallob_py.batch.metrics import Metrics, metrics_of
from mallob_py.batch.policy import PolicyError
from mallob_py.batch.registry import PolicyTextError, policy_of
from mallob_py.batch.simulator import simulate
from mallob_py.batch.workload.swf import SwfError, read_swf, workload_of
from mallob_py.cli import CommandError
from mallob_py.cli.batch_options import BatchSimulateOptions
from mallob_py.text_table import format_table

_HEADER = (
    "policy", "jobs", "makespan [s]", "wait [s]", "longest", "turnaround [s]", "slowdown", "bounded", "busy",
)  # fmt: skip


def run(options: BatchSimulateOptions) -> int:
    try:
        policies = [policy_of(text) for text in options.policy]
        workload = _load(options)
        results = []
        for policy in policies:
            began_s = time.monotonic()
            results.append(metrics_of(simulate(workload, policy)))
            if sys.stderr.isatty():
                print(f"{policy.name}: {time.monotonic() - began_s:.1f} s", file=sys.stderr)
    except (PolicyTextError, PolicyError, SwfError, ValueError) as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{options.trace}: {error.strerror}") from None
    print(msgspec.json.encode(results).decode() if options.json else _table(workload, results))
    return 0


def _load(options: BatchSimulateOptions) -> Workload:
    path = Path(options.trace)
    swf = read_swf(path, options.strict)
    for line in swf.damaged:
        print(f"mallob-py: left out: {line}", file=sys.stderr)
    return workload_of(
        swf,
        name=path.name,
        nodes=options.nodes,
        processors_per_node=options.cores_per_node,
        partition=options.partition,
        rows=slice(options.jobs) if options.jobs else None,
    )


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
    return (
        f"{workload.name}: {len(workload.jobs)} jobs, {workload.nodes} nodes\n\n{format_table(_HEADER, rows)}"
    )
