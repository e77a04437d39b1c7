"""The cost of one protocol message: the numbers that the simulator's network model is made of.

Two ranks do what a rank's event loop does with a message: receive it, decode it, hand it to a
PE, encode an answer, send it, wait for the doorbell. Once with a single message that goes to
and fro, so that each hop includes waking the receiver; once with 8 on their way at a time, so
that event loops find several at once. CPU time is that of receiver and sender together, per
message. Then the same where ranks of different hosts are linked by sockets (here over the loopback, as
if each rank were on a host of its own). The peer is MPI's own ping-pong between the same processes, with
which both ranks spin.
"""

from __future__ import annotations

import os
import select
import statistics
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
from common import print_table, write_results

from mallob_py.protocol.config import Config
from mallob_py.protocol.messages import AnyMessage, VoidToken, encode
from mallob_py.protocol.pe import PE
from mallob_py.protocol.stimuli import Received
from mallob_py.runtime.world.envelope import open_envelope, seal
from mallob_py.runtime.world.launch import launch_world
from mallob_py.runtime.world.mpi import RankLoss, in_mpi_world, leave, start_mpi

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from mallob_py.runtime.world.transport import Transport

_RANKS = 2
_SAMPLES = 20
_HOPS_PER_SAMPLE = 4000
_PARK_S = 0.05
_IN_FLIGHT = (1, 8)


class Sample(msgspec.Struct, frozen=True):
    """Microseconds per message."""

    elapsed_us: float
    cpu_us: float


def main() -> int:
    if not in_mpi_world():
        program = os.path.abspath(__file__)
        return launch_world(_RANKS, [program]) or launch_world(
            _RANKS, [program, "linked"], {**os.environ, "MALLOB_PY_RANKS_PER_HOST": "1"}
        )
    is_linked = "linked" in sys.argv
    comm = start_mpi()
    from mallob_py.runtime.world.transport import Transport  # initialises MPI

    transport = Transport(comm, RankLoss.SURVIVE if is_linked else RankLoss.RESTART)
    loop = _Loop(transport)
    rows, results = [], {}
    for in_flight in _IN_FLIGHT:
        comm.Barrier()
        samples = [loop.sample(in_flight) for _ in range(_SAMPLES)]
        results[f"in_flight_{in_flight}"] = samples
        rows.append(_row(f"event loops, {in_flight} on their way", samples))
    comm.Barrier()
    samples = list(_spinning(comm))
    results["spinning"] = samples
    rows.append(_row("MPI alone, spinning", samples))
    if transport.rank == 0:
        print_table(
            f"one message between two ranks{' that are linked' if is_linked else ''}"
            f" on {len(os.sched_getaffinity(0))} cores (medians)",
            ("way", "us per hop", "CPU us per message"),
            rows,
        )
        write_results("hops-linked" if is_linked else "hops", msgspec.to_builtins(results))
    leave(transport.rank, 0, transport.close())
    return 0


def _row(what: str, samples: list[Sample]) -> tuple[str, float, float]:
    return (
        what,
        statistics.median(sample.elapsed_us for sample in samples),
        statistics.median(sample.cpu_us for sample in samples),
    )


class _Loop:
    """A rank's event loop, reduced to what a message passes through."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._pe = PE(transport.rank, _RANKS, Config())
        self._pe.take_effects()
        self._decode = msgspec.msgpack.Decoder(AnyMessage).decode

    def sample(self, in_flight: int) -> Sample:
        """Messages go to and fro, `in_flight` at a time, until rank 0 has got its share."""
        transport, peer = self._transport, 1 - self._transport.rank
        sent = received = 0
        begin_s, cpu_begin_s = time.perf_counter(), time.process_time()

        def answer() -> None:
            nonlocal sent
            transport.send(peer, seal(1, transport.rank, peer, encode(VoidToken(sent))))
            sent += 1

        if transport.rank == 0:
            for _ in range(in_flight):
                answer()
            transport.flush()
        while received < _HOPS_PER_SAMPLE:
            for arrival in transport.receive():
                _, source, _, message = open_envelope(arrival.data, self._decode)
                self._pe.handle(Received(source, message), time.monotonic())
                self._pe.take_effects()
                received += 1
                if sent < _HOPS_PER_SAMPLE:
                    answer()
                if received == _HOPS_PER_SAMPLE:
                    break  # what comes now belongs to the next sample
            transport.flush()
            if received < _HOPS_PER_SAMPLE:
                park_s = transport.park_timeout_s(_PARK_S)
                descriptors = transport.descriptors()
                if descriptors[0] in select.select(descriptors, (), (), park_s)[0]:
                    transport.wake()
        elapsed_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - cpu_begin_s
        while transport.has_pending():
            transport.progress()
        # Both ranks have received so many each; a hop to and one back take twice a hop.
        hops = 2 * _HOPS_PER_SAMPLE / in_flight
        return Sample(elapsed_s / hops * 1e6, cpu_s / _HOPS_PER_SAMPLE * 1e6)


def _spinning(comm: Intracomm) -> Iterator[Sample]:
    """Blocking sends and receives of as many bytes."""
    data, peer = bytearray(16), 1 - comm.rank
    for _ in range(_SAMPLES):
        begin_s, cpu_begin_s = time.perf_counter(), time.process_time()
        for _ in range(_HOPS_PER_SAMPLE):
            if comm.rank == 0:
                comm.Send(data, peer)
                comm.Recv(data, peer)
            else:
                comm.Recv(data, peer)
                comm.Send(data, peer)
        elapsed_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - cpu_begin_s
        yield Sample(elapsed_s / (2 * _HOPS_PER_SAMPLE) * 1e6, cpu_s / _HOPS_PER_SAMPLE * 1e6)


if __name__ == "__main__":
    sys.exit(main())
