"""What `submit --wait` and `wait` have in common: printing replies, and leaving before they are there."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from mallob_py.cli.answer_lines import lines_of_reply
from mallob_py.cli.client_options import SAT_FORMAT

INTERRUPTED = 130


class ReplyPrinter:
    """Prints the replies to so many jobs, and knows the exit code then."""

    def __init__(self, command: str, output_format: str, jobs: int) -> None:
        self._command = command
        self._is_sat = output_format == SAT_FORMAT
        self._is_single = jobs == 1
        self._code = 0

    @property
    def exit_code(self) -> int:
        """2 as soon as a reply is an error; as s and v lines and for one job, its answer's code; else 0."""
        return self._code

    def print(self, identity: str, reply: dict[str, Any]) -> None:
        error = reply.get("error")
        if error is not None:
            self._code = 2
        if not self._is_sat:
            print(json.dumps(reply, indent=2), flush=True)
            return
        if not self._is_single:
            print(f"c {identity}")
        if error is not None:
            place = f"{error['field']}: " if error.get("field") else ""
            print(f"mallob-py {self._command}: {identity}: {place}{error.get('message')}", file=sys.stderr)
            return
        for line in lines_of_reply(reply["result"]):
            print(line)
        sys.stdout.flush()
        if self._is_single:
            self._code = int(reply["result"]["resultcode"])


def say_what_goes_on(command: str, identities: Sequence[str], api_dir: str, client: int) -> int:
    """For who leaves before the replies are there; the exit code."""
    names = " ".join(identities)
    options = "" if api_dir == ".api" else f" --api-dir {api_dir}"
    options += f" --client {client}" if client else ""
    text = (
        f"{names} {'go' if len(identities) > 1 else 'goes'} on; to wait: mallob-py wait{options} {names};"
        f" to end it: mallob-py interrupt{options} {identities[0]}"
    )
    print(f"mallob-py {command}: {text}", file=sys.stderr)
    return INTERRUPTED
