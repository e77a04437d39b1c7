"""`mallob-py serve`: the job-file service on all ranks."""

from __future__ import annotations

from mallob_py.cli.launching import launched
from mallob_py.cli.options import ServeOptions


def run(options: ServeOptions) -> int:
    if (code := launched(options.ranks)) is not None:
        return code
    from mallob_py.cli.serve_rank import be_rank

    return be_rank(options)
