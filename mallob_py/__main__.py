"""`python -m mallob_py ...` is `mallob-py ...`, for where the script is not on PATH."""

import sys

from mallob_py.cli.main import main

sys.exit(main())
