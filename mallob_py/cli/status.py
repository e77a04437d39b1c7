"""`mallob-py status | top`: show the service's jobs and busy PEs, or its hosts, last ended jobs or measures.

`status` prints a list once, `top` shows the jobs repeatedly. In a terminal, `top` uses the whole screen,
reads keys and restores the screen at the end; otherwise it prints a block of plain lines per interval. Both
read the api folder only, so `top` waits while the service is down and continues when the service is back.
Both commands share the descriptions of columns: title, text, order. Names come from other users and may
contain any characters: they must be printed as one line of plain characters.

Exit codes: of `status` and `top --once` 1 if no service is running, else 0; of `top` 0 after q or Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

import msgspec
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from mallob_py.cli.client_options import StatusOptions, TopOptions
from mallob_py.cli.values import age_text, far_text, printable
from mallob_py.loop_rate import RESTS_BELOW
from mallob_py.protocol.placement import numbers_as_ranges
from mallob_py.runtime.notices import say
from mallob_py.service.store.lock import holder_of
from mallob_py.service.telemetry.measures import MEASURES
from mallob_py.service.telemetry.status import (
    EndedJob,
    HostStatus,
    JobStatus,
    ServiceStatus,
    StatusWatch,
    read_seen_status,
)
from mallob_py.text_table import Output, as_text, empty_table, format_cell

Row = TypeVar("Row")

STATE_STYLES = {
    **{
        "running": "green",
        "waiting": "yellow",
        "resting": "yellow",
        "queued": "yellow",
        "held": "dim",
        "reading": "cyan",
    },
    **{"submitted": "cyan", "result": "green", "failed": "red", "refused": "red"},
}
_NAME_CELLS_MIN = 8
#: greatest number of groups in the summary, which shows the latest groups
_GROUPS_MAX = 3
_GAP_CELLS = 2


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column of a table. `order`: the rows' sort key for the column; the largest number comes first."""

    key: str
    title: str
    text: Callable[[Row], str]
    order: Callable[[Row], Any]
    is_number: bool = False
    #: whether the column's texts may be cut on a narrow terminal
    is_name: bool = False
    #: on a narrow terminal, the column with the largest value is left out first; 0: never left out
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
        style=lambda row: STATE_STYLES.get(value(row).partition(",")[0], ""),
    )


JOB_COLUMNS: tuple[Column[JobStatus], ...] = (
    _number("id", "ID", lambda job: job.id, lambda job: str(job.id), 3),
    _name("user", "USER", lambda job: job.user),
    _name("name", "NAME", lambda job: job.name),
    _word("application", "APPLIC", lambda job: job.application, 4),
    _number("priority", "PRIORITY", lambda job: job.priority, lambda job: f"{job.priority:.4g}", 2),
    _number("volume", "VOL", lambda job: job.volume, lambda job: str(job.volume)),
    _number("demand", "DEMAND", lambda job: job.demand, lambda job: str(job.demand)),
    _number("age", "AGE", lambda job: job.elapsed_s, lambda job: age_text(job.elapsed_s)),
    _word("state", "STATE", lambda job: job.state_text),
)
#: last column, shown only if a job reports progress
PROGRESS_COLUMN: Column[JobStatus] = Column(
    *("progress", "PROGRESS", lambda job: far_text(job.progress, job.interim) or "-"),
    lambda job: job.progress.done if job.progress else -1.0,
    spareable=1,
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
    Column("ranks", "RANKS", lambda host: numbers_as_ranges(host.ranks), lambda host: host.ranks),
    _number("pes", "PES", lambda host: host.pes, lambda host: str(host.pes)),
    _number("busy", "BUSY", lambda host: host.busy, lambda host: str(host.busy)),
    _number("turns", "TURNS/S", lambda host: host.turns, lambda host: str(host.turns or f"<{RESTS_BELOW}")),
    Column(
        *("troubles", "TROUBLES", lambda host: printable("; ".join(host.troubles)) or "-"),
        lambda host: host.troubles,
        is_name=True,
        style=lambda host: "red" if host.troubles else "",
    ),
)
#: the columns of `status --measures`: name, value, meaning
MEASURE_COLUMNS: tuple[Column[tuple[str, float, str]], ...] = (
    _name("name", "NAME", lambda row: row[0]),
    _number("value", "VALUE", lambda row: row[1], lambda row: f"{row[1]:.10g}"),
    _name("meaning", "MEANING", lambda row: row[2]),
)


