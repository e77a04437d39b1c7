"""The service's numbers in Prometheus' text format 0.0.4.

All of them come from the status file, so that a scrape costs the service nothing; the memory of the
ranks comes from /proc, of those that run on this host. Counters start at zero with the service.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from mallob_py.runtime.world import RANK_VARIABLES
from mallob_py.service.status_file import ServiceStatus
from mallob_py.service.tallies import BOUNDS_S, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATES = ("held", "queued", "reading", "submitted", "waiting", "running")


def metrics(status: ServiceStatus | None, upload_bytes: int) -> str:
    """The whole page. Without a service: that there is none."""
    lines = [
        *_family("up", "gauge", "Whether a service runs on the api folder.", [({}, status is not None)]),
        *_family("web_upload_bytes", "gauge", "Uploads kept for live jobs.", [({}, upload_bytes)]),
    ]
    if status is not None:
        lines += _of_service(status)
    return "\n".join(lines) + "\n"


def _of_service(status: ServiceStatus) -> Iterator[str]:
    jobs = {name: user.jobs for name, user in status.users.items()}
    idle = max(0, status.pes - status.busy)
    yield from _family("start_time_seconds", "gauge", "Start of the service.", [({}, status.started)])
    yield from _family("status_age_seconds", "gauge", "Age of these numbers.", [({}, status.age_s())])
    yield from _family("ranks", "gauge", "Number of ranks.", [({}, status.ranks)])
    yield from _family(
        "pes", "gauge", "PEs by state.", [({"state": "busy"}, status.busy), ({"state": "idle"}, idle)]
    )
    states = dict.fromkeys(_STATES, 0) | dict(status.states)
    yield from _family("jobs", "gauge", "Live jobs by state.", _labelled("state", states))
    yield from _family("user_jobs", "gauge", "Live jobs by user.", _labelled("user", jobs))
    yield from _family(
        "user_volume", "gauge", "Workers by user.", _labelled("user", status.volumes_by_user())
    )
    yield from _family(
        "replies_total", "counter", "Replies by outcome.", _labelled("outcome", status.totals.replies)
    )
    yield from _histograms(status.totals.times)
    yield from _family(
        "rank_resident_memory_bytes", "gauge", "Memory of ranks on this host.", _memory(status)
    )


def _labelled(label: str, values: Mapping[str, float]) -> list[tuple[dict[str, str], float]]:
    return [({label: name}, value) for name, value in sorted(values.items())]


def _family(
    name: str, kind: str, text: str, samples: Iterable[tuple[Mapping[str, str], float]]
) -> Iterator[str]:
    yield f"# HELP mallob_py_{name} {text}"
    yield f"# TYPE mallob_py_{name} {kind}"
    for labels, value in samples:
        yield _sample(name, labels, value)


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return (
        f"mallob_py_{name}{{{inside}}} {float(value):.12g}"
        if inside
        else (f"mallob_py_{name} {float(value):.12g}")
    )


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _histograms(times: Mapping[str, Histogram]) -> Iterator[str]:
    name = "job_duration_seconds"
    yield f"# HELP mallob_py_{name} Times of jobs that have ended, by part of their way."
    yield f"# TYPE mallob_py_{name} histogram"
    for part, histogram in sorted(times.items()):
        total = 0
        for bound, count in zip((*BOUNDS_S, float("inf")), histogram.counts, strict=True):
            total += count
            edge = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield _sample(f"{name}_bucket", {"part": part, "le": edge}, total)
        yield _sample(f"{name}_sum", {"part": part}, histogram.sum_s)
        yield _sample(f"{name}_count", {"part": part}, total)


def _memory(status: ServiceStatus) -> list[tuple[Mapping[str, str], float]]:
    """Of all ranks beside the clients' ones: a launcher is the parent of all ranks of its host."""
    host = socket.gethostname()
    found: dict[int, tuple[Mapping[str, str], float]] = {}
    for process in status.processes:
        if process.host != host:
            continue
        parent = _parent(process.pid)
        for pid in _children(parent) if parent > 1 else ():
            rank = _rank_number(pid)
            if rank is not None:
                found[rank] = ({"rank": str(rank)}, _resident_bytes(pid))
    return [found[rank] for rank in sorted(found)]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _children(parent: int) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:
        return []


def _rank_number(pid: int) -> int | None:
    """The number that the launcher has given to this process; None if it is no rank of ours."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if b"mallob" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return None
    except OSError:
        return None
    given = dict(entry.partition(b"=")[::2] for entry in environment)
    numbers = (given.get(variable.encode(), b"") for variable in RANK_VARIABLES)
    return next((int(number) for number in numbers if number.isdigit()), None)


def _resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
