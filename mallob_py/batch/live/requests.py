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

#: of a request; above all scripts and environments
REQUEST_MAX_BYTES = 16 << 20
#: of an answer: lines on a hundred thousand jobs have some thirty megabytes
ANSWER_MAX_BYTES = 256 << 20
#: a scheduler that has much to do may take its time
_ANSWER_S = 120.0


Encoding: TypeAlias = Literal["utf-8", "latin-1"]


class LiveError(Exception):
    """No scheduler answers, or it refuses. One line."""


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Run this script in this folder; `name` unless it says one itself. `headers` come before its own.

    `after`: when these jobs have ended. `after_ok`: the same, with exit code 0; else it ends as well.
    """

    script: str
    name: str
    directory: str
    environment: dict[str, str]
    headers: dict[str, str] = {}
    after: list[int] = []
    after_ok: list[int] = []
    #: of the script as a file
    encoding: Encoding = "utf-8"


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """End a job, or do not start it; of an array, all tasks, or the one of this number."""

    job: int
    task: int = -1


class Queue(msgspec.Struct, frozen=True, tag=True):
    """Which jobs there are: all that run, and so many of those that wait and that have ended."""

    waiting: int
    ended: int


class Explain(msgspec.Struct, frozen=True, tag=True):
    """Why a job does not run, and when it will."""

    job: int


class Nodes(msgspec.Struct, frozen=True, tag=True):
    """Which nodes there are, and who is on which slot."""


class Bars(msgspec.Struct, frozen=True, tag=True):
    """Ask which jobs have had which slots in the last seconds."""

    seconds: float


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Nothing new is to start on a node."""

    node: str
    reason: str


class Resume(msgspec.Struct, frozen=True, tag=True):
    """A node is fit for jobs again."""

    node: str


class GiveBack(msgspec.Struct, frozen=True, tag=True):
    """A node is not needed any more: when its jobs have ended, it leaves the allocation."""

    node: str


class TakeIn(msgspec.Struct, frozen=True, tag=True):
    """Have so many further nodes in the allocation."""

    count: int


Request = Submit | Cancel | Queue | Explain | Nodes | Bars | Drain | Resume | GiveBack | TakeIn


class Refused(msgspec.Struct, frozen=True, tag=True):
    """It cannot be done. One line."""

    error: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """It is, with the job of this number; 0: with a node."""

    job: int


class JobLine(msgspec.Struct, frozen=True):
    """A job as a table tells it. Times are seconds; `nodes` are those that it has, if it runs.

    `reason`: why it waits, if it does.
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
    #: the number that its array goes by; 0: it is of none
    array: int = 0


class Jobs(msgspec.Struct, frozen=True, tag=True):
    """Jobs asked for, and how many wait in all. `turns`: of the scheduler's loop (`loop_rate.shown`)."""

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
    """The line of a node. `jobs`: who is on each of its slots; None: no job. `reason`: why it is not up."""

    name: str
    state: NodeState
    reason: str
    jobs: list[int | None]


class NodeLines(msgspec.Struct, frozen=True, tag=True):
    """All nodes, and the names of the jobs there."""

    nodes: list[NodeLine]
    names: dict[int, str]


class Gantt(msgspec.Struct, frozen=True, tag=True):
    """The bars asked for, by a clock that shows `now_s`. `slots`: number and name of each, node by node."""

    now_s: float
    slots: list[tuple[int, str]]
    bars: list[Bar]


Answer = Refused | Done | Jobs | Explained | NodeLines | Gantt


def is_text(text: str) -> bool:
    """Whether a request can have it: names of files and variables may be any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def own_environment() -> dict[str, str]:
    """This process's environment, as far as a request can have it."""
    return {name: value for name, value in os.environ.items() if is_text(name + value)}


def ask(folder: Path, request: Request) -> Answer:
    """Raises LiveError."""
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
