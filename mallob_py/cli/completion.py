"""`mallob-py completion SHELL`: a script that completes commands, options and files in that shell."""

from __future__ import annotations

import shtab

from mallob_py.cli.options import COMMANDS
from mallob_py.cli.shell_options import CompletionOptions
from mallob_py.cli.whole_parser import whole_parser


def run(options: CompletionOptions) -> int:
    print(shtab.complete(whole_parser(COMMANDS), options.shell))
    return 0
