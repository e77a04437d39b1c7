"""The public traces that experiments play: their files, machines, and parts as workloads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from mallob_py.batch.job import Workload
from mallob_py.batch.workload.swf import Swf, read_swf, workload_of


class Trace(msgspec.Struct, frozen=True):
    """A trace of the Parallel Workloads Archive. `cores_per_node`, `partition`: see `workload_of`."""

    name: str
    file: str
    nodes: int
    cores_per_node: int = 1
    partition: int | None = None

    def part(self, traces: Path, rows: slice | None, repaired: bool = False) -> Workload:
        """Return the jobs of these rows as a workload; run times below a second become one second.

        `repaired`: jobs of unknown size get one node instead of being left out.
        """
        path = path_in(traces, self.file)
        assert path is not None
        swf = read_swf(path)
        return workload_of(
            _with_sizes(swf) if repaired else swf,
            name=self.name,
            nodes=self.nodes,
            processors_per_node=self.cores_per_node,
            partition=self.partition,
            rows=rows,
            minimal_run_s=1,
        )


KTH = Trace("KTH", "KTH-SP2-1996-2.1-cln.swf.gz", 100)
HPC2N = Trace("HPC2N", "HPC2N-2002-2.1-cln.swf.gz", 240)
RICC = Trace("RICC", "RICC-2010-2.swf.gz", 1024, 8)
CURIE = Trace("Curie", "CEA-Curie-2011-2.1-cln.swf.gz", 5040, 16, 10)


def path_in(traces: Path | None, file: str) -> Path | None:
    """Return a file's path in the folder `traces` or in its subfolder `traces`; None: it is in neither."""
    if traces is None:
        return None
    return next((path for path in (traces / file, traces / "traces" / file) if path.exists()), None)


def missing(experiment: str, files: Iterable[str]) -> ValueError:
    """Return the error of an experiment that finds none of the files that it needs."""
    return ValueError(
        f"the experiment {experiment} needs a folder with {' or '.join(files)}: give it by --traces"
    )


def _with_sizes(swf: Swf) -> Swf:
    rows = swf.rows.copy()
    rows[(rows[:, 4] <= 0) & (rows[:, 7] <= 0), 4] = 1
    return msgspec.structs.replace(swf, rows=rows)
