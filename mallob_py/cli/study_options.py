"""Options of the commands without a service: simulations, logs, proofs, and the command line itself."""

from __future__ import annotations

from dataclasses import dataclass

from mallob_py.cli import values
from mallob_py.cli.option_sources import CommandOptions, OptionError, option, positional, switch_option
from mallob_py.cli.shared_options import FILES, INPUT, OUTPUT, Api, Config, Runs, one_of

EXPERIMENTS = (
    "uniform",
    "priorities",
    "realistic",
    "matching",
    "growth",
    "balancing",
    "sizes",
    "scaling",
    "mixed",
)

SHELLS = ("bash", "zsh")


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportOptions(Config):
    """Options of `mallob-py report`."""

    log_dir: str = positional(
        "LOGDIR",
        values.path,
        INPUT,
        "folder named by --log-dir, whose newest run is reported, or the folder or file of one run in it",
    )
    json: bool = switch_option("--json", OUTPUT, "print the tables as JSON")


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckProofOptions(Config):
    """Options of `mallob-py check-proof`."""

    formula: str = positional(
        "FORMULA", values.path, INPUT, "formula in DIMACS CNF; plain, .gz, .bz2, .xz or .lzma"
    )
    proof: str = positional("PROOF", values.path, INPUT, "proof in LRAT, text or binary; plain or compressed")


@dataclass(frozen=True, kw_only=True, eq=False, init=False, repr=False)
class _Played(Config):
    """Options of the commands in virtual time."""

    pes: int | None = option("--pes M", values.simulated_pes, None, INPUT, "number of PEs")
    seconds: float | None = option(
        "--seconds T", values.duration_s, None, INPUT, "virtual time to simulate, such as 600, 10m or 1h"
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class SimulateOptions(_Played):
    """Options of `mallob-py simulate`; None: the value in the setting is used."""

    setting: str | None = positional(
        "SETTING",
        values.path,
        INPUT,
        "TOML file with system, network, faults, jobs and protocol (default: P 5.3 on 1536 PEs)",
        default=None,
    )
    seed: int | None = option("--seed S", values.count, None, INPUT, "seed of all random choices")
    stream: str | None = option(
        "--stream FILE",
        values.path,
        None,
        INPUT,
        "CSV file with the jobs: client, name, arrival_s, priority, wallclock_limit_s, max_demand",
    )
    log_dir: str | None = option(
        "--log-dir DIR",
        values.path,
        None,
        FILES,
        "write all events to DIR/simulated.jsonl (see `mallob-py report`)",
    )
    replay: str | None = option(
        "--replay PATH",
        values.path,
        None,
        INPUT,
        "replay a file or folder written by `--log-stimuli`, and report the first line with "
        "other effects; or replay a plan written by `make fuzz`",
    )
    json: bool = switch_option("--json", OUTPUT, "print the measures as JSON")

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
                raise OptionError(f"{name} has no effect with --replay, whose file says everything")


@dataclass(frozen=True, kw_only=True, eq=False)
class ExperimentOptions(Runs, _Played):
    """Options of `mallob-py experiment`; None: the experiment's own value is used."""

    name: str = positional("EXPERIMENT", one_of(*EXPERIMENTS), INPUT, ", ".join(EXPERIMENTS))
    setting: str | None = option(
        "--setting FILE",
        values.path,
        None,
        INPUT,
        "TOML file as for `mallob-py simulate`; its pes and seconds are not used",
    )
    hard: bool = switch_option("--hard", INPUT, "for `mixed`: harder jobs, with a load of three quarters")
    stream: str | None = option(
        "--stream FILE",
        values.path,
        None,
        INPUT,
        "for `realistic`: CSV file with the jobs, as for `mallob-py simulate`",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class CompletionOptions(CommandOptions):
    """Options of `mallob-py completion`."""

    shell: str = positional("|".join(SHELLS), one_of(*SHELLS), OUTPUT, "the shell")


@dataclass(frozen=True, kw_only=True, eq=False)
class DocsOptions(CommandOptions):
    """Options of `mallob-py docs`."""

    name: str | None = positional(
        "NAME", values.word, OUTPUT, "document to print (default: list all documents)", default=None
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class DoctorOptions(Api):
    """Options of `mallob-py doctor`."""

    hosts: tuple[str, ...] = option(
        "--hosts A,B",
        values.words,
        (),
        INPUT,
        "also check these hosts: reached by ssh (in an allocation by srun), version, firewall, clock",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class ManOptions(CommandOptions):
    """Options of `mallob-py man`: none."""
