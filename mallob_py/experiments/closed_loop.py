"""Streams of jobs in which the next job arrives as soon as one has ended (P 5.1, 5.2)."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from mallob_py.simulation.run import Simulation
from mallob_py.simulation.setting import JobSpec


class ClosedLoop:
    """Keeps one job of each stream in the system as long as the stream has any."""

    def __init__(self, simulation: Simulation, streams: list[Iterator[JobSpec]]) -> None:
        self._simulation = simulation
        self._streams = streams
        #: job -> stream
        self.stream_of: dict[int, int] = {}
        simulation.on_job_ended = self._ended
        for stream in range(len(streams)):
            self._submit_next(stream)

    def _ended(self, job: int) -> None:
        self._submit_next(self.stream_of[job])

    def _submit_next(self, stream: int) -> None:
        spec = next(self._streams[stream], None)
        if spec is not None:
            spec = msgspec.structs.replace(spec, arrival_s=self._simulation.cluster.now)
            self.stream_of[self._simulation.submit(spec)] = stream
