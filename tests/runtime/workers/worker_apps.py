"""Applications that behave well, and applications that do not, for the tests of worker processes."""

import _thread
import ctypes
import functools
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from mallob_py.kit import (
    Application,
    InputError,
    JobInput,
    Payload,
    ProcessKilled,
    Result,
    WorkerContext,
    prepare_result_file,
)


class _NoInput(Application):
    takes_input = False

    def read(self, job: JobInput) -> Payload:
        return {}


class Answer(_NoInput):
    name = "ANSWER"

    def run(self, context: WorkerContext) -> Result:
        return Result(10, [context.index, -context.volume], {"pid": os.getpid(), "threads": context.threads})


class Print(_NoInput):
    """Prints from Python and from a program that it starts; then, if configured, without end."""

    name = "PRINT"

    def run(self, context: WorkerContext) -> Result:
        text = context.configuration["text"]
        print(text)
        print(text, file=sys.stderr)
        subprocess.run(["/bin/sh", "-c", 'echo "$0"', text], check=True)
        while context.configuration.get("endless"):
            print(text * 1000)
        return Result(1)


class Draw(_NoInput):
    """Answers with random numbers."""

    name = "DRAW"

    def __init__(self) -> None:
        np.random.random()  # state that a fork of this process would inherit from now on

    def run(self, context: WorkerContext) -> Result:
        return Result(10, [random.getrandbits(30), int(np.random.randint(1 << 30))])


class Finish(_NoInput):
    """Finishes within nested calls; if configured, swallows the exception that unwinds them."""

    name = "FINISH"

    def run(self, context: WorkerContext) -> Result | None:
        try:
            context.finish(Result(20))
        except BaseException:
            if not context.configuration.get("swallow"):
                raise
        while True:
            pass


class Park(_NoInput):
    name = "PARK"

    def run(self, context: WorkerContext) -> Result | None:
        return None


class Spin(_NoInput):
    """Never releases the interpreter's lock, as a solver does."""

    name = "SPIN"

    def run(self, context: WorkerContext) -> Result:
        while True:
            pass


class Raise(_NoInput):
    """Raises the exception that the configuration names."""

    name = "RAISE"
    result_strings: ClassVar[Mapping[int, str]] = {10: 5}  # type: ignore[dict-item]

    def run(self, context: WorkerContext) -> Result:
        match context.configuration["what"]:
            case "exit":
                sys.exit(3)
            case "interrupt":
                raise KeyboardInterrupt
            case "memory":
                return Result(0, np.ones(1 << 30, dtype=np.int64))
            case "recursion":
                return self.run(context)
            case "bad result":
                return [1, 2]  # type: ignore[return-value]
            case "wide result":
                return Result(10, [2**31])
            case "nameless code":
                return Result(10)
            case "deep result":
                return Result(0, fields={"value": functools.reduce(lambda inner, _: [inner], range(600), [])})
            case "no number":
                return Result(0, fields={"value": {"mean": [1.5, math.nan]}, "other": None})
            case "no end":
                return Result(0, fields={"value": (1, -math.inf)})
            case "foreseen":
                raise InputError("the disk is full")
            case "odd name":
                raise ValueError("odd\udcff.cnf")
            case "foreseen odd name":
                raise InputError("odd\udcff.cnf")
            case _:
                raise ValueError("no such luck")


class Die(_NoInput):
    name = "DIE"

    def run(self, context: WorkerContext) -> Result:
        if context.configuration["how"] == "segfault":
            ctypes.string_at(0)
        if context.configuration["how"] == "killed":
            raise ProcessKilled("a child of it was killed")
        os._exit(7)


class Echo(_NoInput):
    """Greets its children, passes received messages on to its parent, and returns at the message `end`."""

    name = "ECHO"

    def run(self, context: WorkerContext) -> Result:
        context.set_demand(5)
        context.send_to_children(b"hello")
        while True:
            for message in context.poll(timeout_s=60):
                if message.data == b"end":
                    return Result(0, [context.index, context.volume, *context.children])
                context.send_to_parent(b"%d:%s:%d" % (message.source, message.data, message.returned))


class Far(_NoInput):
    """Reports the same progress again and again for half a second."""

    name = "FAR"

    def run(self, context: WorkerContext) -> Result:
        end_s = time.monotonic() + 0.5
        while time.monotonic() < end_s:
            context.report_progress(context.configuration["done"], unit="a unit with a very long name")
            context.poll(0.001)
        context.report_progress(0)
        return Result(0)


class FarAtOnce(_NoInput):
    """Reports three times without a pause, then only polls."""

    name = "FARATONCE"

    def run(self, context: WorkerContext) -> Result:
        for done in (1, 2, 3):
            context.report_progress(done, 3)
        end_s = time.monotonic() + 0.5
        while time.monotonic() < end_s:
            context.poll(0.001)
        return Result(0)


