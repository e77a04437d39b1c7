"""The command line: finds the command, parses its options, imports and runs it.

Each rank that mpiexec or srun starts runs this module with the same arguments, so other modules are imported
late. Exit codes: the command's own; 2 with one line on standard error for bad options or input; 130 after
Ctrl-C.

Output is flushed however a command ends. Each error is reported in one line, also errors about the user's
files; only bugs of mallob-py show a traceback.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from mallob_py import __version__
from mallob_py.cli import CommandError, interrupts
from mallob_py.runtime.inherited import make_own_state, open_standard_streams
from mallob_py.runtime.notices import limit_of, printable

_HELP = ("-h", "--help", "help")
_VERSION = ("--version", "-V", "version")
#: name of a command in other programs -> our command
_ELSEWHERE = {
    **dict.fromkeys(("ps", "ls", "list", "jobs", "info"), "status"),
    **dict.fromkeys(("kill", "cancel", "stop", "rm"), "interrupt"),
    **dict.fromkeys(("log", "output"), "logs"),
    **dict.fromkeys(("start", "server"), "serve"),
    "sbatch": "batch submit",
    "squeue": "batch queue",
    "scancel": "batch cancel",
    "sinfo": "batch nodes",
    "srun": "run",
    "sacct": "history",
}
_ELSEWHERE_IN_BATCH = {
    **dict.fromkeys(("status", "list", "squeue", "jobs", "history", "logs"), "queue"),
    **dict.fromkeys(("kill", "scancel", "interrupt"), "cancel"),
    **dict.fromkeys(("info", "sinfo"), "nodes"),
    **dict.fromkeys(("run", "sbatch"), "submit"),
}
#: commands run by several ranks together
_RANK_COMMANDS = ("solve", "run", "serve")
#: errors without a file name that mean that standard output cannot be written
_OUTPUT_IS_LOST = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    _open_standard_streams()
    code = outcome_of("mallob-py", lambda: _dispatch(given))
    interrupts.let_go()
    return code


def _open_standard_streams() -> None:
    """Open the standard streams that a shell has closed (`>&-`)."""
    open_standard_streams()
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    # Printing must not fail on letters of user names that the output's encoding lacks.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _dispatch(given: list[str]) -> int:
    if given and given[0] in _VERSION:
        print(f"mallob-py {__version__}")
        return 0
    from mallob_py.cli import options
    from mallob_py.cli.option_sources import OptionError

    if given and given[0] == "help" and given[1:]:
        given = [*given[1:], "--help"]
    if not given or given[0] in _HELP:
        print(_overview(options.COMMANDS))
        return 0 if given else fail("mallob-py: a command is needed")
    command, given = _command(given, options.COMMANDS)
    if command not in options.COMMANDS:
        return _without_command(command, given)
    try:
        parsed = options.parse(command, given)
    except OptionError as error:
        fail(f"mallob-py {command}: {error} (see mallob-py {command} --help)")
        if command in _RANK_COMMANDS:
            from mallob_py.runtime.world.mpi import refuse_to_start

            refuse_to_start()
        return 2
    run = options.COMMANDS.run_of(command)
    interrupts.raise_in_command()
    return outcome_of(f"mallob-py {command}", lambda: run(parsed))


def _command(given: list[str], commands: Iterable[str]) -> tuple[str, list[str]]:
    """Return the command (one or two words), and the words after the command."""
    two = " ".join(given[:2])
    return (two, given[2:]) if two in commands else (given[0], given[1:])


def _without_command(word: str, rest: list[str]) -> int:
    """Handle a first word that is a group of commands, or unknown."""
    from mallob_py.cli.option_sources import suggestion
    from mallob_py.cli.options import COMMANDS

    of_group = {name: COMMANDS[name] for name in COMMANDS if name.startswith(f"{word} ")}
    if not of_group:
        hint = suggestion(word, {*COMMANDS, *(name.partition(" ")[0] for name in COMMANDS)})
        if word in _ELSEWHERE:
            hint = f" (did you mean {_ELSEWHERE[word]!r}?)"
        elif os.path.isfile(word):
            hint = f" (did you mean 'solve {word}' or 'submit {word}'?)"
        return fail(f"mallob-py: no command {word!r}{hint or _there_are(COMMANDS)}")
    if rest and rest[0] in _HELP:
        print(_overview(of_group))
        return 0
    names = [name.removeprefix(f"{word} ") for name in of_group]
    missing = f"no command {rest[0]!r}" if rest else "a command is needed"
    hint = suggestion(_ELSEWHERE_IN_BATCH.get(rest[0], rest[0]), names) if rest else ""
    return fail(f"mallob-py {word}: {missing}{hint or _there_are(names)}")


def _there_are(names: Iterable[str]) -> str:
    return f" (there are {', '.join(names)})"


def _overview(commands: Mapping[str, tuple[str, object]]) -> str:
    lines = ["usage: mallob-py COMMAND [options]", ""]
    lines += [f"  {name:<18}{summary}" for name, (summary, _) in commands.items()]
    lines += ["", "mallob-py help COMMAND lists a command's options; mallob-py --version prints the version."]
    return "\n".join(lines)


# --- how a command ends -----------------------------------------------------------------


def outcome_of(command: str, work: Callable[[], int]) -> int:
    """Do the work and flush its output; return the exit code of the work, even if nobody reads the output."""
    code = 0
    try:
        try:
            code = work()
        finally:
            sys.stdout.flush()  # flushed here, because a closed pipe can be handled only here
        return code
    except KeyboardInterrupt:
        return interrupts.INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has enough; nothing more may be flushed to it.
        _give_up_output()
        return code
    except OSError as error:
        if (line := _line_of(error)) is None:
            raise
        if error.filename is None:
            _give_up_output()
        return fail(f"{command}: {line}")
    except Exception as error:
        if (limit := limit_of(error)) is not None:
            return fail(f"{command}: {limit}")
        if not isinstance(error, _expected()):
            raise
        return fail(f"{command}: {error}") if str(error) else 2


def fail(line: str) -> int:
    print(printable(line.replace("\n", " ")), file=sys.stderr)
    return 2


def _line_of(error: OSError) -> str | None:
    """Return a line for the user about an error; None if the error concerns no file or limit of the user."""
    if error.filename is not None:
        name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
        return f"{name}: {error.strerror}"
    if (limit := limit_of(error)) is not None:
        return limit
    if error.errno in _OUTPUT_IS_LOST:
        return f"the output cannot be written: {error.strerror}"
    return None


def _expected() -> tuple[type[Exception], ...]:
    """Return the errors whose texts are for users; imported late, because most commands raise none."""
    from mallob_py.runtime.world.mpi import LaunchError, OthersRefused
    from mallob_py.service import ServiceError

    return CommandError, LaunchError, OthersRefused, ServiceError


def _give_up_output() -> None:
    with contextlib.suppress(OSError):  # no descriptor is free; the process ends anyway
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    make_own_state()
    sys.exit(main())
