"""`mallob-py batch experiment NAME`: schedulers of whole jobs, beside what was published of them."""

from __future__ import annotations

import importlib
import pkgutil
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from mallob_py.batch import experiments
from mallob_py.batch.policy import PolicyError
from mallob_py.batch.workload.swf import SwfError
from mallob_py.cli import CommandError
from mallob_py.cli.batch_options import BatchExperimentOptions
from mallob_py.experiments.output import Output


def run(options: BatchExperimentOptions) -> int:
    name = options.name
    if name not in (names := experiment_names()):
        raise CommandError(f"no experiment {name!r} (there are {', '.join(names) or 'none'})")
    traces = None if options.traces is None else Path(options.traces)
    if traces is not None and not traces.is_dir():
        raise CommandError(f"--traces {traces}: no such folder")
    module = importlib.import_module(f"{experiments.__name__}.{name}")
    try:
        output = Output(Path(options.output), name)
    except OSError as error:
        raise CommandError(f"--output {options.output}: {error.strerror}") from None
    try:
        module.run(output, options.jobs, traces)
    except (SwfError, PolicyError, ValueError) as error:
        raise CommandError(str(error)) from None
    except BrokenProcessPool:
        raise CommandError("a run was killed from outside; was the memory too small? (see --jobs)") from None
    return 0


def experiment_names() -> tuple[str, ...]:
    """The modules of `mallob_py.batch.experiments` that can be run; others are helpers of theirs."""
    found = (module.name for module in pkgutil.iter_modules(experiments.__path__))
    return tuple(
        name
        for name in sorted(found)
        if hasattr(importlib.import_module(f"{experiments.__name__}.{name}"), "run")
    )
