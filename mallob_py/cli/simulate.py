"""`mallob-py simulate | experiment`: run a stream of jobs on many simulated PEs, in virtual time.

`simulate [SETTING]` runs one setting; `experiment NAME` repeats an experiment of the paper, or measures the
protocol.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mallob_py.cli import CommandError
from mallob_py.cli.study_options import ExperimentOptions, SimulateOptions
from mallob_py.simulation import without_collections
from mallob_py.simulation.setting import SettingError, chosen_setting, job_stream

if TYPE_CHECKING:
    from mallob_py.simulation.run import Progress

_REDRAW_S = 0.5
_BAR_WIDTH = 30
#: experiments that simulate a whole system, as --setting describes it; the other experiments choose sizes
_PLAYED = ("uniform", "priorities", "realistic")
#: experiments that are repeated with growing sizes; the largest sizes take most of the time
_GROWING = ("matching", "balancing", "sizes")


@without_collections()
def run_simulate(options: SimulateOptions) -> int:
    if options.replay is not None:
        return _replay(Path(options.replay))
    import msgspec

    from mallob_py.simulation.run import Simulation, describe, open_log

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
    summary = simulation.summary()
    print(msgspec.json.encode(summary).decode() if options.json else describe(summary))
    return 0


def _silent(_seconds: float, _messages: int) -> None:
    pass


def _replay(path: Path) -> int:
    from mallob_py.simulation.replay import ReplayError, replay

    try:
        return replay(path)
    except ReplayError as error:
        raise CommandError(str(error)) from None


def progress_bar(seconds: float) -> Progress:
    """Return a function that redraws a line on the terminal: progress, speed, time left."""
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


def run_experiment(options: ExperimentOptions) -> int:
    from concurrent.futures.process import BrokenProcessPool

    if options.name == "mixed":
        return _run_mixed(options)
    if options.hard:
        raise CommandError(f"--hard is only for the experiment mixed, not for {options.name}")
    module = importlib.import_module(f"mallob_py.experiments.{options.name}")
    if options.stream is not None and options.name != "realistic":
        raise CommandError(f"--stream is only for the experiment realistic, not for {options.name}")
    try:
        if options.name not in _PLAYED:
            _refuse_sizes(options)
            sizes = (_sizes_up_to(options, module.SIZES),) if options.name in _GROWING else ()
            module.run(Path(options.output), *sizes)
            return 0
        setting = chosen_setting(
            options.setting,
            options.stream,
            pes=options.pes or module.PES,
            seconds=options.seconds or module.SECONDS,
        )
        module.run(setting, Path(options.output), options.jobs)
    except SettingError as error:
        raise CommandError(str(error)) from None
    except BrokenProcessPool:
        raise CommandError("a run was killed from outside; was the memory too small? (see --jobs)") from None
    except OSError as error:
        raise CommandError(f"--output {options.output}: {error.strerror}") from None
    return 0


def _run_mixed(options: ExperimentOptions) -> int:
    from mallob_py.cli import mixed

    for name in ("setting", "stream", "jobs"):
        if getattr(options, name) is not None:
            raise CommandError(f"the experiment mixed runs real jobs, run by run; leave out --{name}")
    try:
        mixed.run(
            Path(options.output),
            options.pes or mixed.PES,
            options.seconds or mixed.SECONDS,
            difficulty=mixed.HARD if options.hard else mixed.USUAL,
        )
    except OSError as error:
        raise CommandError(f"--output {options.output}: {error.strerror}") from None
    return 0


def _sizes_up_to(options: ExperimentOptions, sizes: Sequence[Any]) -> list[Any]:
    """Return the sizes up to `--pes`; a size is a number of PEs, or a pair that begins with this number."""
    pes = [size[0] if isinstance(size, tuple) else size for size in sizes]
    if options.pes is None:
        return list(sizes)
    if options.pes < min(pes):
        raise SettingError(f"pes: {options.name} begins with {min(pes)} PEs; give at least {min(pes)}")
    return [size for size, number in zip(sizes, pes, strict=True) if number <= options.pes]


def _refuse_sizes(options: ExperimentOptions) -> None:
    names = ("jobs", "pes", "seconds", "setting", "stream")
    given = [
        name
        for name in names
        if getattr(options, name) is not None and not (name == "pes" and options.name in _GROWING)
    ]
    if given:
        raise CommandError(f"{options.name} has sizes of its own and takes no --{given[0]}")
