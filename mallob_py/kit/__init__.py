"""The kit for authors of applications, who implement `Application` and are given a `WorkerContext`.

An application is a class with a name. Its input is read once, in a helper process of the client, into a flat
*payload* of numpy arrays. Each worker of a job then runs `Application.run` in a process of its own, with that
payload mapped read-only. The process is stopped and continued (SIGSTOP, SIGCONT) as the job's volume changes,
and killed when the job ends; the author need not do anything for this.

A complete application:

    import numpy as np
    from mallob_py.kit import Application, JobInput, Payload, Result, WorkerContext

    class Factor(Application):
        '''Finds a divisor of the integer in `literals`; its candidates form 64 shares.'''

        name = "FACTOR"

        def read(self, job: JobInput) -> Payload:
            return {"number": np.array(job.literals[:1], dtype=np.int64)}

        def run(self, context: WorkerContext) -> Result:
            number = int(context.payload["number"][0])
            for turn in range(64):  # each worker begins at another share, and tries all shares in turn
                for divisor in range(2 + (context.index + turn) % 64, number, 64):
                    if number % divisor == 0:
                        return Result(10, [divisor])
                context.poll()
            return Result(20)

and in its package's pyproject.toml

    [project.entry-points."mallob_py.apps"]
    FACTOR = "my_package:Factor"

Workers of a job may talk along their job tree: `send_to_parent`, `send_to_children` and
`poll`, and on top of these `TreeReduction`, by which every worker gives bytes and every worker
gets their combination (its module says how, and what holds while the tree changes).

If the application sets `revises`, a job may have revisions, each of which adds to the input of the previous
one. `read` is then given the previous revision's payload (`JobInput.former`) and returns the payload of all
revisions up to the present one. `run` is called anew for each revision, if possible on the same application
object in the same process, so what it keeps on `self` may save work. It must also work if nothing was kept:
any worker may start afresh with any revision. Work on a former revision ends at its next `context.poll`.

A result too large for `Result` goes to a file: `prepare_result_file` in `read`, `UnfinishedFile` in `run`,
and in `result_files` the configuration key that names the file.

docs/writing-an-application.md explains all this with a larger example. Applications import this package and
nothing else of mallob_py; this package imports no application. Its modules:

    app             the interface of applications, and the objects given to them
    declaration     an application's properties: names of results, options, answers as text
    bags            jobs that split into any number of tasks, each counted exactly once
    calls           calls of Python functions by an executor
    tree_reduction  data of all workers of a job, combined and sent to all workers
    gossip          a few statements that all workers of a job learn
    process_race    several processes of one worker; the first answer wins
    input_file      bytes of an input file, in any compression
    result_file     results too large for a message
    payload         a job's input and configuration as flat bytes (for the runtime)
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING would have every rank import typing before anything else
if TYPE_CHECKING:
    from mallob_py.kit.app import (
        Application,
        InputError,
        JobInput,
        Payload,
        ProcessKilled,
        Result,
        TreeMessage,
        WorkerContext,
    )
    from mallob_py.kit.declaration import COMPRESSED_SUFFIXES, UNKNOWN, Declaration, JobOption
    from mallob_py.kit.gossip import Gossip
    from mallob_py.kit.input_file import decompressed_blocks, plain_blocks, read_decompressed, read_plain
    from mallob_py.kit.process_race import Attempt, race
    from mallob_py.kit.result_file import ResultFileError, ResultPath, UnfinishedFile, prepare_result_file
    from mallob_py.kit.tree_reduction import Advance, Finished, TreeReduction

__all__ = [
    "COMPRESSED_SUFFIXES",
    "UNKNOWN",
    "Advance",
    "Application",
    "Attempt",
    "Declaration",
    "Finished",
    "Gossip",
    "InputError",
    "JobInput",
    "JobOption",
    "Payload",
    "ProcessKilled",
    "Result",
    "ResultFileError",
    "ResultPath",
    "TreeMessage",
    "TreeReduction",
    "UnfinishedFile",
    "WorkerContext",
    "decompressed_blocks",
    "plain_blocks",
    "prepare_result_file",
    "race",
    "read_decompressed",
    "read_plain",
]

_HOMES = {
    "UNKNOWN": "declaration",
    "Declaration": "declaration",
    "JobOption": "declaration",
    "Application": "app",
    "InputError": "app",
    "JobInput": "app",
    "Payload": "app",
    "ProcessKilled": "app",
    "Result": "app",
    "TreeMessage": "app",
    "WorkerContext": "app",
    "Gossip": "gossip",
    "COMPRESSED_SUFFIXES": "declaration",
    "decompressed_blocks": "input_file",
    "plain_blocks": "input_file",
    "read_decompressed": "input_file",
    "read_plain": "input_file",
    "Attempt": "process_race",
    "race": "process_race",
    "ResultFileError": "result_file",
    "ResultPath": "result_file",
    "UnfinishedFile": "result_file",
    "prepare_result_file": "result_file",
    "Advance": "tree_reduction",
    "Finished": "tree_reduction",
    "TreeReduction": "tree_reduction",
}


def __getattr__(name: str) -> object:
    """Import a name on demand, since ranks import modules of this package but need few of its names."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mallob_py.kit' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(f"mallob_py.kit.{_HOMES[name]}"), name)