def _measure_rows(status: ServiceStatus) -> list[tuple[str, float, str]]:
    rows = []
    for one in MEASURES:
        value = one.of(status)
        values = value if isinstance(value, Mapping) else {"": value}
        for label, number in values.items():
            rows.append((f"{one.name}{{{label}}}" if one.label else one.name, number, one.meaning))
    return rows


def job_table(jobs: Sequence[JobStatus], width: int | None, sorted_by: str = "") -> Table:
    """Return a table of live jobs; arguments as for `make_table`."""
    more = (PROGRESS_COLUMN,) if any(far_text(job.progress, job.interim) for job in jobs) else ()
    return make_table((*JOB_COLUMNS, *more), jobs, width, sorted_by)


def in_order(jobs: Iterable[JobStatus], key: str, is_reversed: bool = False) -> list[JobStatus]:
    """Sort jobs by a column: numbers from the largest, words from A; equal jobs by volume, priority, age."""
    column = next(column for column in JOB_COLUMNS if column.key == key)
    jobs = sorted(jobs, key=lambda job: (-job.volume, -job.priority, -job.elapsed_s, job.identity))
    return sorted(jobs, key=column.order, reverse=column.is_number is not is_reversed)


def chosen_part(status: ServiceStatus, user: str | None, group: str | None) -> ServiceStatus:
    """Return the status with only the jobs of a user, of a group, or of a user's group; None: any."""
    if user is None and group is None:
        return status

    def is_chosen(job: JobStatus | EndedJob) -> bool:
        return user in (None, job.user) and group in (None, job.group)

    jobs = tuple(filter(is_chosen, status.jobs))
    users = {name: one for name, one in status.users.items() if user in (None, name)}
    groups = [one for one in status.groups if user in (None, one.user) and group in (None, one.name)]
    states = Counter(job.state for job in jobs)
    count = sum(one.jobs for one in (users.values() if group is None else groups))
    if count > len(jobs):
        states["not listed"] = count - len(jobs)
    return msgspec.structs.replace(
        status,
        jobs=jobs,
        ended=tuple(filter(is_chosen, status.ended)),
        states=states,
        users=users if group is None else {},
        groups=tuple(groups),
    )


def make_table(
    columns: Sequence[Column[Row]], rows: Sequence[Row], width: int | None = None, sorted_by: str = ""
) -> Table:
    """Return a table of at most `width` cells (None: no bound): names are cut, then columns left out."""
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
    """Return the columns that fit if names are cut; if necessary, the most spareable ones are left out."""
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
    """Return the greatest width of names with which a line fits; None: names need not be cut."""
    names = sorted(widths[column.key] for column in columns if column.is_name)
    if width is None:
        return None
    others = sum(widths[column.key] for column in columns if not column.is_name)
    room = width - _GAP_CELLS * (len(columns) - 1) - others
    # Short names leave their unused cells to long ones.
    for position, cells in enumerate(names):
        share = room // (len(names) - position)
        if cells > share:
            return max(_NAME_CELLS_MIN, share)
        room -= cells
    return None


def _since(moment: float) -> float:
    return max(0.0, time.time() - moment)


