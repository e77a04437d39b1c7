"""SMT: scripts in SMT-LIB 2, run by several engines of which the first complete answer counts.

An engine is a solver that others have made: Z3, cvc5 and Bitwuzla, as Python packages of the extra `smt`.
Each runs in a process of its own, confined, for none of them can be interrupted from within. Modules:

    declaration   names of results and the answer as text
    app           the application: reads scripts, runs workers
    script        a script's commands, checked and cut into parts that are answered one by one
    commands      the commands and options that are known, and what each needs
    engines       which engines there are, and their settings and order by a script's logic
    sessions      one engine that answers the parts of a script, in its own process
    confinement   what the process of an engine may do: compute
    answering     what an engine says to a script, and what that is worth
    schedule      which engines a worker runs at the moment
    judging       what all engines together have said: an answer, a contradiction, or nothing yet
    running       the engines of one worker
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mallob_smt.app import SmtApplication

__all__ = ["SmtApplication"]


def __getattr__(name: str) -> object:
    """Commands import this package for its declaration only."""
    if name != "SmtApplication":
        raise AttributeError(f"module 'mallob_smt' has no attribute '{name}'")
    from mallob_smt.app import SmtApplication

    return SmtApplication
