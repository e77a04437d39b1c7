"""What the ranks of `solve` and `serve` have in common, made from the options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mallob_py.protocol.config import Balancing, Config, Matching, Reuse
from mallob_py.runtime.boot import WorldSettings
from mallob_py.service.telemetry.event_log import EventLog, LogFiles, run_name

if TYPE_CHECKING:
    from mallob_py.cli.rank_options import ServeOptions, SolveOptions

SAT = "SAT"
#: a job with one of these may not be possible with just any solvers
_ABOUT_SOLVERS = frozenset(("portfolio", "solvers", "proof", "solutions", "core"))


def settings_of(
    options: ServeOptions | SolveOptions,
    *,
    clients: int = 1,
    preload: tuple[str, ...] = (),
    time_limit_s: float | None = None,
) -> WorldSettings:
    return WorldSettings(
        config=Config(
            balancing=Balancing(options.balancing),
            matcher=Matching(options.matching),
            reuse=Reuse(options.reuse),
            job_cache=options.job_cache,
            threads=options.solvers,
        ),
        pes=options.pes,
        clients=clients,
        warm=options.warm,
        memory_limit_bytes=options.memory_limit_bytes,
        memory_reserve=options.memory_reserve,
        time_limit_s=time_limit_s,
        rank_timeout_s=options.rank_timeout_s,
        preload=preload,
    )


def with_portfolio(
    portfolio: str | None, application: str, configuration: Mapping[str, Any]
) -> dict[str, Any]:
    """A job's configuration with the portfolio of the options, unless it speaks of its solvers itself."""
    if portfolio is None or application != SAT or _ABOUT_SOLVERS & configuration.keys():
        return dict(configuration)
    return {**configuration, "portfolio": portfolio}


def event_log_of(options: ServeOptions | SolveOptions) -> Callable[[int, int, float], EventLog]:
    """From a rank, its first PE and when the system started to its event log; all clocks start then."""

    def open_log(rank: int, first_pe: int, start_unix_s: float) -> EventLog:
        if options.log_dir is None:
            return EventLog(None, first_pe, 0.0)
        run = Path(options.log_dir) / run_name(start_unix_s)
        return EventLog(LogFiles(run, rank, options.log_size_bytes), first_pe, 0.0)

    return open_log
