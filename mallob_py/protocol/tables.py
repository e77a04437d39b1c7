"""Tables that follow from a generation alone: the placement of its PEs, and their rule for making images.

All ranks compute equal tables. Ranks of a simulation may share one set: a thousand tables of a thousand PEs
would take most of the memory and time.
"""

from __future__ import annotations

from mallob_py.protocol.balancing import ImageRule, local_rule, shared_rule
from mallob_py.protocol.config import Config
from mallob_py.protocol.placement import Generation, Placement, first_generation


class Tables:
    """The tables of one rank, or of all ranks that share them."""

    def __init__(self, founders: tuple[int, ...], config: Config, *, are_shared: bool = False) -> None:
        """`founders`: the capacities of the ranks with which the system started."""
        self.config = config
        self._are_shared = are_shared
        self.first = first_generation(founders)
        self.founders = Placement(founders)
        #: g -> placement of a generation, for the generations asked for last
        self._placements = {self.first.g: self.founders}
        self._rules: dict[int, ImageRule] = {}

    def placement(self, generation: Generation) -> Placement:
        """Return the PEs of a generation."""
        found = self._placements.get(generation.g)
        if found is None:
            found = Placement(generation.capacities, generation.members)
            if not self._are_shared:
                self._placements.clear()
            self._placements[generation.g] = found
        return found

    def rule(self, generation: Generation, rank: int) -> ImageRule:
        """Return the rule for a rank's PEs, or one rule for all PEs if ranks share their tables."""
        if (found := self._rules.get(generation.g)) is not None:
            return found
        placement = self.placement(generation)
        count = placement.size if self._are_shared else len(placement.pes_of(rank))
        rule = shared_rule(local_rule(placement.size, self.config.slices), count)
        if self._are_shared:
            self._rules[generation.g] = rule
        return rule
