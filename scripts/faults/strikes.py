"""All faults as data: the part of the service that is hit, and how often each campaign hits it.

To add a fault, add a line to `PARTS` and a weight to the tables of its campaigns.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.processes import (
    Family,
    command_line,
    inherits,
    marked_processes,
    parent_of,
    rank_number,
    state_of,
)
from faults.service import Service
from mallob_py.launchers import INVITED_VARIABLE


@dataclass(frozen=True, slots=True)
class Target:
    """A service and its present processes. Of its ranks, only those in `ranks` may be hit."""

    service: Service
    family: Family
    ranks: Sequence[int]
    rng: random.Random
    number_of: Callable[[int], int] = rank_number

    @classmethod
    def of(cls, service: Service, rng: random.Random) -> Target:
        family = Family.of(service.mark)
        return cls(service, family, family.ranks, rng)


#: name of a part -> function that returns the part's processes; no processes: the part does not exist now
PARTS: Mapping[str, Callable[[Target], list[int]]] = {
    "everything": lambda at: marked_processes(at.service.mark),
    "launching process": lambda at: [at.service.process.pid],
    "launcher": lambda at: _one(at, [pid for pid in _programs(at, "mpiexec") if _is_launched(at, pid)]),
    "proxy": lambda at: _one(at, _programs(at, "hydra_pmi_proxy")),
    "rank": lambda at: _one(at, at.ranks),
    "first rank": lambda at: sorted(at.ranks, key=at.number_of)[:1],
    "client's rank": lambda at: _client_rank(at),
    "first ranks": lambda at: [pid for pid in at.ranks if not inherits(pid, INVITED_VARIABLE)],
    "two ranks": lambda at: at.rng.sample(list(at.ranks), 2) if len(at.ranks) > 2 else [],
    "newcomer": lambda at: _one(at, _newcomers(at)),
    "fork server": lambda at: _one(at, at.family.fork_servers),
    "worker": lambda at: _one(at, at.family.workers),
    "computing worker": lambda at: _one(at, [pid for pid in at.family.workers if state_of(pid) == "R"]),
}

#: weights of the parts that the campaign `kills` kills (STOPS: that it stops for a while)
KILLS = {
    "everything": 3, "launching process": 3, "launcher": 2, "proxy": 2, "rank": 6, "worker": 3,
    "fork server": 1,
}  # fmt: skip
#: weights of parts whose loss the other ranks survive
LOSSES = {"first rank": 3, "client's rank": 4, "two ranks": 3, "first ranks": 1}
STOPS = {"everything": 1, "launching process": 1, "launcher": 1, "proxy": 1, "rank": 1}
#: weights of parts in the soak (SOAK_RANKS: only if other ranks survive a loss)
SOAK_PROCESSES = {"worker": 9, "fork server": 1}
SOAK_RANKS = {"rank": 2, "first rank": 1, "client's rank": 1, "two ranks": 1}
#: weights of the ways in which the soak ends a service's ranks: stopping it, or killing its first ranks
SOAK_ENDS = {"stop": 1, "first ranks": 1}
#: weights of the disks that are full for seconds
SOAK_DISKS = {"api": 2, "logs": 1, "tmp": 1}
#: weights of the encodings of a service's standard streams
ENCODINGS = {"utf-8": 1, "ascii": 1}


def draw(weights: Mapping[str, int], rng: random.Random) -> str:
    (name,) = rng.choices(list(weights), list(weights.values()))
    return name


def signal_all(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def hit(service: Service, verb: str, part: str, pids: Sequence[int]) -> None:
    """Kill or stop these processes, as `verb` says, and note it in the service's output."""
    service.note_processes()
    service.note(f"{verb} {part} {list(pids)}")
    signal_all(pids, signal.SIGSTOP if verb == "stop" else signal.SIGKILL)


def _one(at: Target, pids: Sequence[int]) -> list[int]:
    return [at.rng.choice(pids)] if pids else []


def _programs(at: Target, name: str) -> list[int]:
    def is_one(pid: int) -> bool:
        return any(Path(word).name.startswith(name) for word in command_line(pid).split(" ")[:2])

    return [pid for pid in marked_processes(at.service.mark) if is_one(pid)]


def _is_launched(at: Target, pid: int) -> bool:
    return parent_of(pid) == at.service.process.pid


def _client_rank(at: Target) -> list[int]:
    """Return the rank of a random client; no rank while the client's folder moves to another rank."""
    lock = at.service.box(at.rng.randrange(at.service.clients)) / ".lock"
    with contextlib.suppress(OSError, ValueError, IndexError):
        holder = int(lock.read_text().split()[0])
        return [pid for pid in at.ranks if pid == holder]
    return []


def _newcomers(at: Target) -> list[int]:
    """Return the processes of new ranks outside of `ranks`, which may not have joined yet."""
    pids = set(marked_processes(at.service.mark)) - set(at.ranks)
    invited = {pid for pid in pids if inherits(pid, INVITED_VARIABLE)}
    return [pid for pid in sorted(invited) if parent_of(pid) not in invited]
