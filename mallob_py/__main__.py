"""The script `mallob-py`; `python -m mallob_py` runs it where the script is not on PATH."""

from __future__ import annotations

import gc
import sys

from mallob_py.cli import interrupts
from mallob_py.runtime.inherited import make_own_state

interrupts.end_at_once()  # the imports below take long enough for a user to press Ctrl-C meanwhile


def main() -> None:
    make_own_state()
    if sys.argv[1:2] == ["solve"] and sys.argv[2:] and not {"-h", "--help"} & set(sys.argv):
        from mallob_py.cli.launching import begin_early

        begin_early(sys.argv[2:])
    elif sys.argv[1:2] == ["serve"]:
        gc.disable()  # useless during imports, whose objects stay; `run_serve` enables collections
    from mallob_py.cli.main import main as run

    interrupts.exit_with(run())


if __name__ == "__main__":
    main()
