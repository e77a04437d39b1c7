"""Applications for whole services: some fail on purpose and must harm only their own jobs; others count
workers or wait.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import ClassVar, NoReturn

import numpy as np

from mallob_py.kit import (
    Application,
    JobInput,
    Payload,
    Result,
    UnfinishedFile,
    WorkerContext,
    prepare_result_file,
)


class Fail(Application):
    """Fails in the way that the configuration names: in the worker, or while reading the input."""

    name = "FAIL"
    takes_input = False

    def read(self, job: JobInput) -> Payload:
        if job.configuration.get("where") == "read":
            _fail(str(job.configuration["how"]))
        return {}

    def run(self, context: WorkerContext) -> Result:
        _fail(str(context.configuration["how"]))
        return Result(10, [context.index])


class Poison(Application):
    """Kills the rank of its worker with the configured signal."""

    name = "POISON"
    takes_input = False

    def read(self, job: JobInput) -> Payload:
        return {}

    def run(self, context: WorkerContext) -> NoReturn:
        fork_server = os.getppid()
        rank = int(Path(f"/proc/{fork_server}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(rank, signal.Signals[context.configuration["signal"]])
        context.park()


def _fail(how: str) -> None:
    match how:
        case "raise":
            raise ValueError("no such luck")
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(7)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)


class Census(Application):
    """Each worker leaves a file `<index>` with its process id in the configured folder, and stays."""

    name = "CENSUS"
    takes_input = False

    def read(self, job: JobInput) -> Payload:
        return {}

    def run(self, context: WorkerContext) -> NoReturn:
        folder = Path(str(context.configuration["folder"]))
        (folder / f"~{context.index}").write_text(str(os.getpid()))
        (folder / f"~{context.index}").rename(folder / str(context.index))
        context.park()


class Glutton(Census):
    """A CENSUS whose workers each occupy the configured memory before they are counted."""

    name = "GLUTTON"

    def run(self, context: WorkerContext) -> NoReturn:
        taken = bytearray(b"x") * int(context.configuration["size_bytes"])
        super().run(context)
        del taken


class Writer(Application):
    """The root writes the configured `text` to the file `report`, and stays if the configuration says so."""

    name = "WRITER"
    takes_input = False
    result_files = ("report",)

    def read(self, job: JobInput) -> Payload:
        prepared = prepare_result_file(str(job.configuration["report"]))
        return {"prepared": np.frombuffer(prepared.encode(), dtype=np.uint8)}

    def run(self, context: WorkerContext) -> Result | None:
        if context.index > 0:
            return None
        file = UnfinishedFile(
            str(context.configuration["report"]), context.payload["prepared"].tobytes().decode()
        )
        file.write(str(context.configuration["text"]).encode())
        file.deliver()
        if context.configuration.get("stays"):
            context.park()
        return Result(10)


class Bulk(Application):
    """A payload of the configured size. The root answers with its checksum when all workers are done.

    Every worker leaves a file `<index>` with the checksum of the payload that it sees in the
    configured folder.
    """

    name = "BULK"
    takes_input = False

    def read(self, job: JobInput) -> Payload:
        words = int(job.configuration["size_bytes"]) // 8
        return {"noise": np.random.default_rng(1).integers(1 << 62, size=words, dtype=np.int64)}

    def run(self, context: WorkerContext) -> Result | None:
        folder = Path(str(context.configuration["folder"]))
        checksum = int(np.bitwise_xor.reduce(context.payload["noise"])) & 0x7FFFFFFF
        (folder / f"~{context.index}").write_text(str(checksum))
        (folder / f"~{context.index}").rename(folder / str(context.index))
        if context.index > 0:
            return None
        while len(list(folder.glob("[0-9]*"))) < int(context.configuration["workers"]):
            time.sleep(0.01)
        return Result(10, [checksum])


class Descend(Application):
    """Offers costs from 10 to 7 (as a worker below the root: 5) and a bound; then waits for the end."""

    name = "DESCEND"
    takes_input = False
    minimizes = True
    value_label = "cost"
    result_strings: ClassVar = {10: "FOUND"}

    def read(self, job: JobInput) -> Payload:
        return {}

    def run(self, context: WorkerContext) -> Result:
        if context.index:
            context.offer(Result(10, [5], {"complete": True}), value=5)
        else:
            for cost in range(10, 6, -1):
                context.offer(Result(10, [cost]), value=cost)
        context.offer(bound=3)
        while True:
            context.poll(timeout_s=0.05)


class Wait(Application):
    """Answers once the configured file `until` exists."""

    name = "WAIT"
    takes_input = False

    def read(self, job: JobInput) -> Payload:
        return {}

    def run(self, context: WorkerContext) -> Result:
        while not os.path.exists(str(context.configuration["until"])):
            context.poll(timeout_s=0.01)
        return Result(10)


class Begin(Application):
    """Notes each begun process in the configured folder; answers after the configured CPU time, if any."""

    name = "BEGIN"
    takes_input = False

    def read(self, job: JobInput) -> Payload:
        return {}

    def run(self, context: WorkerContext) -> Result:
        context.set_demand(1)
        Path(str(context.configuration["folder"]), str(os.getpid())).touch()
        seconds = float(context.configuration.get("seconds", 0.0))
        if not seconds:
            context.park()
        until_s = time.process_time() + seconds
        while time.process_time() < until_s:
            context.poll()
        return Result(10, [os.getpid()])
