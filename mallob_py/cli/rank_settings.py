"""What `solve` and `serve` have in common: from options to the settings of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mallob_py.protocol.config import Config, Reuse
from mallob_py.runtime.boot import WorldSettings

if TYPE_CHECKING:
    from mallob_py.cli.options import ServeOptions, SolveOptions


def settings_of(
    options: ServeOptions | SolveOptions,
    *,
    mode: str,
    clients: int = 1,
    preload: tuple[str, ...] = (),
    time_limit_s: float | None = None,
) -> WorldSettings:
    return WorldSettings(
        config=Config(reuse=Reuse(options.reuse), job_cache=options.job_cache, threads=options.solvers),
        mode=mode,
        clients=clients,
        warm=options.warm,
        memory_limit_bytes=options.memory_limit_bytes,
        time_limit_s=time_limit_s,
        preload=preload,
    )
