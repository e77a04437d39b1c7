"""`mallob-py simulate [SETTING]`: many PEs on a stream of jobs, in virtual time."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec

from mallob_py.cli import CommandError
from mallob_py.cli.study_options import SimulateOptions
from mallob_py.simulation.measures import describe, summarise
from mallob_py.simulation.run import Progress, Simulation, open_log
from mallob_py.simulation.setting import SettingError, chosen_setting, job_stream

_REDRAW_S = 0.5
_BAR_WIDTH = 30


def run(options: SimulateOptions) -> int:
    try:
        setting = chosen_setting(
            options.setting, options.stream, pes=options.pes, seconds=options.seconds, seed=options.seed
        )
        jobs = job_stream(setting.jobs, setting.pes, setting.seconds, setting.seed)
    except SettingError as error:
        raise CommandError(str(error)) from None
    try:
        simulation = Simulation(setting, None if options.log_dir is None else open_log(Path(options.log_dir)))
        simulation.submit_all(jobs)
        simulation.play(progress_bar(setting.seconds) if sys.stderr.isatty() else _silent)
    except OSError as error:
        raise CommandError(f"--log-dir {options.log_dir}: {error.strerror}") from None
    summary = summarise(simulation)
    print(msgspec.json.encode(summary).decode() if options.json else describe(summary))
    return 0


def _silent(_seconds: float, _messages: int) -> None:
    pass


def progress_bar(seconds: float) -> Progress:
    """Redraws one line of the terminal: how far, how fast, how long still."""
    began_s = time.monotonic()
    drawn_s = 0.0

    def draw(now_s: float, messages: int) -> None:
        nonlocal drawn_s
        spent_s = time.monotonic() - began_s
        is_last = now_s >= seconds
        if spent_s - drawn_s < _REDRAW_S and not is_last:
            return
        drawn_s = spent_s
        share = now_s / seconds
        bar = ("#" * round(_BAR_WIDTH * share)).ljust(_BAR_WIDTH)
        left_s = spent_s * (1 - share) / share
        line = f"[{bar}] {now_s:.0f} of {seconds:g} s, {messages / 1e6:.1f} M messages, {left_s:.0f} s left"
        print(f"\r{line:<90}", end="\n" if is_last else "", file=sys.stderr, flush=True)

    return draw
