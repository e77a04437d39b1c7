"""File descriptors: how many a process may have, how many a rank needs.

A rank has two for each of its worker processes, whether they run or are suspended, and the usual limit of
1024 is that of a time when a process had a few. The soft limit is the process's own to raise.
"""

from __future__ import annotations

import resource

#: more would make programs slow that close all they could have
_WANTED = 1 << 16
#: per worker process: its socket and its pidfd
_PER_PROCESS = 2
#: MPI with its network, doorbells, logs, the api folder, transfers, readers of inputs
_OF_THE_RANK = 256


def raise_limit() -> int:
    """Raise the soft limit as far as is allowed and sensible; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft if soft != resource.RLIM_INFINITY else _WANTED
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def needed(pes: int, processes_per_pe: int) -> int:
    """What a rank of so many PEs may come to have; each process's description is locked by one more."""
    return _OF_THE_RANK + pes * processes_per_pe * (_PER_PROCESS + 1)


def shortage(pes: int, processes_per_pe: int, limit: int) -> str | None:
    """Why a rank cannot host so many PEs; None if it can."""
    wanted = needed(pes, processes_per_pe)
    if wanted <= limit:
        return None
    most = max(0, (limit - _OF_THE_RANK) // (processes_per_pe * (_PER_PROCESS + 1)))
    return (
        f"--pes: {pes} PEs on one rank may need {wanted} file descriptors, {limit} are allowed: have at most "
        f"{most} PEs per rank, lower --job-cache or --warm, or raise the hard limit (ulimit -Hn, LimitNOFILE)"
    )
