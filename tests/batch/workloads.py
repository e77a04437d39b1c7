"""Small workloads for tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from mallob_py.batch.cluster import Cluster
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


#: cores, GPUs: two nodes of each kind
SMALL_CLUSTER = Cluster(("cores", "GPUs"), ((4.0, 0.0), (4.0, 0.0), (4.0, 2.0), (4.0, 2.0)))


def sharing(
    *jobs: tuple[float, int, tuple[float, ...], float, float] | tuple[float, int, tuple[float, ...], float],
    cluster: Cluster = SMALL_CLUSTER,
) -> Workload:
    """Jobs as (submission, units, demand of a unit, run time[, estimate])."""
    described = [
        Job(
            number,
            float(one[0]),
            one[1],
            float(one[4] if len(one) > 4 else one[3]),
            number=number + 1,
            demand=one[2],
        )
        for number, one in enumerate(jobs)
    ]
    truths = [Truth(float(one[3])) for one in jobs]
    return Workload(described, truths, len(cluster.capacities), cluster=cluster)


def sharing_workloads(jobs: int = 12) -> st.SearchStrategy[Workload]:
    """On the small cluster; every job has room on the empty one."""
    demand = st.sampled_from([(1.0, 0.0), (2.0, 0.0), (3.0, 0.0), (1.0, 1.0), (4.0, 2.0), ()])
    one = st.tuples(st.integers(0, 20), st.integers(1, 2), demand, st.integers(1, 15), st.integers(0, 10))
    return st.lists(one, min_size=1, max_size=jobs).map(
        lambda many: sharing(
            *[(at, units, demand, run, run + more) for at, units, demand, run, more in sorted(many)]
        )
    )