def _why_silent(api_dir: str, status: ServiceStatus | None) -> str:
    """Return why nothing can be shown: no service runs, or the rank that writes the status hangs."""
    if status is None:
        return f"no service is running on {api_dir}"
    last = f"its last sign of life is {status.age_s():.0f} s old"
    with contextlib.suppress(OSError):
        if (holder := holder_of(Path(api_dir) / "jobs.0")) is not None:
            return f"the service on {api_dir} does not answer ({holder}): {last}"
    return f"no service is running on {api_dir} ({last})"


# --- status --------------------------------------------------------------------------------


def run_status(options: StatusOptions) -> int:
    status = read_seen_status(options.api_dir)
    if status is None or status.is_stale():
        say(f"mallob-py status: {_why_silent(options.api_dir, status)}")
        return 1
    status = chosen_part(status, options.user, options.group)
    if options.json:
        print(msgspec.json.encode(status).decode())
        return 0
    console = Output()
    width = console.width if console.is_terminal else None
    for line in summary(status):
        console.print(line)
    table, rest = _table(options, status, width)
    if table.row_count:
        console.print()
        console.print(as_text(table))
    if rest:
        console.print(rest)
    return 0


def _table(options: StatusOptions, status: ServiceStatus, width: int | None) -> tuple[Table, str]:
    """Return the requested table, and the line below it ("": none)."""
    if options.hosts:
        return make_table(HOST_COLUMNS, status.hosts, width), ""
    if options.measures:
        return make_table(MEASURE_COLUMNS, _measure_rows(status), width), ""
    if options.ended:
        rest = "" if status.ended else "no job has ended yet"
        return make_table(ENDED_COLUMNS, status.ended[::-1], width), rest
    table = job_table(in_order(status.jobs, options.sort), width)
    omitted = status.job_count - len(status.jobs)
    return table, f"... and {omitted} more jobs" if omitted > 0 else ""


# --- top -----------------------------------------------------------------------------------


#: pressed key -> column by which jobs are sorted
_SORT_KEYS = {
    **{"v": "volume", "p": "priority", "d": "demand", "a": "age"},
    **{"u": "user", "n": "name", "s": "state", "i": "id"},
}
_HINT = "q quits, r reverses; sort by " + " ".join(f"{key}:{name}" for key, name in _SORT_KEYS.items())
#: width assumed for output to a pipe, so that no line is cut
_PLAIN_CELLS = 1000
#: number of lines assumed for output to a pipe, so that no line is left out
_PLAIN_LINES = 1_000_000


class _View:
    """The list of jobs that `top` shows, and its order."""

    def __init__(self, options: TopOptions) -> None:
        self._options = options
        self._watch = StatusWatch(options.api_dir)
        self._sort = options.sort
        self._is_reversed = False

    def press(self, key: str) -> None:
        if key == "r":
            self._is_reversed = not self._is_reversed
        elif key in _SORT_KEYS:
            self._sort, self._is_reversed = _SORT_KEYS[key], False

    def look(self, columns: int, lines: int) -> tuple[RenderableType, bool]:
        """Return the lines to show, and whether a service is running."""
        status = self._watch.read()
        if status is not None and not status.is_stale():
            status = chosen_part(status, self._options.user, self._options.group)
            return picture(status, columns, lines, self._sort, self._is_reversed), True
        text = Text(_why_silent(self._options.api_dir, status), no_wrap=True)
        text.overflow = "ellipsis"
        return text, False


def run_top(options: TopOptions) -> int:
    console = Console(highlight=False, emoji=False)
    view = _View(options)
    if options.once:
        return 0 if _print_block(console, view) else 1
    try:
        if console.is_terminal and not console.is_dumb_terminal:
            _fill_the_terminal(console, view, options.interval_s)
        else:
            while True:
                _print_block(console, view)
                print(flush=True)
                time.sleep(options.interval_s)
    except KeyboardInterrupt:
        pass
    return 0


def _print_block(console: Console, view: _View) -> bool:
    console.width = shutil.get_terminal_size((_PLAIN_CELLS, _PLAIN_LINES)).columns
    shown, is_running = view.look(console.width, _PLAIN_LINES)
    with console.capture() as capture:
        console.print(shown)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))
    return is_running


