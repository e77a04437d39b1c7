"""GATED: a bag of `count` tasks. It reports much expected work until the file `tail` appears in the
configuration's folder, then little work, and ends after the file `go` appears, too.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mallob_py.kit import Payload
from mallob_py.kit.bags import Bag, BagApplication

#: headers of an evolving job that begins on one slot and may have up to three slots
HEADERS = "JOB_CLASS evolving; REQUIRED_TIME 600000; NODES 1; MIN_NODES 1; MAX_NODES 3"
COUNT = 100
_STEPS_OF_TASK = 1000


def body(command: Sequence[str], folder: Path, path: str) -> str:
    """Return the job's script behind its headers; `path`: where Python finds modules."""
    path = os.pathsep.join([str(Path(__file__).parent), path])
    run = shlex.join(
        [*command, "run", "GATED", "--set", f"folder={folder}", "--rank-loss", "survive", "--json", "--quiet"]
    )
    return f"export MALLOB_PY_APPS=GATED={__name__}:Gated PYTHONPATH={path}\nexec {run}\n"


class GatedBag(Bag):
    counts_vary = True

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count, self.done = folder, count, 0

    def process(self, count: int) -> int:
        if not self.count:
            return 0
        if (self.folder / "tail").exists() and (self.folder / "go").exists():
            done, self.count = self.count, 0
            self.done += done
            return done
        until_s = time.thread_time() + 0.001  # CPU time, so that the rate can be measured
        while time.thread_time() < until_s:
            pass
        time.sleep(0.005)
        return 1

    def split(self) -> Bag | None:
        if self.count < 2:
            return None
        given = self.count // 2
        self.count -= given
        return GatedBag(self.folder, given)

    def merge(self, other: Bag) -> None:
        assert isinstance(other, GatedBag)
        self.count += other.count

    def is_empty(self) -> bool:
        return not self.count

    def expected_tasks(self) -> float:
        return self.count if (self.folder / "tail").exists() else self.count * _STEPS_OF_TASK

    def take_result(self) -> int:
        done, self.done = self.done, 0
        return done

    def to_bytes(self) -> bytes:
        return self.count.to_bytes(8, "little")


class Gated(BagApplication):
    name = "GATED"

    def first_bag(self, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return GatedBag(Path(configuration["folder"]), COUNT)

    def bag_from_bytes(self, data: bytes, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return GatedBag(Path(configuration["folder"]), int.from_bytes(data, "little"))
