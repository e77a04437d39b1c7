"""The columns of what the service's status lists: live jobs, ended jobs, hosts.

One description each, for `status` and `top` alike: title, text, order. Names are other people's: whatever
is in them, they print as one line of plain characters.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from mallob_py.cli.status_text import age_text, printable
from mallob_py.service.telemetry.status import EndedJob, HostStatus, JobStatus, ServiceStatus
from mallob_py.text_table import empty_table, format_cell

Row = TypeVar("Row")

STATE_STYLES = {
    **{"running": "green", "waiting": "yellow", "queued": "yellow", "held": "dim", "reading": "cyan"},
    **{"submitted": "cyan", "result": "green", "failed": "red", "refused": "red"},
}
_NAME_CELLS_MIN = 8
_GAP_CELLS = 2


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """`order` is what rows are sorted by; numbers start with the largest."""

    key: str
    title: str
    text: Callable[[Row], str]
    order: Callable[[Row], Any]
    is_number: bool = False
    #: names and sentences give way where the terminal is narrow
    is_name: bool = False
    #: what is left out first where there is no room has the largest; 0: never
    spareable: int = 0
    style: Callable[[Row], str] = lambda _: ""


def _number(
    key: str, title: str, value: Callable[[Any], float], text: Callable[[Any], str], spareable: int = 0
) -> Column[Any]:
    return Column(key, title, text, value, is_number=True, spareable=spareable)


def _name(key: str, title: str, value: Callable[[Any], str]) -> Column[Any]:
    return Column(key, title, lambda row: printable(value(row)), value, is_name=True)


def _word(key: str, title: str, value: Callable[[Any], str], spareable: int = 0) -> Column[Any]:
    return Column(
        *(key, title, lambda row: printable(value(row)), value),
        spareable=spareable,
        style=lambda row: STATE_STYLES.get(value(row), ""),
    )


JOB_COLUMNS: tuple[Column[JobStatus], ...] = (
    _number("id", "ID", lambda job: job.id, lambda job: str(job.id), 2),
    _name("user", "USER", lambda job: job.user),
    _name("name", "NAME", lambda job: job.name),
    _word("application", "APPLIC", lambda job: job.application, 3),
    _number("priority", "PRIORITY", lambda job: job.priority, lambda job: f"{job.priority:.4g}", 1),
    _number("volume", "VOL", lambda job: job.volume, lambda job: str(job.volume)),
    _number("demand", "DEMAND", lambda job: job.demand, lambda job: str(job.demand)),
    _number("age", "AGE", lambda job: job.elapsed_s, lambda job: age_text(job.elapsed_s)),
    _word("state", "STATE", lambda job: job.state),
)
ENDED_COLUMNS: tuple[Column[EndedJob], ...] = (
    _number("id", "ID", lambda job: job.id, lambda job: str(job.id), 4),
    _name("user", "USER", lambda job: job.user),
    _name("name", "NAME", lambda job: job.name),
    _word("outcome", "OUTCOME", lambda job: job.outcome),
    _word("result", "RESULT", lambda job: job.result or "-"),
    _number("ended", "ENDED", lambda job: job.ended, lambda job: f"{age_text(_since(job.ended))} ago"),
    _number("response", "RESPONSE", lambda job: job.total_s, lambda job: age_text(job.total_s), 1),
    _number("volume", "MAX VOL", lambda job: job.max_volume, lambda job: str(job.max_volume), 2),
    _number("pe", "PE [s]", lambda job: job.pe_s, lambda job: format_cell(job.pe_s), 3),
    _number("cpu", "CPU [s]", lambda job: job.cpu_s, lambda job: format_cell(job.cpu_s), 3),
    Column("error", "ERROR", lambda job: printable(job.error), lambda job: job.error, is_name=True),
)
HOST_COLUMNS: tuple[Column[HostStatus], ...] = (
    _name("host", "HOST", lambda host: host.name),
    Column("ranks", "RANKS", lambda host: ranges(host.ranks), lambda host: host.ranks),
    _number("pes", "PES", lambda host: host.pes, lambda host: str(host.pes)),
    _number("busy", "BUSY", lambda host: host.busy, lambda host: str(host.busy)),
    Column(
        *("troubles", "TROUBLES", lambda host: printable("; ".join(host.troubles)) or "-"),
        lambda host: host.troubles,
        is_name=True,
        style=lambda host: "red" if host.troubles else "",
    ),
)


def in_order(jobs: Iterable[JobStatus], key: str, is_reversed: bool = False) -> list[JobStatus]:
    """Numbers from the largest on, words from A on; equals by volume, priority and age."""
    column = next(column for column in JOB_COLUMNS if column.key == key)
    jobs = sorted(jobs, key=lambda job: (-job.volume, -job.priority, -job.elapsed_s, job.identity))
    return sorted(jobs, key=column.order, reverse=column.is_number is not is_reversed)


def of_user(status: ServiceStatus, user: str | None) -> ServiceStatus:
    """The status with the jobs of one user alone; None: of all."""
    if user is None:
        return status
    jobs = tuple(job for job in status.jobs if job.user == user)
    account = status.users.get(user)
    states = Counter(job.state for job in jobs)
    if account is not None and account.jobs > len(jobs):
        states["not listed"] = account.jobs - len(jobs)
    return msgspec.structs.replace(
        status,
        jobs=jobs,
        ended=tuple(job for job in status.ended if job.user == user),
        states=states,
        users={} if account is None else {user: account},
    )


def make_table(
    columns: Sequence[Column[Row]], rows: Sequence[Row], width: int | None = None, sorted_by: str = ""
) -> Table:
    """A table in at most so many cells; None: however wide.

    Where it is too wide, names are cut, then columns are left out.
    """
    texts = {column.key: [column.text(row) for row in rows] for column in columns}
    widths = {column.key: max(map(cell_len, (column.title, *texts[column.key]))) for column in columns}
    shown = _columns_that_fit(columns, widths, width)
    name_cells = _cells_of_names(shown, widths, width)
    table = empty_table()
    for column in shown:
        style = "bold underline" if column.key == sorted_by else "bold"
        table.add_column(
            Text(column.title, style),
            justify="right" if column.is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=name_cells if column.is_name else None,
        )
    for number, row in enumerate(rows):
        table.add_row(*(Text(texts[column.key][number], column.style(row)) for column in shown))
    return table


def _columns_that_fit(
    columns: Sequence[Column[Row]], widths: Mapping[str, int], width: int | None
) -> Sequence[Column[Row]]:
    """All, if names may be cut; else without those that can be spared, the most spareable first."""
    if width is None:
        return columns
    least = {
        column.key: min(widths[column.key], _NAME_CELLS_MIN) if column.is_name else widths[column.key]
        for column in columns
    }
    shown = list(columns)
    while sum(least[column.key] + _GAP_CELLS for column in shown) - _GAP_CELLS > width:
        spareable = max(shown, key=lambda column: column.spareable)
        if not spareable.spareable:
            break
        shown.remove(spareable)
    return shown


def _cells_of_names(
    columns: Sequence[Column[Any]], widths: Mapping[str, int], width: int | None
) -> int | None:
    """How wide a name may be so that the line fits; None: as wide as it is."""
    names = sorted(widths[column.key] for column in columns if column.is_name)
    if width is None:
        return None
    others = sum(widths[column.key] for column in columns if not column.is_name)
    room = width - _GAP_CELLS * (len(columns) - 1) - others
    # Short names leave their room to long ones.
    for position, cells in enumerate(names):
        share = room // (len(names) - position)
        if cells > share:
            return max(_NAME_CELLS_MIN, share)
        room -= cells
    return None


def ranges(numbers: Sequence[int]) -> str:
    """Such as 0-3,8."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _since(moment: float) -> float:
    return max(0.0, time.time() - moment)
