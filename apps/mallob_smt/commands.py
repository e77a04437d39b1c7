"""The commands and options of SMT-LIB 2 scripts that are known, and what each needs.

Commands and options that are not listed here never reach an engine: engines have some that read, write or
execute files (cvc5's `declare-oracle-fun`, Z3's `trace` and `*_file` options), and get new ones with each
release.

Source: The SMT-LIB Standard, versions 2.6 and 2.7.
"""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """The kinds of commands: what a command says, and when it may be asked."""

    SILENT = 0
    #: silent, but what the last check has said holds no more
    ASSERTS = 1
    #: sat, unsat or unknown
    CHECK = 2
    #: after a check that has not said unsat
    MODEL = 3
    #: after a check that has said unsat
    CORE = 4
    #: speaks, always
    SPEAKS = 5
    RESET = 6
    #: answered here, without an engine
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
    # Z3's, for optimisation; others refuse them
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

#: commands that engines answer only if they are told to be ready for them: these options are set then
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

#: options whose values cannot name a file: they are booleans or numbers
PASSED_OPTIONS = frozenset(
    (
        *("produce-models", "produce-assignments", "produce-unsat-cores", "produce-unsat-assumptions"),
        *("produce-proofs", "produce-assertions", "interactive-mode"),
        *("global-declarations", "random-seed", "reproducible-resource-limit"),
    )
)
#: options about a solver's own output: there is one stream, and nothing to diagnose on it
#: (interpolants: engines that have them are told so by the command itself, see NEEDS)
SWALLOWED_OPTIONS = frozenset(("verbosity", "produce-interpolants"))
CHANNELS = {"regular-output-channel": "stdout", "diagnostic-output-channel": "stderr"}
PRINT_SUCCESS = "print-success"
