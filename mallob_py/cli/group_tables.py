"""`mallob-py groups | results`: the progress of groups of jobs, and the results of their jobs.

`results` prints a line for each ended job, and below the table a summary of the group: a bar, counts,
PE-seconds and PAR-2. The default GROUP is the user's last one. Values that are not in the history (input
file, settings, the value of an answer) come from the replies that still exist. Both commands work with and
without a running service. Exit code: 0; 2 if there is no such group.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mallob_py.cli import CommandError
from mallob_py.cli.client_options import GroupsOptions, ResultsOptions
from mallob_py.cli.groups import find_group, look
from mallob_py.cli.status import Column, make_table
from mallob_py.cli.values import age_text, printable
from mallob_py.service.jobs.job_file import identity_of
from mallob_py.service.telemetry.groups import (
    Group,
    GroupState,
    ResultRow,
    answer_of,
    is_solved_within,
    kind_of,
    par2,
    rows_of,
    states_of,
    time_of,
)
from mallob_py.service.telemetry.status import EndedJob
from mallob_py.text_table import Output, as_text, format_cell

_BAR_CELLS = 10
_PLOT_SUFFIXES = (".png", ".svg", ".pdf")


# --- groups --------------------------------------------------------------------------------


def _count(key: str, title: str, spareable: int = 0) -> Column[GroupState]:
    def value(state: GroupState) -> int:
        found: int = getattr(state, key)
        return found

    return Column(key, title, lambda state: str(value(state)), value, is_number=True, spareable=spareable)


GROUP_COLUMNS: tuple[Column[GroupState], ...] = (
    Column("user", "USER", lambda state: printable(state.user), lambda state: state.user, is_name=True),
    Column("name", "GROUP", lambda state: printable(state.name), lambda state: state.name, is_name=True),
    Column("bar", "ENDED", lambda state: bar(state), lambda state: state.ended, spareable=2),
    _count("jobs", "JOBS"),
    _count("solved", "SOLVED"),
    _count("unsolved", "UNSOLVED"),
    _count("failed", "FAILED"),
    _count("running", "RUNNING"),
    _count("resting", "RESTING", 3),
    _count("waiting", "WAITING"),
    Column("left", "LEFT", lambda state: left_text(state) or "-", lambda state: state.left_s or 0.0),
    Column(
        *("pe", "PE [s]", lambda state: format_cell(state.pe_s), lambda state: state.pe_s),
        is_number=True,
        spareable=4,
    ),
)


def bar(state: GroupState) -> str:
    """Return a bar that shows the ended part of a group; it is full only if all jobs have ended."""
    return f"[{'#' * (_BAR_CELLS * state.ended // max(1, state.jobs)):.<{_BAR_CELLS}}]"


def left_text(state: GroupState) -> str:
    """Return a group's estimated remaining time; "" if the group has ended or there is no estimate."""
    return "" if state.left_s is None else f"~{age_text(state.left_s)}"


def run_groups(options: GroupsOptions) -> int:
    groups = look(options.api_dir)
    chosen = [group for group in groups.values() if options.user in (None, group.user)]
    shown = chosen[-options.limit :] if options.limit else chosen
    states = states_of(Path(options.api_dir), shown[::-1])
    if options.json:
        for state in states:
            print(msgspec.json.encode(state).decode())
    elif not states:
        print("no group of jobs is known here")
    else:
        _print_table(GROUP_COLUMNS, states)
        if len(shown) < len(chosen):
            print(f"... and {len(chosen) - len(shown)} earlier ones (--limit 0 shows all)")
    return 0


def _print_table(columns: Sequence[Column[Any]], rows: Sequence[Any]) -> None:
    console = Output()
    table = make_table(columns, rows, console.width if console.is_terminal else None)
    console.print(as_text(table))


# --- results -------------------------------------------------------------------------------


def run_results(options: ResultsOptions) -> int:
    groups, api_dir = look(options.api_dir), Path(options.api_dir)
    chosen = [find_group(groups, name, options.user) for name in options.groups or (None,)]
    if options.plot is not None:
        _draw(Path(options.plot), chosen, options.cutoff_s)
    if options.csv or options.json:
        cells = [
            {"group": group.name} | row.cells()
            for group in chosen
            for row in rows_of(api_dir, group, group.cutoff_s(options.cutoff_s))
        ]
        if options.csv:
            _print_csv(cells)
        for row in cells if options.json else ():
            print(msgspec.json.encode(row).decode())
        return 0
    has_table = options.plot is None
    for place, group in enumerate(chosen):
        print("\n" if place and has_table else "", end="")
        print_results(api_dir, group, options.cutoff_s, has_table=has_table)
    return 0


def print_results(
    api_dir: Path, group: Group, cutoff_s: float | None = None, *, has_table: bool = True
) -> None:
    """Print the table of a group's ended jobs, if wanted, and a summary of the group."""
    cutoff_s = group.cutoff_s(cutoff_s)
    rows = rows_of(api_dir, group, cutoff_s)
    if rows and has_table:
        _print_rows(rows)
        print()
    (state,) = states_of(api_dir, [group])
    for line in summary(state, [row.job for row in rows], cutoff_s):
        print(line)


