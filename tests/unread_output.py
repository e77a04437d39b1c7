"""Commands whose output nobody reads."""

import os
import subprocess
import sys
from collections.abc import Mapping

from waiting import DEADLINE_S


def code_without_reader(*arguments: str, env: Mapping[str, str]) -> int:
    """Run a command of mallob-py whose standard output is a pipe without a reader; return the exit code."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "mallob_py", *arguments]
        ended = subprocess.run(
            command, stdout=writer, stderr=subprocess.PIPE, env=os.environ | env, timeout=DEADLINE_S
        )
    finally:
        os.close(writer)
    assert b"Traceback" not in ended.stderr
    return ended.returncode
