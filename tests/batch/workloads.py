"""Small workloads for tests."""

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from mallob_py.batch.cluster import Cluster
from mallob_py.batch.job import Job, Kind, Truth, Wish, Workload
from mallob_py.batch.speedup import LINEAR, Amdahl, Logarithmic, Power


def rigid(*jobs: tuple[float, int, float, float] | tuple[float, int, float], nodes: int) -> Workload:
    """Return jobs given as (submission, nodes, run time[, estimate])."""
    described = [
        Job(number, float(one[0]), one[1], float(one[3] if len(one) > 3 else one[2]), number=number + 1)
        for number, one in enumerate(jobs)
    ]
    return Workload(described, [Truth(float(one[2])) for one in jobs], nodes)


def malleable(*jobs: tuple[float, int, int, int, float], nodes: int, **truth: Any) -> Workload:
    """Return jobs given as (submission, least, preferred, most nodes, run time on the preferred number)."""
    described = [
        Job(number, float(at), preferred, float(run), Kind.MALLEABLE, low, high, number=number + 1)
        for number, (at, low, preferred, high, run) in enumerate(jobs)
    ]
    return Workload(described, [Truth(float(run), **truth) for *_, run in jobs], nodes)


def rigid_workloads(nodes: int = 8, jobs: int = 30) -> st.SearchStrategy[Workload]:
    """Draw workloads with few different times, in whole seconds, so that many events are simultaneous."""
    one = st.tuples(st.integers(0, 40), st.integers(1, nodes), st.integers(1, 15), st.integers(0, 10))
    return st.lists(one, min_size=1, max_size=jobs).map(
        lambda many: rigid(
            *[(at, size, run, run + more) for at, size, run, more in sorted(many)], nodes=nodes
        )
    )


_SPEEDUPS = st.sampled_from([LINEAR, Power(0.3), Amdahl(0.2), Logarithmic(0.1)])


@st.composite
def _any_job(draw: st.DrawFn, nodes: int, kinds: Sequence[Kind]) -> tuple[Job, Truth]:
    kind = draw(st.sampled_from(kinds))
    low, preferred, high = sorted(draw(st.tuples(*[st.integers(1, nodes)] * 3)))
    run_s = float(draw(st.integers(1, 15) | st.integers(20, 60)))
    # Some jobs run longer than estimated.
    estimate_s = max(1.0, run_s + draw(st.integers(-3, 10)))
    job = Job(
        0,
        float(draw(st.integers(0, 20))),
        preferred,
        estimate_s,
        kind,
        low if kind is not Kind.RIGID else 0,
        high if kind is not Kind.RIGID else 0,
        draw(_SPEEDUPS),
        user=draw(st.sampled_from("ab")),
    )
    iterations, wishes = 0, ()
    if kind is Kind.MALLEABLE:
        iterations = draw(st.integers(0, 5))
    if kind in (Kind.MALLEABLE, Kind.EVOLVING):
        progress = sorted(draw(st.sets(st.sampled_from([0.1, 0.25, 0.5, 0.75, 0.9]), max_size=3)))
        wishes = tuple(Wish(share, draw(st.integers(low, high))) for share in progress)
    truth = Truth(run_s, draw(st.none() | _SPEEDUPS), iterations, wishes)
    return job, truth


def any_workloads(nodes: int = 8, jobs: int = 12) -> st.SearchStrategy[Workload]:
    """Draw jobs of all kinds; some have resize points, wishes, wrong claimed speedups, or short estimates."""

    def ordered(many: list[tuple[Job, Truth]]) -> Workload:
        many = sorted(many, key=lambda one: one[0].submit_s)
        described = [
            msgspec.structs.replace(job, id=number, number=number + 1) for number, (job, _) in enumerate(many)
        ]
        return Workload(described, [truth for _, truth in many], nodes)

    mixtures = st.sampled_from([[*Kind], [Kind.MALLEABLE], [Kind.MALLEABLE, Kind.RIGID]])
    return st.tuples(mixtures, st.integers(1, jobs)).flatmap(
        lambda drawn: st.lists(_any_job(nodes, drawn[0]), min_size=drawn[1], max_size=drawn[1]).map(ordered)
    )


#: cluster with the resources cores and GPUs: two nodes without GPUs, two nodes with two GPUs each
SMALL_CLUSTER = Cluster(("cores", "GPUs"), ((4.0, 0.0), (4.0, 0.0), (4.0, 2.0), (4.0, 2.0)))


def sharing(
    *jobs: tuple[float, int, tuple[float, ...], float, float] | tuple[float, int, tuple[float, ...], float],
    cluster: Cluster = SMALL_CLUSTER,
) -> Workload:
    """Return jobs given as (submission, units, demand of a unit, run time[, estimate])."""
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
    """Draw workloads for the small cluster; each job has room on the empty cluster."""
    demand = st.sampled_from([(1.0, 0.0), (2.0, 0.0), (3.0, 0.0), (1.0, 1.0), (4.0, 2.0), ()])
    one = st.tuples(st.integers(0, 20), st.integers(1, 2), demand, st.integers(1, 15), st.integers(0, 10))
    return st.lists(one, min_size=1, max_size=jobs).map(
        lambda many: sharing(
            *[(at, units, demand, run, run + more) for at, units, demand, run, more in sorted(many)]
        )
    )
