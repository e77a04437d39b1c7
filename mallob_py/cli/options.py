"""All commands with their options: one typed table, and its uses.

Each class of options is the argument of one command's `run(options) -> int`. The class's fields give flags,
help, environment variables and configuration keys (see `option_sources`), so a new option needs only a new
field. Guarantee: options that reach a command are parsed and consistent; this is checked before MPI starts,
in the same way on all ranks.

`mallob-py completion SHELL` prints a script by which a shell completes commands, options and files;
`mallob-py man` prints the manual page in troff. Both are made from the table.
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mallob_py import __version__
from mallob_py.cli import values
from mallob_py.cli.option_sources import (
    SOURCES,
    CommandOptions,
    OptionSpec,
    add_options,
    parse_options,
    table,
)

if TYPE_CHECKING:
    from mallob_py.cli.study_options import CompletionOptions, ManOptions


class _Commands(Mapping[str, tuple[str, type[CommandOptions]]]):
    """A mapping: command -> its summary and the class of its options.

    Modules are imported on demand, because a command seldom needs the modules of other commands.
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
        """Return the function that runs a command: options in, exit code out."""
        run: Callable[[Any], int] = _imported(self._rows[command][2])
        return run


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"mallob_py.cli.{module}"), name)


#: command -> its summary, options class and function
COMMANDS = _Commands(
    {
        "solve": (
            "Solve formulas with all ranks and print the answers.",
            "rank_options:SolveOptions",
            "launching:run_solve",
        ),
        "serve": (
            "Run the service that takes in jobs and shares the ranks among them.",
            "rank_options:ServeOptions",
            "launching:run_serve",
        ),
        "run": (
            "Run one job of any application with all ranks and print its result.",
            "rank_options:RunOptions",
            "launching:run_run",
        ),
        "submit": ("Hand a job to the service.", "client_options:SubmitOptions", "jobs:run_submit"),
        "interrupt": ("End a job of the service.", "client_options:InterruptOptions", "jobs:run_interrupt"),
        "status": (
            "Show the service's jobs and how busy its ranks are.",
            "client_options:StatusOptions",
            "status:run_status",
        ),
        "history": (
            "Show jobs that have ended, also in earlier runs of the service.",
            "client_options:HistoryOptions",
            "history:run_history",
        ),
        "groups": (
            "Show the progress of groups of jobs: ended, running, waiting.",
            "client_options:GroupsOptions",
            "group_tables:run_groups",
        ),
        "results": (
            "Show the results of a group of jobs as a table, CSV or plot.",
            "client_options:ResultsOptions",
            "group_tables:run_results",
        ),
        "resize": (
            "Change the number of ranks of the service.",
            "client_options:ResizeOptions",
            "resize:run_resize",
        ),
        "drain": (
            "Have a rank, or all ranks of a host, finish their work and leave.",
            "client_options:DrainOptions",
            "resize:run_drain",
        ),
        "explain": (
            "Say why a job waits, why it has its volume, or how it ended.",
            "client_options:ExplainOptions",
            "jobs:run_explain",
        ),
        "logs": (
            "Show the output of a job's workers, live or after its end.",
            "client_options:LogsOptions",
            "logs:run_logs",
        ),
        "wait": (
            "Wait for jobs of the service and print their replies.",
            "client_options:WaitOptions",
            "jobs:run_wait",
        ),
        "top": ("Watch the service's jobs and volumes, live.", "client_options:TopOptions", "status:run_top"),
        "web": (
            "Offer the service over HTTP, with a page that shows and steers it.",
            "client_options:WebOptions",
            "launching:run_web",
        ),
        "token": (
            "Give a user a token for the HTTP interface, for this user's jobs only.",
            "client_options:TokenOptions",
            "launching:run_token",
        ),
        "check-proof": (
            "Check a proof that a formula is unsatisfiable.",
            "study_options:CheckProofOptions",
            "report:run_check_proof",
        ),
        "simulate": (
            "Simulate many PEs on a stream of jobs in virtual time.",
            "study_options:SimulateOptions",
            "simulate:run_simulate",
        ),
        "experiment": (
            "Repeat an experiment of the paper in virtual time.",
            "study_options:ExperimentOptions",
            "simulate:run_experiment",
        ),
        "batch simulate": (
            "Simulate policies for whole jobs on a trace, side by side.",
            "batch_options:BatchSimulateOptions",
            "batch:run_simulate",
        ),
        "batch explain": (
            "Say why a job of a simulated schedule started when it did.",
            "batch_options:BatchExplainOptions",
            "batch:run_explain",
        ),
        "batch generate": (
            "Write a workload from a published model.",
            "batch_options:BatchGenerateOptions",
            "batch:run_generate",
        ),
        "batch serve": (
            "Schedule whole jobs on the slots of this host.",
            "batch_options:BatchServeOptions",
            "batch_live:run_serve",
        ),
        "batch submit": (
            "Submit a job script to the batch scheduler.",
            "batch_options:BatchSubmitOptions",
            "batch_live:run_submit",
        ),
        "batch queue": (
            "Show the jobs of the batch scheduler.",
            "batch_options:BatchQueueOptions",
            "batch_live:run_queue",
        ),
        "batch cancel": (
            "End jobs of the batch scheduler.",
            "batch_options:BatchCancelOptions",
            "batch_live:run_cancel",
        ),
        "batch nodes": (
            "Show which job is on which slot.",
            "batch_options:BatchNodesOptions",
            "batch_live:run_nodes",
        ),
        "batch experiment": (
            "Repeat published experiments with batch schedulers.",
            "batch_options:BatchExperimentOptions",
            "batch:run_experiment",
        ),
        "report": (
            "Make tables from the logs of a run, real or simulated.",
            "study_options:ReportOptions",
            "report:run_report",
        ),
        "docs": (
            "Print a document of the manual by its name, or list all documents.",
            "study_options:DocsOptions",
            "documents:run_docs",
        ),
        "service install": (
            "Write a systemd unit for the service, or for its web server.",
            "client_options:ServiceInstallOptions",
            "units:run_service_install",
        ),
        "doctor": (
            "Say what is missing or wrong on this machine, and what to do.",
            "study_options:DoctorOptions",
            "doctor:run_doctor",
        ),
        "completion": (
            "Print a script that completes this command line in a shell.",
            "study_options:CompletionOptions",
            "options:run_completion",
        ),
        "man": ("Print the manual page, in troff.", "study_options:ManOptions", "options:run_man"),
    }
)


