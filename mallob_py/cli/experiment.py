"""`mallob-py experiment NAME`: an experiment of the paper, or a question to the protocol, in virtual time."""

from __future__ import annotations

import importlib
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from mallob_py.cli import CommandError
from mallob_py.cli.study_options import ExperimentOptions
from mallob_py.simulation.setting import SettingError, chosen_setting

#: those that play whole systems; the others have sizes of their own
_PLAYED = ("uniform", "priorities", "realistic")


def run(options: ExperimentOptions) -> int:
    module = importlib.import_module(f"mallob_py.experiments.{options.name}")
    if options.stream is not None and options.name != "realistic":
        raise CommandError(f"--stream is for realistic alone, not for {options.name}")
    try:
        if options.name not in _PLAYED:
            _refuse_sizes(options)
            module.run(Path(options.output))
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


def _refuse_sizes(options: ExperimentOptions) -> None:
    given = [
        name for name in ("jobs", "pes", "seconds", "setting", "stream") if getattr(options, name) is not None
    ]
    if given:
        raise CommandError(f"{options.name} has sizes of its own and takes no --{given[0]}")
