"""`mallob-py batch generate KIND`: a workload from a published model, as a file for `batch simulate`."""

from __future__ import annotations

from pathlib import Path

from mallob_py.batch.job import Kind, Workload
from mallob_py.batch.workload.elastisim import write_elastisim
from mallob_py.batch.workload.generators import GENERATORS
from mallob_py.batch.workload.swf import write_trace
from mallob_py.cli import CommandError
from mallob_py.cli.batch_options import BatchGenerateOptions


def run(options: BatchGenerateOptions) -> int:
    if options.kind not in GENERATORS:
        raise CommandError(f"no workload {options.kind!r} (there are {', '.join(GENERATORS)})")
    generator = GENERATORS[options.kind]
    try:
        workload = generator.make(
            options.jobs or generator.jobs, options.nodes or generator.nodes, options.seed
        )
        path = _path(options, workload)
        if ".json" in path.suffixes:
            write_elastisim(workload, path)
        else:
            write_trace(workload, path)
    except ValueError as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from None
    print(f"wrote {path}: {workload.name}, {len(workload.jobs)} jobs, {workload.nodes} nodes")
    return 0


def _path(options: BatchGenerateOptions, workload: Workload) -> Path:
    if options.output is not None:
        return Path(options.output)
    is_rigid = all(job.kind is Kind.RIGID for job in workload.jobs)
    return Path(f"{options.kind}.{'swf' if is_rigid else 'json'}")
