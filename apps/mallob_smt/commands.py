"""The known commands and options of SMT-LIB 2 scripts, and the requirements of each.

Only the commands and options listed in this module may reach an engine, because engines have commands and
options that read, write or execute files (cvc5's `declare-oracle-fun`, Z3's `trace` and `*_file` options),
and get new ones with each release.

Source: The SMT-LIB Standard, versions 2.6 and 2.7.
"""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """The kinds of commands: what a command prints, and when it is permitted."""

    #: prints nothing
    SILENT = 0
    #: prints nothing; the last check's answer becomes invalid
    ASSERTS = 1
    #: prints sat, unsat or unknown
    CHECK = 2
    #: prints, and is permitted after a check whose answer is not unsat
    MODEL = 3
    #: prints, and is permitted after a check whose answer is unsat
    CORE = 4
    #: prints, and is always permitted
    SPEAKS = 5
    RESET = 6
    #: is answered by this application, without an engine
    OURS = 7


COMMANDS: dict[str, Kind] = {
    **dict.fromkeys(
        (
            *("set-logic", "declare-const", "declare-fun", "declare-sort", "declare-datatype"),
            *("declare-datatypes", "declare-sort-parameter", "define-const", "define-fun", "define-fun-rec"),
            *("define-funs-rec", "define-sort"),
        ),
        Kind.SILENT,
    ),
    **dict.fromkeys(("assert", "push", "pop", "reset-assertions"), Kind.ASSERTS),
    # Z3's commands for optimisation; other engines refuse them
    **dict.fromkeys(("assert-soft", "minimize", "maximize"), Kind.ASSERTS),
    "check-sat": Kind.CHECK,
    "check-sat-assuming": Kind.CHECK,
    "get-model": Kind.MODEL,
    "get-value": Kind.MODEL,
    "get-assignment": Kind.MODEL,
    "get-objectives": Kind.MODEL,
    "get-unsat-core": Kind.CORE,
    "get-unsat-assumptions": Kind.CORE,
    "get-proof": Kind.CORE,
    "get-interpolant": Kind.SPEAKS,
    "get-assertions": Kind.SPEAKS,
    "get-info": Kind.SPEAKS,
    "get-option": Kind.SPEAKS,
    "echo": Kind.OURS,
    "simplify": Kind.SPEAKS,
    "eval": Kind.MODEL,
    "reset": Kind.RESET,
    "set-info": Kind.OURS,
    "set-option": Kind.OURS,
    "exit": Kind.OURS,
}

#: command -> option that must be set from the beginning for engines to answer the command
NEEDS: dict[str, str] = {
    "get-model": "produce-models",
    "get-value": "produce-models",
    "eval": "produce-models",
    "get-assignment": "produce-assignments",
    "get-unsat-core": "produce-unsat-cores",
    "get-unsat-assumptions": "produce-unsat-assumptions",
    "get-proof": "produce-proofs",
    "get-assertions": "produce-assertions",
    "get-interpolant": "produce-interpolants",
}

#: options whose values are booleans or numbers, so that they cannot name a file
PASSED_OPTIONS = frozenset(
    (
        *("produce-models", "produce-assignments", "produce-unsat-cores", "produce-unsat-assumptions"),
        *("produce-proofs", "produce-assertions", "interactive-mode"),
        *("global-declarations", "random-seed", "reproducible-resource-limit"),
    )
)
#: options that have no effect here: engines print no diagnostics, and get the option for interpolants from
#: the command (see NEEDS)
SWALLOWED_OPTIONS = frozenset(("verbosity", "produce-interpolants"))
CHANNELS = {"regular-output-channel": "stdout", "diagnostic-output-channel": "stderr"}
PRINT_SUCCESS = "print-success"
