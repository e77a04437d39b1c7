"""`mallob-py solve`: formulas in, answers out."""

from __future__ import annotations

from pathlib import Path

from mallob_py.cli import CommandError
from mallob_py.cli.launching import launched
from mallob_py.cli.rank_options import SolveOptions


def run(options: SolveOptions) -> int:
    for file in options.files:
        if file in ("-", "/dev/stdin"):
            raise CommandError("a formula cannot come from standard input; give a file or a named pipe")
        if not Path(file).exists():
            raise CommandError(f"{file}: no such file")
    if (code := launched(options.ranks)) is not None:
        return code
    from mallob_py.cli.solve_rank import be_rank

    return be_rank(options)
