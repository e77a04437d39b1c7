"""Where jobs of a live scheduler run: this host, hosts of a node file, nodes of a Slurm allocation."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mallob_py.batch.live.nodes import LOCALHOST, NodesError, read_node_file
from mallob_py.runtime.remote_shell import SSH


class _Fixed:
    """Nodes that do not change while the scheduler runs."""

    environment: Mapping[str, str] = {}
    changes = False

    def check_give_back(self, host: str) -> None:
        raise NodesError(_FIXED)

    def give_back(self, hosts: Sequence[str]) -> None:
        raise NodesError(_FIXED)

    def take_in(self, count: int) -> None:
        raise NodesError(_FIXED)


_FIXED = (
    "nodes come and go while a scheduler runs in an allocation of Slurm (--slurm); here, start it again with "
    "another --nodes or --slots: jobs go on meanwhile, and --drain empties a node"
)


class ThisHost(_Fixed):
    """With so many slots."""

    def __init__(self, slots: int, cores_per_slot: int = 0) -> None:
        """Each slot is to have so many cores of its own at least. Raises NodesError."""
        cores = len(os.sched_getaffinity(0))
        if slots * cores_per_slot > cores:
            each = "a core of its own" if cores_per_slot == 1 else f"{cores_per_slot} cores to divide"
            raise NodesError(f"--affinity: each of {slots} slots is to have {each}, but there are {cores}")
        self._slots = slots

    def nodes(self) -> Mapping[str, int]:
        return {LOCALHOST: self._slots}

    def shell(self, host: str) -> list[str]:
        return []


class Hosts(_Fixed):
    """Those of a node file, reached by a remote shell: COMMAND HOST WHAT-TO-RUN..."""

    def __init__(self, path: Path, shell: Sequence[str] = SSH) -> None:
        """Raises NodesError, OSError."""
        self._nodes = read_node_file(path)
        self._shell = shell

    def nodes(self) -> Mapping[str, int]:
        return self._nodes

    def shell(self, host: str) -> list[str]:
        return [] if host == LOCALHOST else [*self._shell, host]