def _print_rows(rows: Sequence[ResultRow]) -> None:
    """Print the table of ended jobs; columns without any value are left out."""
    columns: list[Column[ResultRow]] = [
        Column("job", "JOB", lambda row: printable(row.job.name), lambda row: row.job.name, is_name=True)
    ]
    columns += [_setting(key) for key in rows[0].settings]
    if any(row.input for row in rows):
        columns.append(_text("input", "INPUT", lambda row: Path(row.input).name, 1))
    columns.append(_text("answer", "ANSWER", lambda row: answer_of(row.job)))
    if any(row.value is not None for row in rows):
        columns.append(_text("value", "VALUE", lambda row: _told(row.value)))
    columns += [
        _seconds("time", "TIME [s]", lambda row: time_of(row.job)),
        _seconds("pe", "PE [s]", lambda row: row.job.pe_s),
        _seconds("cpu", "CPU [s]", lambda row: row.job.cpu_s, 2),
    ]
    if any(row.job.error for row in rows):
        columns.append(_text("error", "ERROR", lambda row: row.job.error))
    _print_table(columns, rows)


def _setting(key: str) -> Column[ResultRow]:
    return _text(key, printable(key), lambda row: _told(row.settings[key]))


def _text(key: str, title: str, text: Any, spareable: int = 0) -> Column[ResultRow]:
    is_name = key in ("input", "error", "value")
    return Column(key, title, lambda row: printable(text(row)), text, is_name=is_name, spareable=spareable)


def _seconds(key: str, title: str, value: Any, spareable: int = 0) -> Column[ResultRow]:
    return Column(key, title, lambda row: format_cell(value(row)), value, is_number=True, spareable=spareable)


def _told(value: Any) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def summary(state: GroupState, jobs: Sequence[EndedJob], cutoff_s: float | None) -> list[str]:
    """Return the summary of a group: a line on its progress, and a line on its results."""
    parts = [f"{bar(state)} {state.ended} of {state.jobs} ended"]
    if state.live:
        parts.append(f"{state.running} running, {state.resting} resting, {state.waiting} waiting")
    if left := left_text(state):
        parts.append(f"{left} left")
    lines = [f"{printable(identity_of(state.user, state.name))}  {'; '.join(parts)}"]
    if jobs:
        counts = ", ".join(_counts(jobs, cutoff_s))
        score = par2(jobs, cutoff_s)
        at = "" if cutoff_s is None else f" (cutoff {cutoff_s:.4g} s)"
        last = "PAR-2 needs --cutoff T" if score is None else f"PAR-2 {score:.4g} s{at}"
        lines.append(f"{counts}; {state.pe_s:.4g} PE-seconds; {last}")
    return lines


def _counts(jobs: Sequence[EndedJob], cutoff_s: float | None) -> Iterator[str]:
    """Yield the number of solved, unsolved and failed jobs, each as a text that also counts the outcomes."""
    kinds: dict[str, Counter[str]] = {"solved": Counter(), "unsolved": Counter(), "failed": Counter()}
    for job in jobs:
        is_late = kind_of(job) == "solved" and not is_solved_within(job, cutoff_s)
        kinds["unsolved" if is_late else kind_of(job)]["late" if is_late else answer_of(job)] += 1
    for kind, counts in kinds.items():
        words = [] if list(counts) == [kind] else counts.most_common()
        told = ", ".join(f"{count} {printable(word)}" for word, count in words)
        yield f"{counts.total()} {kind}" + (f" ({told})" if told else "")


def _print_csv(rows: Sequence[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _csv_cell(value) for key, value in row.items()})


def _csv_cell(value: Any) -> str | int | float | None:
    is_plain = value is None or (isinstance(value, str | int | float) and not isinstance(value, bool))
    return value if is_plain else _told(value)


def _draw(path: Path, groups: Sequence[Group], cutoff_s: float | None) -> None:
    """Draw a cactus plot: the time within which a number of jobs is solved. Raises CommandError."""
    if path.suffix not in _PLOT_SUFFIXES:
        raise CommandError(f"--plot {path}: name a file that ends with {', '.join(_PLOT_SUFFIXES)}")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise CommandError("--plot needs matplotlib: pip install 'mallob-py[plot]'") from None
    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for group in groups:
        jobs = group.results()
        limit_s = group.cutoff_s(cutoff_s)
        times = sorted(time_of(job) for job in jobs if is_solved_within(job, limit_s))
        axes.plot(range(1, len(times) + 1), times, marker=".", label=f"{group.name} ({len(times)})")
    axes.set_xlabel("jobs solved")
    axes.set_ylabel("time with a PE [s]")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise CommandError(f"--plot {path}: {error.strerror}") from None
