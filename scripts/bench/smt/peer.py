"""An SMT engine as a command, for engines whose packages have none: peer.py ENGINE FILE."""

from __future__ import annotations

import sys


def main() -> None:
    engine, path = sys.argv[1:]
    if engine == "bitwuzla":
        import bitwuzla

        bitwuzla.Parser(bitwuzla.TermManager(), bitwuzla.Options()).parse(path, False, True)
        return
    import cvc5

    manager = cvc5.TermManager()
    solver, symbols = cvc5.Solver(manager), cvc5.SymbolManager(manager)
    solver.setOption("incremental", "false")
    parser = cvc5.InputParser(solver, symbols)
    parser.setFileInput(cvc5.InputLanguage.SMT_LIB_2_6, path)
    while not (command := parser.nextCommand()).isNull():
        print(command.invoke(solver, symbols), end="", flush=True)


if __name__ == "__main__":
    main()
