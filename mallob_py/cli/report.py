"""`mallob-py report | check-proof`: print tables of past runs, and check proofs.

`report LOGDIR` makes tables of a run, real or simulated, from its event logs. `check-proof FORMULA PROOF`
checks a proof in LRAT that a formula is unsatisfiable. It prints VERIFIED (exit code 0), or NOT VERIFIED with
the first wrong step (exit code 1). The exit code is 2 if a file cannot be read.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from mallob_py.cli import CommandError
from mallob_py.cli.study_options import CheckProofOptions, ReportOptions
from mallob_py.runtime.notices import say
from mallob_py.service.telemetry.event_log import parts_of, read_events, runs_of
from mallob_py.service.telemetry.report import (
    CREATION_RATIO_MEANS,
    LATENCIES,
    JobRow,
    Report,
    ReuseFigures,
    Utilisation,
    VolumeSamples,
    make_report,
)
from mallob_py.text_table import format_cell, format_table

# These bounds keep the report of a run of thousands of jobs readable; --json prints all jobs.
_JOBS_SHOWN_MAX = 40
_JOBS_WITH_FIGURES_MAX = 10
_BAR_WIDTH = 40


def run_report(options: ReportOptions) -> int:
    log_dir = Path(options.log_dir)
    try:
        runs = runs_of(log_dir)
        if not runs:
            raise CommandError(f"{log_dir} holds no logs of a run; logs are written by --log-dir")
        *older, run = runs
        events = read_events(run, _warn)
    except OSError as error:
        raise CommandError(f"{error.filename or log_dir}: {error.strerror or error}") from None
    if not events:
        raise CommandError(f"{run} holds no event that could be read")
    if len(older) > 1 or (older and older[0] != log_dir):
        _tell(
            f"{log_dir} holds {len(older) + 1} runs, this is the newest: {run}. The one before: {older[-1]}"
        )
    if older and older[0] == log_dir:
        beside = ", ".join(map(str, parts_of(log_dir)))
        _tell(f"this is {run}; {log_dir} holds another run, too, such as of a simulation: {beside}")
    report = make_report(events)
    print(msgspec.json.encode(report).decode() if options.json else describe(report))
    return 0


def describe(report: Report) -> str:
    """Return the report as text."""
    pes = f" with {report.pes} PEs" if report.pes != report.ranks else ""
    sections = [
        f"{report.ranks} ranks{pes} ({report.mode}), {_when(report)}{format_cell(report.duration_s)} s, "
        f"{_outcomes(report)}, {report.refused} refused, {report.crashed} workers crashed",
        f"Jobs\n{_jobs(report)}",
        f"Latencies [ms]\n{_latencies(report)}",
        f"Utilisation (share of busy PEs)\n{_utilisation(report.utilisation)}",
        f"Volumes over time\n{_volumes(report.volumes)}",
        f"Reuse of workers\n{_reuse(report.reuse)}",
    ]
    sections += [f"Workers of job {job.job}\n{_figures(job.figures)}" for job in _with_figures(report)]
    return "\n\n".join(sections)


def _with_figures(report: Report) -> list[JobRow]:
    return [job for job in report.jobs if job.figures][:_JOBS_WITH_FIGURES_MAX]


def _figures(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return format_table(names, [[row.get(name) for name in names] for row in rows])


def _outcomes(report: Report) -> str:
    """Return, for example, "12 jobs (7 SAT, 4 UNSAT, 1 wallclock-limit)"."""
    counts = Counter(job.result or job.outcome for job in report.jobs)
    told = ", ".join(f"{count} {what}" for what, count in counts.most_common())
    return f"{len(report.jobs)} jobs ({told})" if told else "0 jobs"


def _when(report: Report) -> str:
    told = ""
    if report.started_unix_s is not None:
        told = f"started {datetime.fromtimestamp(report.started_unix_s, UTC):%Y-%m-%d %H:%M:%S} UTC, "
    if report.is_cut:
        told += f"from {format_cell(report.begin_s)} s on (earlier events were removed, see --log-size), "
    return told


def _warn(path: Path, line_number: int) -> None:
    _tell(f"{path}:{line_number}: not an event, left out")


def _tell(message: str) -> None:
    say(f"mallob-py report: {message}")


def _jobs(report: Report) -> str:
    if not report.jobs:
        return "none"
    header = (
        *("job", "name", "priority", "outcome", "result", "response [s]", "wallclock [s]"),
        *("PE [s]", "CPU [s]", "mean volume", "max volume", "memory [MB]"),
    )
    rows = [
        (
            *(job.job, job.name, job.priority, job.outcome, job.result, job.response_s, job.wallclock_s),
            *(job.pe_s, job.cpu_s, job.mean_volume, job.max_volume, job.peak_memory_mb),
        )
        for job in report.jobs[:_JOBS_SHOWN_MAX]
    ]
    return format_table(header, rows) + _omitted(len(report.jobs))


def _latencies(report: Report) -> str:
    rows = [
        (LATENCIES[row.kind], row.count, row.median_ms, row.p90_ms, row.p99_ms, row.max_ms)
        for row in report.latencies
    ]
    return format_table(("until", "n", "median", "p90", "p99", "max"), rows)


def _utilisation(utilisation: Utilisation) -> str:
    if utilisation.mean is None:
        return "unknown"
    rows = [
        (end_s, share, "#" * round(_BAR_WIDTH * share))
        for end_s, share in zip(utilisation.bin_ends_s, utilisation.bins, strict=True)
    ]
    return f"mean {utilisation.mean:.4f}\n" + format_table(("until [s]", "busy", ""), rows)


def _volumes(volumes: VolumeSamples) -> str:
    if not volumes.jobs:
        return "none"
    header = ("t [s]", *(format_cell(instant_s) for instant_s in volumes.instants_s))
    rows = [(f"job {job}", *samples) for job, samples in volumes.jobs[:_JOBS_SHOWN_MAX]]
    return format_table(header, rows) + _omitted(len(volumes.jobs))


def _reuse(reuse: ReuseFigures) -> str:
    header = ("created", "reused", "creation ratio: median", "max", "total")
    row = (
        *(reuse.created, reuse.reused),
        *(reuse.creation_ratio_median, reuse.creation_ratio_max, reuse.creation_ratio_total),
    )
    return f"{format_table(header, [row])}\n{CREATION_RATIO_MEANS}"


def _omitted(count: int) -> str:
    return f"\n... and {count - _JOBS_SHOWN_MAX} more (--json has all)" if count > _JOBS_SHOWN_MAX else ""


# --- check-proof -------------------------------------------------------------------------


def run_check_proof(options: CheckProofOptions) -> int:
    from mallob_sat.proof_checker import (
        Checker,
        MalformedStep,
        Refuted,
        Unreadable,
        open_input,
        read_clauses,
        read_steps,
    )

    gc.disable()  # there are no cycles to collect, and looking for cycles among millions of clauses is slow
    began_s = time.monotonic()
    try:
        checker = Checker(read_clauses(options.formula))
        with open_input(options.proof) as file:
            checker.check(read_steps(file))
    except Unreadable as error:
        raise CommandError(str(error)) from None
    except (Refuted, MalformedStep) as error:
        with contextlib.suppress(BrokenPipeError):  # the exit code must not depend on a reader
            print(f"NOT VERIFIED: {options.proof}, {error}")
        return 1
    print(f"VERIFIED: {options.formula} is unsatisfiable ({checker.steps} steps, {_seconds_since(began_s)})")
    return 0


def _seconds_since(began_s: float) -> str:
    return f"{time.monotonic() - began_s:.1f} s"
