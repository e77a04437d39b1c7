"""`mallob-py history`: lists ended jobs, from the files to which each client of a service appends.

Works with and without a running service. `--by-user` sums up the costs of the listed jobs. Exit code: 0.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from mallob_py.cli import CommandError
from mallob_py.cli.client_options import HistoryOptions
from mallob_py.cli.option_sources import suggestion
from mallob_py.cli.status import ENDED_COLUMNS, make_table
from mallob_py.cli.values import age_text, printable
from mallob_py.protocol.effects import Outcome
from mallob_py.service.telemetry.history import NewlyEnded, read_history
from mallob_py.service.telemetry.status import EndedJob
from mallob_py.text_table import Output, as_text, format_table

#: time between two checks for newly ended jobs
_PERIOD_S = 0.5
_WAYS = (*(each.value for each in Outcome), "refused")
#: results that `--state` accepts even if no job has had them yet
_COMMON_RESULTS = frozenset(("SAT", "UNSAT", "UNKNOWN", "OPTIMUM FOUND"))


class UserCost(msgspec.Struct, frozen=True):
    """The cost of one user's jobs in PE-seconds and CPU seconds; `failed` counts failed and refused jobs."""

    user: str
    jobs: int
    failed: int
    pe_s: float
    cpu_s: float


def run_history(options: HistoryOptions) -> int:
    api_dir = Path(options.api_dir)
    if not api_dir.is_dir():
        raise CommandError(f"{api_dir} is no folder of a service; name it with --api-dir")
    if options.follow:
        _follow(NewlyEnded(api_dir), options)
    ended = list(read_history(api_dir))
    _check_state(options.state, ended)
    jobs = [job for job in ended if _is_wanted(job, options)]
    shown = jobs[-options.limit :] if options.limit and not options.by_user else jobs
    if options.by_user:
        _print_costs(costs_of(jobs), options.json)
    elif options.json:
        for job in shown:
            print(msgspec.json.encode(job).decode())
    elif not jobs:
        is_part = options.user is not None or options.group is not None
        print("no such job is recorded here" if is_part else "no ended job is recorded here")
    else:
        console = Output()
        table = make_table(ENDED_COLUMNS, shown[::-1], console.width if console.is_terminal else None)
        console.print(as_text(table))
        if len(shown) < len(jobs):
            print(f"... and {len(jobs) - len(shown)} older ones (--limit 0 shows all)")
    return 0


def _check_state(state: str | None, ended: Sequence[EndedJob]) -> None:
    """Reject a state that is neither an outcome nor the result of a job. Raises CommandError."""
    results = {job.result for job in ended if job.result}
    if state is None or state in _WAYS or state in results or state in _COMMON_RESULTS:
        return
    known = ", ".join([*_WAYS, *sorted(results)])
    raise CommandError(f"--state {state}: no job ends so{suggestion(state, _WAYS)}; there are {known}")


def _follow(ended: NewlyEnded, options: HistoryOptions) -> NoReturn:
    """Print each wanted job that ends from now on."""
    while True:
        time.sleep(_PERIOD_S)
        for job in ended.news():
            if _is_wanted(job, options):
                print(msgspec.json.encode(job).decode() if options.json else _line(job), flush=True)


def _line(job: EndedJob) -> str:
    told = job.error or job.result or job.outcome
    return printable(f"{job.user}.{job.name}: {job.outcome}, {told}, after {age_text(job.total_s)}")


def _is_wanted(job: EndedJob, options: HistoryOptions) -> bool:
    return (
        options.user in (None, job.user)
        and options.group in (None, job.group)
        and (options.state is None or options.state in (job.outcome, job.result))
        and (options.since_s is None or job.ended >= time.time() - options.since_s)
    )


def costs_of(jobs: Sequence[EndedJob]) -> list[UserCost]:
    """Return the costs of each user's jobs, the most expensive user first."""
    by_user: dict[str, list[EndedJob]] = {}
    for job in jobs:
        by_user.setdefault(job.user, []).append(job)
    costs = [
        UserCost(
            user,
            len(own),
            sum(job.outcome in ("failed", "refused") for job in own),
            sum(job.pe_s for job in own),
            sum(job.cpu_s for job in own),
        )
        for user, own in by_user.items()
    ]
    return sorted(costs, key=lambda cost: (-cost.pe_s, cost.user))


def _print_costs(costs: Sequence[UserCost], as_json: bool) -> None:
    if as_json:
        for cost in costs:
            print(msgspec.json.encode(cost).decode())
        return
    rows = [(cost.user or "-", cost.jobs, cost.failed, cost.pe_s, cost.cpu_s) for cost in costs]
    print(format_table(("USER", "JOBS", "FAILED", "PE [s]", "CPU [s]"), rows))
