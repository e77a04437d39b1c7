"""`mallob-py man`: the manual page, in troff, made from the table of options."""

from __future__ import annotations

from argparse_manpage.manpage import Manpage

from mallob_py import __version__
from mallob_py.cli.options import COMMANDS
from mallob_py.cli.shell_options import ManOptions
from mallob_py.cli.whole_parser import whole_parser

_EXIT_STATUS = """0 after success. 2 for anything wrong with options or input: one line on standard error.
130 after Ctrl\\-C. solve: 10 for satisfiable, 20 for unsatisfiable, 0 for unknown or several formulas.
status, top \\-\\-once: 1 if no service is running. check\\-proof: 1 if the proof is wrong."""


def run(options: ManOptions) -> int:
    page = Manpage(whole_parser(COMMANDS))
    page.description = "share cores among many malleable jobs, such as SAT formulas"
    page.source = f"mallob-py {__version__}"
    page.manual = "User commands"
    page.date = ""  # the same page from the same version
    page.add_section("exit status", "=", _EXIT_STATUS)
    print(page, end="")
    return 0
