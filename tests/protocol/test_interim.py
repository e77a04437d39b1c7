"""The best of the workers' offers, for any order of arrival."""

import functools

from hypothesis import given
from hypothesis import strategies as st

from mallob_py.protocol.effects import JobEnded, Outcome
from mallob_py.protocol.interim import Interim
from mallob_py.protocol.messages import Offered, decode, encode
from mallob_py.protocol.stimuli import JobInterrupted, WorkerOffers
from mallob_py.simulation.cluster import Cluster


@st.composite
def offers(draw: st.DrawFn) -> list[Interim]:
    """Draw offers of one job, all with different bodies."""
    minimizes = draw(st.booleans())
    numbers = st.none() | st.integers(-5, 5)
    return [
        Interim(minimizes, "cost", value, bound, None if value is None else b"%d" % number)
        for number, (value, bound) in enumerate(draw(st.lists(st.tuples(numbers, numbers), min_size=1)))
    ]


@given(offers())
def test_the_best_value_and_the_best_bound_stand_whatever_the_order(made: list[Interim]) -> None:
    best = functools.reduce(Interim.joined, made)
    values = [one.value for one in made if one.value is not None]
    bounds = [one.bound for one in made if one.bound is not None]
    better, tighter = (min, max) if made[0].minimizes else (max, min)
    assert best.value == (better(values) if values else None)
    assert best.bound == (tighter(bounds) if bounds else None)
    assert best.body is None or any(one.body == best.body and one.value == best.value for one in made)
    for again in made:
        assert best.joined(again) is best


def test_of_answers_without_a_value_the_last_stands_until_one_has_a_value() -> None:
    first, second, third = Interim(body=b"1"), Interim(body=b"2"), Interim(value=0, body=b"3")
    assert first.joined(second) is not first
    assert first.joined(second).body == b"2"
    assert third.joined(second) is third


def test_large_integers_arrive_as_they_were() -> None:
    for value in (2**64 - 1, -(2**63), 2**53 + 1, 0.5):
        interim = Interim(True, "cost", value, None, b"x")
        assert decode(encode(Offered(1, interim))) == Offered(1, interim)


def _offer(cluster: Cluster, rank: int, interim: Interim) -> None:
    worker = cluster.pes[rank].workers.active
    assert worker is not None
    cluster.tell(rank, WorkerOffers(worker.number, interim))


def test_the_client_keeps_the_best_of_all_workers_and_an_interrupted_job_ends_with_it() -> None:
    cluster = Cluster(2)
    cluster.submit(1)
    cluster.run(until_s=0.1)
    _offer(cluster, 0, Interim(True, "cost", 7, 1, b"seven"))
    _offer(cluster, 1, Interim(True, "cost", 5, None, b"five"))
    _offer(cluster, 1, Interim(True, "cost", None, 3))
    cluster.run(until_s=0.2)
    _offer(cluster, 0, Interim(True, "cost", 6, 2, b"six"))
    cluster.run(until_s=0.3)
    assert cluster.pes[0].client.jobs[1].interim == Interim(True, "cost", 5, 3, b"five")
    pe = cluster.pes[0]
    pe.handle(JobInterrupted(1), cluster.now)
    (ended,) = (effect for effect in pe.effects if isinstance(effect, JobEnded))
    assert ended.outcome is Outcome.INTERRUPTED
    assert ended.body is None
    assert ended.interim == Interim(True, "cost", 5, 3, b"five")


def test_a_job_without_offers_ends_without_one() -> None:
    cluster = Cluster(2)
    cluster.submit(1)
    cluster.run(until_s=0.1)
    pe = cluster.pes[0]
    pe.handle(JobInterrupted(1), cluster.now)
    (ended,) = (effect for effect in pe.effects if isinstance(effect, JobEnded))
    assert ended.interim is None
