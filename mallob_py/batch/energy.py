"""Energy by what nodes do: busy ones run a job, the others are idle. Power is in watts, energy in joules."""

from __future__ import annotations

import msgspec

from mallob_py.batch.simulator import Outcome, Piece


class Power(msgspec.Struct, frozen=True):
    """What one node takes [W]."""

    idle_w: float = 100.0
    busy_w: float = 200.0

    def of(self, piece: Piece) -> float:
        """What a piece of a job takes [J]."""
        return (piece.end_s - piece.start_s) * len(piece.nodes) * self.busy_w


class Energy(msgspec.Struct, frozen=True):
    """Node-seconds and energy [J] of each state, from the first submission to the last end."""

    busy_node_s: float
    idle_node_s: float
    busy_j: float
    idle_j: float

    @property
    def total_j(self) -> float:
        return self.busy_j + self.idle_j


def energy_of(outcome: Outcome, power: Power) -> Energy:
    """ValueError: there are no jobs."""
    if not outcome.workload.jobs:
        raise ValueError("there are no jobs")
    begin_s = min(job.submit_s for job in outcome.workload.jobs)
    busy = sum((piece.end_s - piece.start_s) * len(piece.nodes) for piece in outcome.all_pieces())
    # Nodes that two jobs share are busy once.
    busy -= sum((span.end_s - span.start_s) * span.nodes for span in outcome.shared)
    idle = max(0.0, outcome.nodes * (max(outcome.ends_s) - begin_s) - busy)
    return Energy(busy, idle, busy * power.busy_w, idle * power.idle_w)
