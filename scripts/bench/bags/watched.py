"""UTS whose workers write down when they were started and when they first had tasks."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from mallob_bags.uts import UtsApplication, UtsBag
from mallob_py.kit import Payload, Result
from mallob_py.kit.app import WorkerContext
from mallob_py.kit.bags import Bag

#: names the folder that workers write to, a file each: lines "word seconds", of the monotonic clock
FOLDER = "MALLOB_PY_BENCH_FOLDER"


class _Diary:
    """The diary of this process."""

    def __init__(self) -> None:
        self._file = (Path(os.environ[FOLDER]) / str(os.getpid())).open("a", buffering=1)
        self.has_worked = False

    def note(self, word: str, at_s: float) -> None:
        self._file.write(f"{word} {at_s!r}\n")


class WatchedBag(UtsBag):
    #: None: nobody watches, as in the rehearsal
    diary: ClassVar[_Diary | None] = None

    def process(self, count: int) -> int:
        if self.diary is not None and not self.diary.has_worked:
            self.diary.has_worked = True
            self.diary.note("works", time.monotonic())
        return super().process(count)


def _watched(bag: Bag) -> Bag:
    bag.__class__ = WatchedBag
    return bag


class WatchedApplication(UtsApplication):
    name: ClassVar[str] = "WATCHED"

    def first_bag(self, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return _watched(super().first_bag(payload, configuration))

    def bag_from_bytes(self, data: bytes, payload: Payload, configuration: Mapping[str, Any]) -> Bag:
        return _watched(super().bag_from_bytes(data, payload, configuration))

    def run(self, context: WorkerContext) -> Result:
        WatchedBag.diary = diary = _Diary()
        diary.note("starts", time.monotonic())
        return super().run(context)
