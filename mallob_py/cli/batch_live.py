"""`mallob-py batch serve | submit | queue | cancel | nodes`: scheduling of whole jobs over real processes.

`serve` is the scheduler; the other commands talk to it through the socket in its folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mallob_py.batch.live import requests
from mallob_py.batch.live.nodes import NodesError, NodeState
from mallob_py.cli import CommandError
from mallob_py.runtime.notices import say
from mallob_py.runtime.remote_shell import SSH

if TYPE_CHECKING:
    from mallob_py.batch.live.machine_nodes import Machine
    from mallob_py.batch.live.requests import Encoding, JobLine, NodeLine
    from mallob_py.cli.batch_options import (
        BatchCancelOptions,
        BatchNodesOptions,
        BatchQueueOptions,
        BatchServeOptions,
        BatchSubmitOptions,
        Live,
    )
    from mallob_py.text_table import Cell

_SHOWN = 50
_WAIT_PERIOD_S = 0.5
_EVERYTHING = 1 << 31
_HEADER = ("job", "name", "class", "state", "nodes", "least", "most", "waited [s]", "ran [s]", "required [s]")
#: title of the last column, which is shown only if a job waits
_REASON = "why it waits"


def run_serve(options: BatchServeOptions) -> int:
    from mallob_py.batch.live.folder import FolderError
    from mallob_py.batch.live.server import serve
    from mallob_py.batch.registry import PolicyTextError, policy_for, shares_cores

    try:
        policy = policy_for(options.policy, options.affinity)
        cores_per_slot = 0 if not options.affinity else 2 if shares_cores(policy) else 1
        machine = _machine(options, cores_per_slot)
        folder = Path(options.batch_dir)
        return serve(folder, policy, machine, binds=options.affinity, default_s=options.default_s)
    except (FolderError, NodesError, PolicyTextError) as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from None


def _machine(options: BatchServeOptions, cores_per_slot: int) -> Machine:
    """Return the machine for the options. Raises NodesError, OSError."""
    from mallob_py.batch.live.machines import Allocation, Hosts, ThisHost

    if options.slurm:
        return Allocation()
    if options.nodes is not None:
        return Hosts(Path(options.nodes), options.remote_shell or SSH)
    cores = len(os.sched_getaffinity(0))
    return ThisHost(options.slots or max(1, cores // max(1, cores_per_slot)), cores_per_slot)


def run_submit(options: BatchSubmitOptions) -> int:
    """Submit the scripts one by one, until one is refused."""
    jobs: list[int] = []
    environment = requests.own_environment()
    directory = os.getcwd()
    if not requests.is_text(directory):
        raise CommandError("the name of the working folder is not UTF-8")
    for script in options.scripts:
        content = Path(script).read_bytes()
        encoding: Encoding = "utf-8"
        try:
            text = content.decode()
        except UnicodeDecodeError:
            text, encoding = content.decode("latin-1"), "latin-1"
        name = re.sub(r"[^\w.+-]", "_", Path(script).name)[:64]
        after = list(options.after), list(options.after_ok)
        request = requests.Submit(text, name, directory, environment, options.headers, *after, encoding)
        for job in _submit(options, request, script):
            # If nobody reads the numbers, the other jobs must still be submitted.
            with contextlib.suppress(BrokenPipeError):
                print(job, flush=True)
            jobs.append(job)
    return _wait_for(options, jobs) if options.wait else 0


def _submit(options: BatchSubmitOptions, request: requests.Submit, script: str) -> Iterator[int]:
    """Submit a script, or each task of its array, and yield the jobs' numbers; report ignored lines."""
    from mallob_py.batch.live.script import ARRAY_JOB, ARRAY_TASK, ScriptError, SlurmLines, slurm_lines

    lines = SlurmLines({}, (), 0, [])
    with contextlib.suppress(ScriptError):  # the scheduler reports the error
        lines = slurm_lines(request.script)
    # The task of an array may submit this job, which does not belong to that array.
    own = {name: one for name, one in request.environment.items() if not name.startswith("SLURM_ARRAY_")}
    request, jobs = msgspec.structs.replace(request, environment=own), list[int]()
    for place, task in enumerate(lines.tasks or (None,)):
        if task is not None:
            tasks = lines.tasks
            numbers = {ARRAY_TASK: task, "SLURM_ARRAY_TASK_COUNT": len(tasks)}
            numbers |= {"SLURM_ARRAY_TASK_MIN": min(tasks), "SLURM_ARRAY_TASK_MAX": max(tasks)}
            first = {ARRAY_JOB: str(jobs[0])} if jobs else {}
            environment = own | {name: str(number) for name, number in numbers.items()} | first
            # The first `at_once` tasks begin together, each later task after the end of an earlier task.
            before = [jobs[place - lines.at_once]] if 0 < lines.at_once <= place else []
            request = msgspec.structs.replace(
                request, environment=environment, after=[*options.after, *before]
            )
        answer = _ask(options, request, f"{script}: ")
        assert isinstance(answer, requests.Done)
        jobs.append(answer.job)
        yield answer.job
    for line in lines.ignored:
        say(f"mallob-py batch submit: {script}: {line}: ignored")
    for number, line in enumerate(request.script.splitlines(), 1):
        if re.match(r"\s*(exec\s+)?srun\s", line) and shutil.which("srun") is None:
            say(
                f"mallob-py batch submit: {script}: line {number}: there is no srun on this host; the hosts"
                " of the job's slots are in the file $NODE_FILE: mpiexec -f $NODE_FILE PROGRAM"
            )
            break


