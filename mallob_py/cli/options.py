"""All commands, and all options of each from all sources: one table, typed.

Each class of options is what one command's `run(options) -> int` receives. Flags, help,
environment variables and configuration keys are made from its fields (see
`option_sources`), so an option is added there and nowhere else. Guarantee: options that
reach a command have been parsed and do not contradict each other; that is settled before
MPI starts, on every rank alike.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from mallob_py.cli.batch_options import BatchSimulateOptions
from mallob_py.cli.client_options import (
    ExplainOptions,
    InterruptOptions,
    StatusOptions,
    SubmitOptions,
    TopOptions,
    WaitOptions,
    WebOptions,
)
from mallob_py.cli.option_sources import CommandOptions, parse_options
from mallob_py.cli.rank_options import ServeOptions, SolveOptions
from mallob_py.cli.shell_options import CompletionOptions, ManOptions
from mallob_py.cli.study_options import CheckProofOptions, ExperimentOptions, ReportOptions, SimulateOptions

#: Every command: its summary and its options. `mallob_py.cli.<command>` has its `run(options) -> int`.
COMMANDS: dict[str, tuple[str, type[CommandOptions]]] = {
    "solve": ("Solve formulas with all ranks and print the answers.", SolveOptions),
    "serve": ("Run the service that takes in jobs and shares the ranks among them.", ServeOptions),
    "submit": ("Hand a job to the service.", SubmitOptions),
    "interrupt": ("End a job of the service.", InterruptOptions),
    "status": ("Show the service's jobs and how busy its ranks are.", StatusOptions),
    "explain": ("Say why a job waits, has the volume it has, or how it has ended.", ExplainOptions),
    "wait": ("Wait for jobs of the service and print their replies.", WaitOptions),
    "top": ("Watch the service's jobs and volumes, live.", TopOptions),
    "web": ("Offer the service over HTTP, with a page to see and steer it.", WebOptions),
    "check-proof": ("Check a proof that a formula is unsatisfiable.", CheckProofOptions),
    "simulate": ("Play many PEs on a stream of jobs in virtual time.", SimulateOptions),
    "experiment": ("Repeat an experiment of the paper in virtual time.", ExperimentOptions),
    "batch simulate": ("Play policies for whole jobs on a trace, side by side.", BatchSimulateOptions),
    "report": ("Make tables from the logs of a run, real or simulated.", ReportOptions),
    "completion": ("Print a script that completes this command line in a shell.", CompletionOptions),
    "man": ("Print the manual page, in troff.", ManOptions),
}


def parse(
    command: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> CommandOptions:
    """The options of `command` from all sources. Raises `OptionError`; `--help` exits."""
    return parse_options(command, COMMANDS, arguments, os.environ if environment is None else environment)
