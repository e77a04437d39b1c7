"""What a client of the service says when it ends: what it leaves behind, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What is unfinished in a client's folder."""

    running_jobs: int
    waiting_jobs: int
    #: chains of revisions that are not done
    chains: int
    #: ready, but could not be written
    replies: int
    #: that nobody has looked at
    files: int


def last_words(client_dir: Path, left: Leftovers) -> str:
    """One line."""
    journalled = []
    if left.running_jobs:
        journalled.append(_count(left.running_jobs, "running job"))
    if left.waiting_jobs:
        journalled.append(_count(left.waiting_jobs, "waiting job"))
    if left.chains:
        journalled.append(f"{_count(left.chains, 'chain')} of revisions")
    parts = []
    if journalled:
        parts.append(f"kept in {client_dir / 'journal'} for the next start: {', '.join(journalled)}")
    if left.replies:
        parts.append(f"not yet written to {client_dir / 'out'}: {_count(left.replies, 'reply')}")
    if left.files:
        parts.append(f"not yet looked at in {client_dir / 'in'}: {_count(left.files, 'job file')}")
    if not parts:
        return f"ended; every job of {client_dir} has its reply"
    return f"ended; {'; '.join(parts)}"


def _count(number: int, what: str) -> str:
    if number == 1:
        return f"1 {what}"
    return f"{number} {what[:-1]}ies" if what.endswith("y") else f"{number} {what}s"
