"""All commands, and all options of each from all sources: one table, typed.

Each class of options is what one command's `run(options) -> int` receives. Flags, help,
environment variables and configuration keys are made from its fields (see
`option_sources`), so an option is added there and nowhere else. Guarantee: options that
reach a command have been parsed and do not contradict each other; that is settled before
MPI starts, on every rank alike.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mallob_py.cli.option_sources import CommandOptions, parse_options


class _Commands(Mapping[str, tuple[str, type[CommandOptions]]]):
    """From a command to its summary and the class of its options.

    Modules are imported when they are asked for: a command seldom needs those of others.
    """

    def __init__(self, rows: Mapping[str, tuple[str, str, str]]) -> None:
        self._rows = rows

    def __getitem__(self, command: str) -> tuple[str, type[CommandOptions]]:
        summary, options_class, _ = self._rows[command]
        return summary, _imported(options_class)

    def __contains__(self, command: object) -> bool:
        return command in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def run_of(self, command: str) -> Callable[[Any], int]:
        """What runs it: from its options to the exit code."""
        run: Callable[[Any], int] = _imported(self._rows[command][2])
        return run


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"mallob_py.cli.{module}"), name)


#: every command: its summary, its options, and what runs it
COMMANDS = _Commands(
    {
        "solve": (
            "Solve formulas with all ranks and print the answers.",
            "rank_options:SolveOptions",
            "solve:run",
        ),
        "serve": (
            "Run the service that takes in jobs and shares the ranks among them.",
            "rank_options:ServeOptions",
            "serve:run",
        ),
        "submit": ("Hand a job to the service.", "client_options:SubmitOptions", "submit:run"),
        "interrupt": ("End a job of the service.", "client_options:InterruptOptions", "interrupt:run"),
        "status": (
            "Show the service's jobs and how busy its ranks are.",
            "client_options:StatusOptions",
            "status:run",
        ),
        "explain": (
            "Say why a job waits, has the volume it has, or how it has ended.",
            "client_options:ExplainOptions",
            "explain:run",
        ),
        "wait": (
            "Wait for jobs of the service and print their replies.",
            "client_options:WaitOptions",
            "wait:run",
        ),
        "top": ("Watch the service's jobs and volumes, live.", "client_options:TopOptions", "top:run"),
        "web": (
            "Offer the service over HTTP, with a page to see and steer it.",
            "client_options:WebOptions",
            "web:run",
        ),
        "check-proof": (
            "Check a proof that a formula is unsatisfiable.",
            "study_options:CheckProofOptions",
            "check_proof:run",
        ),
        "simulate": (
            "Play many PEs on a stream of jobs in virtual time.",
            "study_options:SimulateOptions",
            "simulate:run",
        ),
        "experiment": (
            "Repeat an experiment of the paper in virtual time.",
            "study_options:ExperimentOptions",
            "experiment:run",
        ),
        "batch simulate": (
            "Play policies for whole jobs on a trace, side by side.",
            "batch_options:BatchSimulateOptions",
            "batch:run_simulate",
        ),
        "batch explain": (
            "Say why a job of a simulated schedule started when it did.",
            "batch_options:BatchExplainOptions",
            "batch:run_explain",
        ),
        "batch experiment": (
            "Repeat published experiments with schedulers of whole jobs.",
            "batch_options:BatchExperimentOptions",
            "batch:run_experiment",
        ),
        "report": (
            "Make tables from the logs of a run, real or simulated.",
            "study_options:ReportOptions",
            "report:run",
        ),
        "completion": (
            "Print a script that completes this command line in a shell.",
            "shell_options:CompletionOptions",
            "completion:run",
        ),
        "man": ("Print the manual page, in troff.", "shell_options:ManOptions", "man:run"),
    }
)


def parse(
    command: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> CommandOptions:
    """The options of `command` from all sources. Raises `OptionError`; `--help` exits."""
    return parse_options(command, COMMANDS, arguments, os.environ if environment is None else environment)
