"""Bags of tasks whose results are known, from a second of work to an hour.

Sources: the numbers of nodes that come with the UTS benchmark; OEIS A000170 (queens); sums of betweenness
over R-MAT graphs, computed sequentially.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KnownTree:
    """A job and its expected reply. `is_large`: whether it has more than 300 million tasks."""

    name: str
    application: str
    configuration: dict[str, Any]
    expected: dict[str, Any]
    is_large: bool = False


#: depth -> number of nodes of the geometric tree of fixed shape with a mean of 4 children and seed 19
_FIXED = {
    8: 257042, 10: 4130071, 11: 16526523, 12: 66106929, 13: 264459392, 14: 1057675516, 15: 4230646601,
    16: 16922208327,
}  # fmt: skip
_QUEENS = {8: 92, 10: 724, 12: 14200, 13: 73712, 14: 365596, 15: 2279184, 16: 14772512, 17: 95815104}
#: size n of a BC graph (2^n vertices) -> sum of all centralities, largest centrality, the vertex with the
#: largest centrality
_BETWEENNESS = {
    8: (148019, 3315.110595, 4),
    10: (2524531, 48373.625235, 0),
    12: (45726258, 425416.378143, 0),
    13: (185916403, 1367563.690965, 0),
}
_BINOMIAL = {"type": "binomial", "branching": 2000}


def _uts(name: str, configuration: dict[str, Any], nodes: int, **expected: int) -> KnownTree:
    return KnownTree(name, "UTS", configuration, {"value": nodes, **expected}, is_large=nodes > 300_000_000)


TREES = (
    *(_uts(f"UTS {depth}", {"depth": depth}, nodes, depth=depth) for depth, nodes in _FIXED.items()),
    _uts(
        "T2", {"shape": "cyclic", "depth": 16, "branching": 6, "seed": 502}, 4117769, leaves=2342762, depth=81
    ),
    _uts("T3", _BINOMIAL | {"q": 0.124875, "m": 8, "seed": 42}, 4112897, leaves=3599034, depth=1572),
    _uts(
        "T4",
        {"type": "hybrid", "shape": "linear", "depth": 16, "branching": 6, "seed": 1, "q": 0.234375, "m": 4},
        4132453,
        leaves=3108986,
        depth=134,
    ),
    _uts("T5", {"shape": "linear", "depth": 20, "seed": 34}, 4147582, leaves=2181318, depth=20),
    _uts("T1L", {"depth": 13, "seed": 29}, 102181082, leaves=81746377, depth=13),
    _uts(
        "T2L",
        {"shape": "cyclic", "depth": 23, "branching": 7, "seed": 220},
        96793510,
        leaves=53791152,
        depth=67,
    ),
    _uts("T3L", _BINOMIAL | {"q": 0.200014, "m": 5, "seed": 7}, 111345631, leaves=89076904, depth=17844),
    _uts("T1XL", {"depth": 15, "seed": 29}, 1635119272),
    _uts("T3XXL", _BINOMIAL | {"q": 0.499995, "m": 2, "seed": 316}, 2793220501, depth=99049),
    *(
        KnownTree(f"QUEENS {n}", "QUEENS", {"n": n}, {"value": solutions}, is_large=n > 16)
        for n, solutions in _QUEENS.items()
    ),
    *(
        KnownTree(f"BC {n}", "BC", {"n": n}, {"value": total, "max": largest, "vertex": vertex})
        for n, (total, largest, vertex) in _BETWEENNESS.items()
    ),
)