def _fill_the_terminal(console: Console, view: _View, interval_s: float) -> None:
    hint = Text(_HINT, "dim", no_wrap=True, overflow="ellipsis")
    from rich.live import Live

    with _events() as wait, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            shown, _ = view.look(console.width, console.height - 1)
            live.update(Group(shown, hint), refresh=True)
            for key in wait(interval_s):
                if key in "qQ":
                    return
                view.press(key)


@contextlib.contextmanager
def _events() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits at most the given seconds for keys or a resized window, and returns keys.

    SIGTERM ends the view as Ctrl-C does, so that the terminal is restored.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def wait(seconds: float) -> str:
        readable, _, _ = select.select([woken, *keyboard], [], [], seconds)
        if woken in readable:
            os.read(woken, 64)
        return os.read(keyboard[0], 64).decode(errors="replace") if keyboard[0:1] == readable[-1:] else ""

    keyboard = [sys.stdin.fileno()] if sys.stdin is not None and sys.stdin.isatty() else []
    woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGWINCH, lambda number, frame: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    before = [termios.tcgetattr(fd) for fd in keyboard]
    try:
        for fd in keyboard:
            tty.setcbreak(fd)
        yield wait
    finally:
        for fd, attributes in zip(keyboard, before, strict=True):
            termios.tcsetattr(fd, termios.TCSADRAIN, attributes)
        signal.set_wakeup_fd(-1)


# --- the view of the service ---------------------------------------------------------------


_BAR_CELLS = 20


def picture(
    status: ServiceStatus, columns: int, lines: int, sort: str, is_reversed: bool = False
) -> RenderableType:
    """Return the whole view, in at most `lines` lines of `columns` cells."""
    head = summary(status)
    jobs = in_order(status.jobs, sort, is_reversed)
    room = max(1, lines - len(head) - 3)  # lines without head, empty line, header and rule
    shown = jobs if len(jobs) <= room and len(jobs) >= status.job_count else jobs[: max(1, room - 1)]
    parts: list[RenderableType] = [*head]
    if shown:
        parts += [Text(), job_table(shown, columns, sort)]
    if (omitted := status.job_count - len(shown)) > 0:
        parts.append(Text(f"... and {omitted} more jobs", "dim"))
    return Group(*parts)


def summary(status: ServiceStatus) -> list[Text]:
    """Return a summary of the service, in a few lines."""
    filled = round(_BAR_CELLS * min(status.busy, status.pes) / max(status.pes, 1))
    up = f", up {age_text(status.time - status.started)}" if status.started else ""
    changes = f" (generation {status.generation})" if status.generation > 1 else ""
    pes = Text.assemble(
        "PEs    [",
        ("#" * filled, "green"),
        "." * (_BAR_CELLS - filled),
        f"] {status.busy} of {status.pes} busy, {status.pes - status.busy} idle; "
        f"ranks: {status.ranks}{changes}{up}",
    )
    states = Counter(status.states)
    running, resting = states.pop("running", 0), states.pop("resting", 0)
    turns = f", {resting} resting until their next turn" if resting else ""
    waiting = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    queue = f"; {states.total()} in the queue ({waiting})" if waiting else ""
    lines = [pes, Text(f"jobs   {running} running{turns}{queue}")]
    if volumes := status.volumes_by_user():
        parts = ", ".join(f"{printable(user)} {volume}" for user, volume in volumes.most_common())
        lines.append(Text(f"users  volume: {parts}"))
    lines += [
        Text(
            f"group  {printable(group.user)}.{printable(group.name)}: {group.running} running,"
            f" {group.resting} resting, {group.waiting} waiting"
        )
        for group in status.groups[:_GROUPS_MAX]
    ]
    lines += [
        Text(f"host   {printable(host.name)}: {printable('; '.join(host.troubles))}", "red")
        for host in status.hosts
        if host.troubles
    ]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines
