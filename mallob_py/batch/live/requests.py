"""Requests to a live scheduler, and its answers: each is a line of JSON over the socket in its folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from mallob_py.batch.live.chart import Bar
from mallob_py.batch.live.nodes import NodeState
from mallob_py.malleable.sockets import connect

#: the greatest size of a request; scripts and environments are its largest parts
REQUEST_MAX_BYTES = 16 << 20
#: the greatest size of an answer: lines on a hundred thousand jobs need about thirty megabytes
ANSWER_MAX_BYTES = 256 << 20
#: the longest wait [s] for an answer: a busy scheduler needs time
_ANSWER_S = 120.0


Encoding: TypeAlias = Literal["utf-8", "latin-1"]


class LiveError(Exception):
    """No scheduler answers, or the scheduler refuses the request. The error's text is one line."""


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Run a script in the folder `directory`. `name`: the job's name if the script states none.

    `headers` replace those in the script. `after`: jobs that must end first. `after_ok`: jobs that must end
    first, with exit code 0; if one ends in another way, the new job ends without having run.
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
    """End a job or remove it from the queue. For an array: all its tasks, or only its task `task`."""

    job: int
    task: int = -1


class Queue(msgspec.Struct, frozen=True, tag=True):
    """List running jobs, at most `waiting` waiting and `ended` ended jobs, and the ended ones of `jobs`."""

    waiting: int
    ended: int
    jobs: list[int] = []


class Explain(msgspec.Struct, frozen=True, tag=True):
    """Explain why a job waits and when it will start."""

    job: int


class Nodes(msgspec.Struct, frozen=True, tag=True):
    """List the nodes, and the jobs on their slots."""


class Bars(msgspec.Struct, frozen=True, tag=True):
    """List which jobs were on which slots in the last `seconds` seconds."""

    seconds: float


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Start no further job on a node."""

    node: str
    reason: str


class Resume(msgspec.Struct, frozen=True, tag=True):
    """Use a node again."""

    node: str


class GiveBack(msgspec.Struct, frozen=True, tag=True):
    """Give a node back to Slurm when its jobs have ended."""

    node: str


class TakeIn(msgspec.Struct, frozen=True, tag=True):
    """Add `count` further nodes to the allocation."""

    count: int


Request = Submit | Cancel | Queue | Explain | Nodes | Bars | Drain | Resume | GiveBack | TakeIn


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A refusal, with its reason in one line."""

    error: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """Success, with the number of the job; 0 for a request about a node."""

    job: int


class JobLine(msgspec.Struct, frozen=True):
    """A job as a line of a table. Times are seconds. `nodes`: the number of a running job's slots.

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
    #: the number of the array that the job belongs to; 0: no array
    array: int = 0


class Jobs(msgspec.Struct, frozen=True, tag=True):
    """The requested jobs, and how many jobs wait in all. `turns`: the loop's turns per second.

    `unknown`: the jobs that were asked for and are no jobs of the scheduler's folder.
    """

    policy: str
    running: list[JobLine]
    waiting: list[JobLine]
    ended: list[JobLine]
    waiting_count: int
    turns: int = 0
    unknown: list[int] = []


class Explained(msgspec.Struct, frozen=True, tag=True):
    """The sentences that explain a job."""

    lines: list[str]


class NodeLine(msgspec.Struct, frozen=True):
    """A node as a line of a table. `jobs`: each slot's job (None: no job). `reason`: why it is not up."""

    name: str
    state: NodeState
    reason: str
    jobs: list[int | None]


class NodeLines(msgspec.Struct, frozen=True, tag=True):
    """All nodes; `names`: job on them -> its name."""

    nodes: list[NodeLine]
    names: dict[int, str]


class Gantt(msgspec.Struct, frozen=True, tag=True):
    """The requested bars; their clock now shows `now_s`. `slots`: (number, name) of each slot."""

    now_s: float
    slots: list[tuple[int, str]]
    bars: list[Bar]


Answer = Refused | Done | Jobs | Explained | NodeLines | Gantt


def is_text(text: str) -> bool:
    """Tell whether a request can contain a text: names of files and variables may be no valid UTF-8."""
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
            f"the script and the environment have {len(line)} bytes; at most {REQUEST_MAX_BYTES} can be sent"
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
        raise LiveError(f"the scheduler in {folder} has ended meanwhile; restart it and look into its queue")
    found: Answer = msgspec.json.decode(answer, type=Answer)
    if isinstance(found, Refused):
        raise LiveError(found.error)
    return found
