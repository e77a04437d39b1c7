"""The picture of `top`: how busy the service is, and as many of its jobs as there is room for."""

from __future__ import annotations

from collections import Counter

from rich.console import Group, RenderableType
from rich.text import Text

from mallob_py.cli.status_tables import JOB_COLUMNS, in_order, make_table
from mallob_py.cli.status_text import age_text, printable
from mallob_py.service.telemetry.status import ServiceStatus

_BAR_CELLS = 20


def picture(
    status: ServiceStatus, columns: int, lines: int, sort: str, is_reversed: bool = False
) -> RenderableType:
    """The whole view, in at most `lines` lines of so many cells."""
    head = summary(status)
    jobs = in_order(status.jobs, sort, is_reversed)
    room = max(1, lines - len(head) - 3)  # an empty line, the header and its rule
    shown = jobs if len(jobs) <= room and len(jobs) >= status.job_count else jobs[: max(1, room - 1)]
    parts: list[RenderableType] = [*head]
    if shown:
        parts += [Text(), make_table(JOB_COLUMNS, shown, columns, sort)]
    if (omitted := status.job_count - len(shown)) > 0:
        parts.append(Text(f"... and {omitted} more jobs", "dim"))
    return Group(*parts)


def summary(status: ServiceStatus) -> list[Text]:
    """The service as a whole, in a few lines."""
    filled = round(_BAR_CELLS * min(status.busy, status.pes) / max(status.pes, 1))
    up = f", up {age_text(status.time - status.started)}" if status.started else ""
    pes = Text.assemble(
        "PEs    [",
        ("#" * filled, "green"),
        "." * (_BAR_CELLS - filled),
        f"] {status.busy} of {status.pes} busy, {status.pes - status.busy} idle; ranks: {status.ranks}{up}",
    )
    states = Counter(status.states)
    running = states.pop("running", 0)
    waiting = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    queue = f"; {states.total()} in the queue ({waiting})" if waiting else ""
    lines = [pes, Text(f"jobs   {running} running{queue}")]
    if volumes := status.volumes_by_user():
        parts = ", ".join(f"{printable(user)} {volume}" for user, volume in volumes.most_common())
        lines.append(Text(f"users  volume: {parts}"))
    lines += [
        Text(f"host   {printable(host.name)}: {printable('; '.join(host.troubles))}", "red")
        for host in status.hosts
        if host.troubles
    ]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines
