"""The service's status as text for terminals: what `top`, `submit --wait` and `wait` show.

Guarantee: no line is wider than asked for, counted in a terminal's cells.
"""

from __future__ import annotations

import unicodedata
from collections import Counter

from mallob_py.service.status_file import JobStatus, ServiceStatus

_BAR_CELLS = 20
_FIXED_CELLS = len("  APPLIC  PRIORITY  VOL  DEMAND      AGE  STATE  ")
_NAME_CELLS_MIN = 8


def age_text(age_s: float) -> str:
    """Such as 4.2s, 3:07, 2:15:00 or 3d04h."""
    if age_s < 60:
        return f"{age_s:.1f}s"
    minutes, seconds = divmod(int(age_s), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d{hours % 24:02}h"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def progress_text(identity: str, status: ServiceStatus | None, client: int, waited_s: float) -> str:
    """One line on a job that is being waited for."""
    if status is None:
        return f"{identity}: no service is running; waiting since {age_text(waited_s)}"
    job = status.job(identity, client)
    if job is None:
        return f"{identity}: handed in, {age_text(waited_s)}"
    workers = f"{job.volume} of {job.demand} workers, " if job.demand else ""
    return f"{identity}: {job.state}, {workers}{age_text(job.elapsed_s)}"


def screen(status: ServiceStatus, columns: int, lines: int) -> list[str]:
    """The whole view, in at most `lines` lines."""
    head = [clipped(line, columns) for line in _summary(status)]
    if not status.jobs:
        return head[:lines]
    names = sorted(status.jobs, key=_rank_of)
    table = _table(names, columns)
    room = max(2, lines - len(head) - 1)
    if len(table) > room:
        table = [*table[: room - 1], f"... and {len(table) - room + 1} more jobs"]
    return [*head, "", *(clipped(line, columns) for line in table)][:lines]


def clipped(text: str, cells: int) -> str:
    """The text, cut so that it takes no more cells of a terminal."""
    if _cells(text) <= cells:
        return text
    kept, width = "", 0
    for char in text:
        width += _cells(char)
        if width >= cells:
            break
        kept += char
    return f"{kept}…" if cells > 0 else ""


def _summary(status: ServiceStatus) -> list[str]:
    filled = round(_BAR_CELLS * min(status.busy, status.pes) / max(status.pes, 1))
    bar = "#" * filled + "." * (_BAR_CELLS - filled)
    up = f", up {age_text(status.time - status.started)}" if status.started else ""
    pes = f"PEs    [{bar}] {status.busy} of {status.pes} busy, {status.pes - status.busy} idle; "
    pes += f"ranks: {status.ranks}{up}"
    states = Counter(job.state for job in status.jobs)
    queued = len(status.jobs) - states["running"]
    waiting = ", ".join(f"{count} {state}" for state, count in sorted(states.items()) if state != "running")
    queue = f"; {queued} in the queue ({waiting})" if queued else ""
    lines = [pes, f"jobs   {states['running']} running{queue}"]
    if volumes := status.volumes_by_user():
        parts = (f"{user} {volume}" for user, volume in volumes.most_common())
        lines.append(f"users  volume: {', '.join(parts)}")
    return lines


def _rank_of(job: JobStatus) -> tuple[object, ...]:
    """The largest first; in the queue, by priority and age."""
    return (-job.volume, -job.priority, -job.elapsed_s, job.identity)


def _table(jobs: list[JobStatus], columns: int) -> list[str]:
    room = max(2 * _NAME_CELLS_MIN, columns - _FIXED_CELLS - len("waiting"))
    longest_user = max(_cells(job.user) for job in jobs)
    user_cells = min(max(4, longest_user), max(_NAME_CELLS_MIN, room // 3))
    name_cells = min(max(4, max(_cells(job.name) for job in jobs)), room - user_cells)

    def line(user: str, name: str, rest: tuple[str, str, str, str, str, str]) -> str:
        application, priority, volume, demand, age, state = rest
        return (
            f"{_padded(user, user_cells)}  {_padded(name, name_cells)}  {clipped(application, 6):<6}  "
            f"{priority:>8}  {volume:>3}  {demand:>6}  {age:>7}  {state}"
        )

    header = line("USER", "NAME", ("APPLIC", "PRIORITY", "VOL", "DEMAND", "AGE", "STATE"))
    rows = [
        line(
            job.user,
            job.name,
            (
                job.application,
                f"{job.priority:.4g}",
                str(job.volume),
                str(job.demand),
                age_text(job.elapsed_s),
                job.state,
            ),
        )
        for job in jobs
    ]
    return [header, *rows]


def _padded(text: str, cells: int) -> str:
    text = clipped(text, cells)
    return text + " " * (cells - _cells(text))


def _cells(text: str) -> int:
    """Of a terminal: 2 for wide characters, 0 for combining ones."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
