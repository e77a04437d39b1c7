"""The requests of commands to a live scheduler, and its answers: a line of JSON each, over the socket of its
folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from mallob_py.batch.live.chart import Bar
from mallob_py.batch.live.nodes import NodeState
from mallob_py.malleable.sockets import connect

#: the largest request; scripts and environments are its largest parts
REQUEST_MAX_BYTES = 16 << 20
#: the largest answer: lines on a hundred thousand jobs have some thirty megabytes
ANSWER_MAX_BYTES = 256 << 20
#: the time limit of an answer, long enough for a busy scheduler
_ANSWER_S = 120.0


Encoding: TypeAlias = Literal["utf-8", "latin-1"]


class LiveError(Exception):
    """An error: no scheduler answers, or it refuses the request. One line."""


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Run this script in this folder; a name in the script precedes `name`. `headers` precede the script's
    own.

    `after`: jobs that must end first. `after_ok`: jobs that must end first with exit code 0; if one ends
    otherwise, so does the new job.
    """

    script: str
    name: str
    directory: str
    environment: dict[str, str]
    headers: dict[str, str] = {}
    after: list[int] = []
    after_ok: list[int] = []
    #: the encoding of the script's file
    encoding: Encoding = "utf-8"


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """End a job or remove it from the queue; for an array: all tasks, or the task of this number."""

    job: int
    task: int = -1


class Queue(msgspec.Struct, frozen=True, tag=True):
    """List all running jobs, and a number of waiting and of ended ones."""

    waiting: int
    ended: int


class Explain(msgspec.Struct, frozen=True, tag=True):
    """Explain why a job waits and when it will start."""

    job: int


class Nodes(msgspec.Struct, frozen=True, tag=True):
    """List the nodes, and the jobs on their slots."""


class Bars(msgspec.Struct, frozen=True, tag=True):
    """Return the jobs on each slot in the last seconds."""

    seconds: float


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Start no further job on a node."""

    node: str
    reason: str


class Resume(msgspec.Struct, frozen=True, tag=True):
    """Use a node again."""

    node: str


class GiveBack(msgspec.Struct, frozen=True, tag=True):
    """Return a node to the allocation's owner when its jobs have ended."""

    node: str


class TakeIn(msgspec.Struct, frozen=True, tag=True):
    """Add further nodes to the allocation."""

    count: int


Request = Submit | Cancel | Queue | Explain | Nodes | Bars | Drain | Resume | GiveBack | TakeIn


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A refusal, with its reason in one line."""

    error: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """Success, with the number of the job; 0 for a request about a node."""

    job: int


class JobLine(msgspec.Struct, frozen=True):
    """A job as a line of a table. Times are seconds; `nodes` are the nodes of a running job.

    `reason`: why a waiting job waits.
    """

    job: int
    name: str
    kind: str
    state: str
    nodes: int
    nodes_min: int
    nodes_max: int
    waited_s: float
    ran_s: float
    required_s: float
    output: str
    reason: str = ""
    #: the number of the job's array; 0: no array
    array: int = 0


class Jobs(msgspec.Struct, frozen=True, tag=True):
    """The requested jobs, and the number of waiting ones. `turns`: the loop's rate (`loop_rate.shown`)."""

    policy: str
    running: list[JobLine]
    waiting: list[JobLine]
    ended: list[JobLine]
    waiting_count: int
    turns: int = 0


class Explained(msgspec.Struct, frozen=True, tag=True):
    """Sentences on a job."""

    lines: list[str]


class NodeLine(msgspec.Struct, frozen=True):
    """The line of a node. `jobs`: the job on each slot; None: no job. `reason`: why it is not up."""

    name: str
    state: NodeState
    reason: str
    jobs: list[int | None]


class NodeLines(msgspec.Struct, frozen=True, tag=True):
    """All nodes, and the names of the jobs on them."""

    nodes: list[NodeLine]
    names: dict[int, str]


class Gantt(msgspec.Struct, frozen=True, tag=True):
    """The requested bars, by a clock that shows `now_s`. `slots`: number and name of each slot."""

    now_s: float
    slots: list[tuple[int, str]]
    bars: list[Bar]


Answer = Refused | Done | Jobs | Explained | NodeLines | Gantt


def is_text(text: str) -> bool:
    """Return whether a request can contain the text: names of files and variables may be any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def own_environment() -> dict[str, str]:
    """Return the variables of this process's environment that a request can contain."""
    return {name: value for name, value in os.environ.items() if is_text(name + value)}


def ask(folder: Path, request: Request) -> Answer:
    """Send a request and return the answer. Raises LiveError."""
    path = folder.absolute() / "scheduler.sock"
    line = msgspec.json.encode(request) + b"\n"
    if len(line) > REQUEST_MAX_BYTES:
        raise LiveError(
            f"the script and the environment have {len(line)} bytes; {REQUEST_MAX_BYTES} can be sent"
        )
    try:
        with connect(str(path), _ANSWER_S) as connection, connection.makefile("rb") as lines:
            connection.sendall(line)
            answer = lines.readline(ANSWER_MAX_BYTES)
    except TimeoutError:
        raise LiveError(f"the scheduler in {folder} does not answer") from None
    except OSError:
        raise LiveError(f"no scheduler runs in {folder} (mallob-py batch serve starts one)") from None
    if len(answer) == ANSWER_MAX_BYTES:
        raise LiveError(f"the answer of the scheduler in {folder} has more than {ANSWER_MAX_BYTES} bytes")
    if not answer.endswith(b"\n"):
        raise LiveError(f"the scheduler in {folder} has ended meanwhile; look into its queue")
    found: Answer = msgspec.json.decode(answer, type=Answer)
    if isinstance(found, Refused):
        raise LiveError(found.error)
    return found