def _wait_for(options: BatchSubmitOptions, jobs: Sequence[int]) -> int:
    """Print how each job ends, in the order of their ends; return the exit code."""
    from mallob_py.batch.live.launch import RunEnd, Status

    left, code = set(jobs), 0
    while left:
        time.sleep(_WAIT_PERIOD_S)
        answer = _ask(options, requests.Queue(0, 0, sorted(left)))
        assert isinstance(answer, requests.Jobs)
        for job in left.intersection(answer.unknown):
            left.remove(job)
            print(f"{job}: it is not known how it ended; its folder was removed")
            code = 1
        for line in answer.ended:
            if line.job in left:
                left.remove(line.job)
                print(
                    f"{line.job} {line.name}: {line.state} after {line.ran_s:.1f} s, output in {line.output}"
                )
                code |= line.state != str(Status(RunEnd.EXITED, 0))
    return int(code)


def run_cancel(options: BatchCancelOptions) -> int:
    for job in options.jobs:
        _ask(options, requests.Cancel(*job))
    return 0


def run_queue(options: BatchQueueOptions) -> int:
    answer = _ask(options, requests.Queue(_EVERYTHING if options.all else _SHOWN, options.ended))
    assert isinstance(answer, requests.Jobs)
    if options.json:
        print(msgspec.json.encode(answer).decode())
        return 0
    from mallob_py.text_table import format_table

    lines = [*folded(answer.running), *folded(answer.waiting)]
    if answer.waiting:
        print(format_table((*_HEADER, _REASON), [(*_row(line), line.reason) for line in lines]))
    else:
        print(format_table(_HEADER, [_row(line) for line in lines]) if lines else "no job runs or waits")
    if (more := answer.waiting_count - len(answer.waiting)) > 0:
        print(f"and {more} more wait (--all)")
    if answer.turns:
        print(f"the scheduler's loop is busy: {answer.turns} turns a second")
    if answer.ended:
        header = (*_HEADER[:3], "ended", *_HEADER[5:9], "output")
        print(f"\n{format_table(header, [_ended_row(line) for line in folded(answer.ended)])}")
    return 0


def explain_live(options: Live, job: int) -> int:
    answer = _ask(options, requests.Explain(job))
    assert isinstance(answer, requests.Explained)
    print(*answer.lines, sep="\n")
    return 0


def run_nodes(options: BatchNodesOptions) -> int:
    if options.drain is not None:
        _ask(options, requests.Drain(options.drain, options.reason or "drained"))
        return 0
    if options.resume is not None:
        _ask(options, requests.Resume(options.resume))
        return 0
    if options.give_back is not None:
        _ask(options, requests.GiveBack(options.give_back))
        return 0
    if options.take_in is not None:
        _ask(options, requests.TakeIn(options.take_in))
        return 0
    answer = _ask(options, requests.Nodes())
    assert isinstance(answer, requests.NodeLines)
    if options.json:
        print(msgspec.json.encode(answer.nodes).decode())
        return 0
    from mallob_py.text_table import format_table

    rows = [_node_row(line, answer.names) for line in answer.nodes]
    print(format_table(("node", "state", "slots", "free", "jobs", "reason"), rows))
    return 0


def _node_row(line: NodeLine, names: Mapping[int, str]) -> tuple[Cell, ...]:
    slots = Counter(line.jobs)
    free = slots.pop(None, 0)
    jobs = ", ".join(f"{job} {names[job]} ({count})" for job, count in slots.items() if job is not None)
    is_up = line.state is NodeState.UP
    return line.name, line.state.value, len(line.jobs), free if is_up else None, jobs, line.reason


def _ask(options: Live, request: requests.Request, what: str = "") -> requests.Answer:
    try:
        return requests.ask(Path(options.batch_dir), request)
    except requests.LiveError as error:
        raise CommandError(f"{what}{error}") from None


def folded(lines: Sequence[JobLine]) -> Iterator[JobLine]:
    """Yield the lines of the queue; jobs of an array in one state share a line, with their count."""
    counts = Counter((line.array, line.state) for line in lines)
    for line in lines:
        count = counts.pop((line.array, line.state), 0) if line.array else 1
        if count > 1:
            yield msgspec.structs.replace(line, name=f"{line.name} ({count} of array {line.array})")
        elif count:
            yield line


def _row(line: JobLine) -> tuple[Cell, ...]:
    return (
        line.job,
        line.name,
        line.kind,
        line.state,
        line.nodes or None,
        line.nodes_min,
        line.nodes_max,
        line.waited_s,
        line.ran_s,
        line.required_s,
    )


def _ended_row(line: JobLine) -> tuple[Cell, ...]:
    numbers = line.nodes_min, line.nodes_max, line.waited_s, line.ran_s
    return line.job, line.name, line.kind, line.state, *numbers, line.output
