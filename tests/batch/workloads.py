"""Small workloads for tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from mallob_py.batch.job import Job, Kind, Truth, Workload


def rigid(*jobs: tuple[float, int, float, float] | tuple[float, int, float], nodes: int) -> Workload:
    """Jobs as (submission, nodes, run time[, estimate])."""
    described = [
        Job(number, float(one[0]), one[1], float(one[3] if len(one) > 3 else one[2]), number=number + 1)
        for number, one in enumerate(jobs)
    ]
    return Workload(described, [Truth(float(one[2])) for one in jobs], nodes)


def malleable(*jobs: tuple[float, int, int, int, float], nodes: int, **truth: Any) -> Workload:
    """Jobs as (submission, least, preferred, most nodes, run time on the preferred number)."""
    described = [
        Job(number, float(at), preferred, float(run), Kind.MALLEABLE, low, high, number=number + 1)
        for number, (at, low, preferred, high, run) in enumerate(jobs)
    ]
    return Workload(described, [Truth(float(run), **truth) for *_, run in jobs], nodes)


def rigid_workloads(nodes: int = 8, jobs: int = 30) -> st.SearchStrategy[Workload]:
    """Whole seconds and few of them, so that much happens at the same time."""
    one = st.tuples(st.integers(0, 40), st.integers(1, nodes), st.integers(1, 15), st.integers(0, 10))
    return st.lists(one, min_size=1, max_size=jobs).map(
        lambda many: rigid(
            *[(at, size, run, run + more) for at, size, run, more in sorted(many)], nodes=nodes
        )
    )
