"""SMT: scripts in SMT-LIB 2, run by several engines; the first complete answer counts.

An engine is a solver of other authors: Z3, cvc5 or Bitwuzla, as Python packages of the extra `smt`.
Each engine runs confined in a process of its own, because its calls cannot be interrupted. Modules:

    declaration   names of results and the answer as text
    app           the application: reads scripts, runs workers
    script        a script's commands, checked and divided into parts that are answered one by one
    commands      the known commands and options, and the requirements of each
    engines       the engines, and their order and options for a script
    sessions      one engine that answers the parts of a script, in its own process
    confinement   the sandbox of an engine's process
    answering     the answers of an engine to a script, and their validity
    schedule      which engines a worker runs at present
    judging       what all engines' answers amount to: an answer, a contradiction, or nothing yet
    running       the engines of one worker
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mallob_smt.app import SmtApplication

__all__ = ["SmtApplication"]


def __getattr__(name: str) -> object:
    """Import the application on first use; commands import this package for its declaration only."""
    if name != "SmtApplication":
        raise AttributeError(f"module 'mallob_smt' has no attribute '{name}'")
    from mallob_smt.app import SmtApplication

    return SmtApplication
