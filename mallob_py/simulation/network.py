"""The network model of large simulations: hosts, latencies with jitter, costs per message."""

from __future__ import annotations

import numpy as np

from mallob_py.placement import Placement
from mallob_py.simulation.setting import Setting

_DRAWN_AT_ONCE = 1 << 16


class NetworkModel:
    """`Delays` by a setting. Random numbers are drawn in bulk and used one after another.

    Slow is a rank as a whole, with all PEs that it hosts.
    """

    def __init__(self, setting: Setting) -> None:
        network = setting.network
        self._setting = setting
        self._pes_per_host = setting.pes_per_host
        self._same_host_s = network.same_host_us * 1e-6
        self._other_host_s = network.other_host_us * 1e-6
        self.local_s = network.same_rank_us * 1e-6
        self.handling_s = network.handling_us * 1e-6
        self.sending_s = network.sending_us * 1e-6
        self._random = np.random.default_rng((setting.seed, 1))
        self._loop_of = Placement(setting.rank_capacities() or [1] * setting.pes).rank_of
        slow = self._random.random(setting.pes) < setting.faults.slow_pes
        self._slowness: list[float] = np.where(slow, setting.faults.slow_factor, 1.0).tolist()
        self._jitters_s: list[float] = []

    def message_s(self, source: int, dest: int) -> float:
        if not self._jitters_s:
            self._jitters_s = self._draw_jitters()
        per_host = self._pes_per_host
        base_s = self._same_host_s if source // per_host == dest // per_host else self._other_host_s
        return base_s + self._jitters_s.pop()

    def _draw_jitters(self) -> list[float]:
        faults = self._setting.faults
        jitters_s = self._random.exponential(self._setting.network.jitter_us * 1e-6, _DRAWN_AT_ONCE)
        if faults.delayed_messages:
            delayed = self._random.random(_DRAWN_AT_ONCE) < faults.delayed_messages
            jitters_s += delayed * (faults.delay_ms * 1e-3)
        drawn: list[float] = jitters_s.tolist()
        return drawn

    def process_start_s(self, rank: int) -> float:
        return self._around(self._setting.processes.start_ms) * self._slowness[self._loop_of[rank]]

    def process_resume_s(self, rank: int) -> float:
        return self._around(self._setting.processes.resume_ms) * self._slowness[self._loop_of[rank]]

    def fetch_s(self, rank: int) -> float:
        return self._around(self._setting.processes.fetch_ms) * self._slowness[self._loop_of[rank]]

    def slowness(self, rank: int) -> float:
        return self._slowness[rank]

    def _around(self, milliseconds: float) -> float:
        return milliseconds * 1e-3 * float(self._random.uniform(0.5, 1.5))
