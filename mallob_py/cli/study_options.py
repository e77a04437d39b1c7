"""Options of the commands that need no service: on simulated time, logs, proofs, and the command line
itself."""

from __future__ import annotations

from dataclasses import dataclass

from mallob_py.cli import values
from mallob_py.cli.option_sources import (
    CommandOptions,
    OptionError,
    option,
    positional,
    switch_option,
)
from mallob_py.cli.shared_options import (
    FILES,
    INPUT,
    OUTPUT,
    Config,
    Runs,
    one_of,
)

EXPERIMENTS = ("uniform", "priorities", "realistic", "matching", "growth", "balancing", "lifelines")

SHELLS = ("bash", "zsh")


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportOptions(Config):
    """Options of `mallob-py report`."""

    log_dir: str = positional(
        "LOGDIR",
        values.path,
        group=INPUT,
        help="a --log-dir (its newest run is told of), or the folder or file of one run within it",
    )
    json: bool = switch_option("--json", group=OUTPUT, help="print the tables as JSON")


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckProofOptions(Config):
    """Options of `mallob-py check-proof`."""

    formula: str = positional(
        "FORMULA", values.path, group=INPUT, help="formula in DIMACS CNF; plain, .gz, .bz2, .xz or .lzma"
    )
    proof: str = positional(
        "PROOF", values.path, group=INPUT, help="proof in LRAT, text or binary; plain or compressed"
    )


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class _Played(Config):
    """The options of the commands that play in virtual time."""

    pes: int | None = option(
        "--pes", values.simulated_pes, None, metavar="M", group=INPUT, help="number of PEs"
    )
    seconds: float | None = option(
        "--seconds",
        values.duration_s,
        None,
        metavar="T",
        group=INPUT,
        help="virtual time to play, such as 600, 10m or 1h",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulateOptions(_Played):
    """Options of `mallob-py simulate`. None: what the setting says."""

    setting: str | None = positional(
        "SETTING",
        values.path,
        group=INPUT,
        default=None,
        help="TOML file with system, network, faults, jobs and protocol (default: P 5.3 on 1536 PEs)",
    )
    seed: int | None = option(
        "--seed", values.count, None, metavar="S", group=INPUT, help="seed of all random choices"
    )
    stream: str | None = option(
        "--stream",
        values.path,
        None,
        metavar="FILE",
        group=INPUT,
        help="CSV file with the jobs: client, name, arrival_s, priority, wallclock_limit_s, max_demand",
    )
    log_dir: str | None = option(
        "--log-dir",
        values.path,
        None,
        metavar="DIR",
        group=FILES,
        help="write all events to DIR/simulated.jsonl (see `mallob-py report`)",
    )
    replay: str | None = option(
        "--replay",
        values.path,
        None,
        metavar="PATH",
        group=INPUT,
        help="play again what `--log-stimuli` has written, a file or a folder, and tell the first line with "
        "other effects; or a plan that `make fuzz` has written",
    )
    json: bool = switch_option("--json", group=OUTPUT, help="print the measures as JSON")

    def validate(self) -> None:
        super().validate()
        given = {
            "SETTING": self.setting,
            "--stream": self.stream,
            "--seed": self.seed,
            "--pes": self.pes,
            "--seconds": self.seconds,
            "--log-dir": self.log_dir,
        }
        for name, value in given.items():
            if self.replay is not None and value is not None:
                raise OptionError(f"{name} has no meaning beside --replay: what is played is all in the file")


@dataclass(frozen=True, kw_only=True, eq=False)
class ExperimentOptions(Runs, _Played):
    """Options of `mallob-py experiment`. None: the experiment's own."""

    name: str = positional(
        "EXPERIMENT",
        one_of(*EXPERIMENTS),
        group=INPUT,
        help=", ".join(EXPERIMENTS),
    )
    setting: str | None = option(
        "--setting",
        values.path,
        None,
        metavar="FILE",
        group=INPUT,
        help="TOML file as for `mallob-py simulate`; its pes and seconds are not used",
    )
    stream: str | None = option(
        "--stream",
        values.path,
        None,
        metavar="FILE",
        group=INPUT,
        help="for `realistic`: CSV file with the jobs, as for `mallob-py simulate`",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class CompletionOptions(CommandOptions):
    """Options of `mallob-py completion`."""

    shell: str = positional("|".join(SHELLS), one_of(*SHELLS), group=OUTPUT, help="the shell")


@dataclass(frozen=True, kw_only=True, eq=False)
class DocsOptions(CommandOptions):
    """Options of `mallob-py docs`."""

    name: str | None = positional(
        "NAME", values.word, group=OUTPUT, default=None, help="the document (default: list all)"
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class ManOptions(CommandOptions):
    """Options of `mallob-py man`: none."""
