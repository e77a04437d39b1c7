"""What the commands on traces have in common: the workload that their options mean, and progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mallob_py.batch.job import Workload
from mallob_py.batch.policy import Action, Policy, PolicyError, View
from mallob_py.batch.registry import PolicyTextError
from mallob_py.batch.workload.elastisim import PUBLISHED_NODES, read_elastisim
from mallob_py.batch.workload.eurora import EURORA_SUFFIX, read_eurora
from mallob_py.batch.workload.swf import SwfError, read_swf, workload_of
from mallob_py.cli import CommandError
from mallob_py.cli.batch_options import TraceOptions

_PERIOD_S = 0.3


def load(options: TraceOptions) -> Workload:
    """The workload; what is left out of the trace is said on standard error. Errors: see `worded`."""
    path = Path(options.trace)
    if path.suffix == EURORA_SUFFIX:
        return read_eurora(path)[0]
    if ".json" in path.suffixes:
        return read_elastisim(path, options.nodes or PUBLISHED_NODES)
    swf = read_swf(path, options.strict)
    for line in swf.damaged:
        print(f"mallob-py: left out: {line}", file=sys.stderr)
    workload = workload_of(
        swf,
        name=path.name,
        nodes=options.nodes,
        processors_per_node=options.cores_per_node,
        partition=options.partition,
        rows=slice(options.jobs) if options.jobs else None,
        minimal_run_s=options.minimal_run,
    )
    if workload.left_out:
        reasons = ", ".join(f"{count} {reason}" for reason, count in workload.left_out)
        print(f"mallob-py: jobs left out: {reasons}", file=sys.stderr)
    return workload


@contextmanager
def worded(trace: str) -> Iterator[None]:
    """Errors of traces and policies as CommandError."""
    try:
        yield
    except (PolicyTextError, PolicyError, SwfError, ValueError) as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{error.filename or trace}: {error.strerror}") from None


class WithProgress:
    """A policy as it is, which says on standard error how far it has got; for terminals."""

    def __init__(self, policy: Policy, workload: Workload) -> None:
        self.name = policy.name
        self.wants_all_arrivals = policy.wants_all_arrivals
        self.wants_resize_points = getattr(policy, "wants_resize_points", False)
        self._policy = policy
        self._submissions_end_s = workload.jobs[-1].submit_s if workload.jobs else 0.0
        self._began_s = self._next_s = time.monotonic()

    def begin(self, nodes: int) -> None:
        self._policy.begin(nodes)

    def decide(self, view: View) -> Iterable[Action]:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + _PERIOD_S
            share = min(1.0, view.now_s / (self._submissions_end_s or 1.0))
            text = f"{self.name}: {share:.0%} of the time, {len(view.queue)} jobs wait"
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
        return self._policy.decide(view)

    def done(self) -> None:
        print(f"\r{self.name}: {time.monotonic() - self._began_s:.1f} s\x1b[K", file=sys.stderr)
