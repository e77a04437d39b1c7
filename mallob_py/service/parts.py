"""The objects that the parts of a client's service share."""

from __future__ import annotations

from dataclasses import dataclass

from mallob_py.runtime.rank import Rank
from mallob_py.service.desk_machine import DeskMachine
from mallob_py.service.jobs.chains import ChainBook
from mallob_py.service.jobs.crashes import RunningJobs
from mallob_py.service.jobs.reply import ResultFiles
from mallob_py.service.store.directory import JobDirectory, ThreadedDirectory


@dataclass(frozen=True, slots=True)
class Parts:
    """The shared objects of a client's service; `results`: the files that jobs name for their results."""

    rank: Rank
    directory: JobDirectory | ThreadedDirectory
    machine: DeskMachine
    chains: ChainBook
    running: RunningJobs
    results: ResultFiles
