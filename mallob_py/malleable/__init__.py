"""Interface for programs whose number of processes a batch scheduler changes at runtime.

A program defines a handler of four methods and an object that starts and ends its processes:

    malleable.define_malleable_handler(handler, processes)

Until `disable_malleable_handler()` is called, a thread of this package carries out the orders of the
scheduler that started the program, one at a time. Without such a scheduler, the program is not changed.

Source: the malleable APGAS programs of ElasticJobScheduler ("On the Performance of Malleable APGAS Programs
and Batch Job Schedulers", 2024). The module `wire` has their protocol, and `orders` the sequence of steps.
"""

from __future__ import annotations

from mallob_py.malleable.orders import MalleableHandler, OrderError, Place, Processes
from mallob_py.malleable.place_processes import PlaceProcesses, allotted_hosts
from mallob_py.malleable.program import (
    ask_for_processes,
    define_malleable_handler,
    disable_malleable_handler,
    report_progress,
    wish_for_processes,
)

__all__ = [
    "MalleableHandler",
    "OrderError",
    "Place",
    "PlaceProcesses",
    "Processes",
    "allotted_hosts",
    "ask_for_processes",
    "define_malleable_handler",
    "disable_malleable_handler",
    "report_progress",
    "wish_for_processes",
]