class Sum(Application):
    """Sums the integers in its files and literals."""

    name = "SUM"

    def check(self, configuration: Mapping[str, Any]) -> None:
        if "bad" in configuration:
            raise InputError("'bad' is not an option", "configuration")

    def read(self, job: JobInput) -> Payload:
        numbers = list(job.literals or ())
        for path in job.files:
            if not os.path.exists(path):
                raise InputError(f"{path}: no such file")
            with open(path) as file:
                numbers += [int(word) for word in file.read().split()]
        return {"numbers": np.array(numbers, dtype=np.int64)}

    def run(self, context: WorkerContext) -> Result:
        numbers = context.payload["numbers"]
        assert not numbers.flags.writeable
        return Result(10, [int(numbers.sum())])


class Litter(_NoInput):
    """Leaves a thread or a child process behind, or goes on beside a child, as configured."""

    name = "LITTER"

    def run(self, context: WorkerContext) -> Result | None:
        if context.configuration["what"] == "thread":
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            return Result(10, [os.getpid()])
        if context.configuration["what"] == "thread that Python does not list":
            (lock := _thread.allocate_lock()).acquire()
            _thread.start_new_thread(lock.acquire, ())
            return Result(10, [os.getpid()])
        child = subprocess.Popen(["sleep", "1000"], close_fds=False)
        if context.configuration["what"] == "child beside it":
            context.checkpoint(b"%d" % child.pid)
            return None
        return Result(10, [os.getpid(), child.pid])


class Work(_NoInput):
    """Uses CPU time in this process and as much in a child; then answers, waits or dies, as configured."""

    name = "WORK"

    def run(self, context: WorkerContext) -> Result | None:
        self._use(context.configuration["cpu_s"])
        if (pid := os.fork()) == 0:
            self._use(context.configuration["cpu_s"])
            os._exit(0)
        os.waitpid(pid, 0)
        match context.configuration.get("then"):
            case "wait":
                return None
            case "die":
                os._exit(7)
        return Result(10, [os.getpid()])

    @staticmethod
    def _use(cpu_s: float) -> None:
        end_s = time.process_time() + cpu_s
        while time.process_time() < end_s:
            pass


class Talk(_NoInput):
    """Prints, and sends bytes that are no message."""

    name = "TALK"

    def run(self, context: WorkerContext) -> Result:
        for fd in range(3, 64):
            try:
                os.write(fd, b"\x05\x00\x00\x00nonsense")
            except OSError:
                continue
        while True:
            pass


class Count(Application):
    """Acts as the configuration says, then returns the revisions of the chain that this process has seen, and
    the sum of the numbers in the input.
    """

    name = "COUNT"
    revises = True
    result_files = ("report",)

    def __init__(self) -> None:
        self.seen: dict[int, list[int]] = {}

    def read(self, job: JobInput) -> Payload:
        former = [] if job.former is None else job.former["numbers"].tolist()
        if job.literals == [0]:
            raise InputError("no zero", "literals")
        if "report" in job.configuration:
            prepare_result_file(str(job.configuration["report"]))
        return {"numbers": np.array([*former, *(job.literals or ())], dtype=np.int64)}

    def run(self, context: WorkerContext) -> Result | None:
        seen = self.seen.setdefault(context.chain, [])
        seen.append(context.revision)
        match context.configuration.get("then"):
            case "wait":
                while True:
                    context.poll(timeout_s=60)
            case "spin":
                while True:
                    pass
            case "late":  # an answer that is no longer awaited
                os.kill(os.getpid(), signal.SIGSTOP)
            case "die":
                os._exit(7)
            case "burn":
                while time.process_time() < 0.2:
                    pass
        numbers = context.payload.get("numbers", np.zeros(0))
        return Result(10, [*seen, int(numbers.sum())], {"pid": os.getpid()})


class Leave(_NoInput):
    """Waits until it is told to leave, then answers each message; with `parked`, returns at once."""

    name = "LEAVE"
    leaves_in_order = True

    def run(self, context: WorkerContext) -> Result | None:
        if context.configuration.get("parked"):
            return None
        senders = []
        while not context.leaving:
            senders += [message.sender for message in context.poll(timeout_s=60)]
        for address in senders:
            context.send_to(address, b"yours")
        return None


class Prepared(_NoInput):
    """Tells which process has prepared it, if it was prepared."""

    name = "PREPARED"
    by = 0

    def prepare(self) -> None:
        assert not self.by, "once is enough"
        if "MALLOB_PY_TEST_UNPREPARED" in os.environ:
            raise RuntimeError("not today")
        self.by = os.getpid()

    def run(self, context: WorkerContext) -> Result:
        return Result(10, [self.by, os.getpid()])


class Save(_NoInput):
    """Asks for the last checkpoint, saves a checkpoint that contains the last one, and answers with the last
    one.
    """

    name = "SAVE"

    def run(self, context: WorkerContext) -> Result:
        last = context.last_checkpoint()
        context.checkpoint(b"nothing" if last is None else b"after " + last)
        (message,) = context.poll(timeout_s=60)
        return Result(10, list(message.data))