def parse(
    command: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> CommandOptions:
    """Return the options of `command` from all sources. Raises `OptionError`; `--help` exits."""
    return parse_options(command, COMMANDS, arguments, os.environ if environment is None else environment)


# --- completion and manual page ------------------------------------------------------------

_EXIT_STATUS = """0 after success. 2 for anything wrong with options or input: one line on standard error.
130 after Ctrl\\-C. solve: 10 for satisfiable, 20 for unsatisfiable, 0 for unknown or several formulas.
run: as the application declares for its result, else 0; 1 without a result.
status, top \\-\\-once: 1 if no service is running. check\\-proof: 1 if the proof is wrong."""


def run_completion(options: CompletionOptions) -> int:
    import shtab

    print(shtab.complete(whole_parser(), options.shell))
    return 0


def run_man(options: ManOptions) -> int:
    from argparse_manpage.manpage import Manpage

    page = Manpage(whole_parser())
    page.description = "share cores among many malleable jobs, such as SAT formulas"
    page.source = f"mallob-py {__version__}"
    page.manual = "User commands"
    page.date = ""  # without a date, the page of a version is always the same
    page.add_section("exit status", "=", _EXIT_STATUS)
    print(page, end="")
    return 0


def whole_parser() -> argparse.ArgumentParser:
    """Return a parser for `mallob-py` with subparsers, nested for commands of two words.

    The parser is not used for parsing: each command has a parser of its own, made from the same table
    (`option_sources.make_parser`). Actions have choices, or tell shtab by `complete` how to complete a value.
    """
    parser = argparse.ArgumentParser(
        prog="mallob-py",
        description="Runs many jobs at once on many cores and shares the cores among them while they run.",
        epilog=f"{SOURCES} The command line wins over the environment, the environment over the file.",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    families = {"": parser.add_subparsers(title="commands", metavar="COMMAND")}
    for command, (summary, options_class) in COMMANDS.items():
        family, _, word = command.rpartition(" ")
        if family not in families:
            above = families[""].add_parser(family, help=f"Commands of {family}.")
            families[family] = above.add_subparsers(title="commands", metavar="COMMAND")
        one: argparse.ArgumentParser = families[family].add_parser(word, help=summary, description=summary)
        rows = table(options_class)
        for attribute, action in add_options(one, options_class).items():
            _describe(action, rows[attribute][0])
    return parser


def _describe(action: argparse.Action, spec: OptionSpec) -> None:
    from shtab import DIRECTORY, FILE

    words = spec.metavar.split("|")
    if len(words) > 1 and all(word == word.lower() for word in words):
        action.choices = words
    elif spec.parse is values.path or spec.metavar == "FILE":
        described: Any = action
        described.complete = DIRECTORY if spec.metavar in ("DIR", "LOGDIR") else FILE
